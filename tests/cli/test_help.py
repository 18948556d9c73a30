"""Examples in the help of commands."""

import click
import pytest
from click.testing import CliRunner

from gc_assets.cli.main import cli


@pytest.mark.parametrize("command", sorted(cli.list_commands(click.Context(cli))))
def test_every_command_shows_an_example_on_its_own_line(command: str) -> None:
    text = CliRunner().invoke(cli, [command, "--help"]).output
    assert any(line.strip().startswith(f"gc-assets {command}") for line in text.splitlines())
    assert "\\b" not in text
