"""Help teaches: its examples stand on lines of their own."""

import click
import pytest
from click.testing import CliRunner

from gc_assets.cli.main import cli


@pytest.mark.parametrize("command", sorted(cli.list_commands(click.Context(cli))))
def test_every_command_shows_an_example_on_a_line_of_its_own(command: str) -> None:
    text = CliRunner().invoke(cli, [command, "--help"]).output
    assert any(line.strip().startswith(f"gc-assets {command}") for line in text.splitlines())
    assert "\\b" not in text
