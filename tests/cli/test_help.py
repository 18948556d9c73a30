"""Examples in the help of commands."""

import click
import pytest
from click.testing import CliRunner

from gc_assets.cli.main import cli

GROUPS = {"export": ("focus",)}
HELP = [[], *([name] for name in cli.list_commands(click.Context(cli))), *([name, inner] for name in GROUPS for inner in GROUPS[name])]


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_fits_80_columns(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(cli, [*command, "--help"], prog_name="gc-assets").output
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", sorted(cli.list_commands(click.Context(cli))))
def test_help_of_every_command_shows_an_example_on_a_separate_line(command: str) -> None:
    text = CliRunner().invoke(cli, [command, "--help"]).output
    assert any(line.strip().startswith(f"gc-assets {command}") for line in text.splitlines())
    assert "\\b" not in text
