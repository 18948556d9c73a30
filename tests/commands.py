"""Find and parse the command lines in Markdown pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

import click

from gc_assets.cli.main import cli

_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
# At the start of a line, after a prompt, in a substitution, or after another command.
_COMMAND = re.compile(r"(?:^(?:\$ )?|\$\(|&& )gc-assets( [^|&;)]*)?")


def console_blocks(page: str) -> list[list[str]]:
    """Return the lines of each console block, without comments."""
    return [[line.partition("  #")[0].strip() for line in block.splitlines()] for block in _BLOCK.findall(page)]


def command_lines(page: str) -> Iterator[list[str]]:
    """Yield the arguments of each gc-assets command in a console block."""
    for line in chain.from_iterable(console_blocks(page)):
        for arguments in _COMMAND.findall(line.replace("$(whoami)", "WHO")):
            yield shlex.split(arguments)


def commands_in_prose(page: str) -> Iterator[list[str]]:
    """Yield the arguments of each gc-assets command in backticks. An `[OPTION]` counts as given."""
    prose = " ".join(_FENCED.sub("", page).split())
    for span in re.findall(r"`gc-assets ([^`]+)`", prose):
        yield shlex.split(re.sub(r"[\[\]…]", " ", re.split(r" [|>] ", span)[0]))


def error_in_block(arguments: list[str]) -> str | None:
    """Return the error of a complete command, or None."""
    try:
        _parse(arguments)
    except click.ClickException as error:
        return f"gc-assets {' '.join(arguments)}: {error.format_message()}"
    return None


def error_in_prose(arguments: list[str]) -> str | None:
    """Return the error of a command that can be incomplete or contain placeholders, or None."""
    has_placeholders = any(word.isupper() or "|" in word for word in arguments)
    try:
        _parse(arguments)
    except (click.MissingParameter, click.BadOptionUsage):
        return None
    except click.BadParameter as error:
        return None if has_placeholders else f"gc-assets {' '.join(arguments)}: {error.format_message()}"
    except click.ClickException as error:
        return None if arguments[0].isupper() else f"gc-assets {' '.join(arguments)}: {error.format_message()}"
    return None


def _parse(arguments: list[str]) -> None:
    """Parse the arguments without running the command."""
    if arguments in ([], ["--help"], ["--version"]):
        return
    context = click.Context(cli, info_name="gc-assets")
    name, command, rest = cli.resolve_command(context, list(arguments))
    assert command is not None
    with suppress(click.exceptions.Exit):  # --help
        command.make_context(name, rest, parent=context).close()
