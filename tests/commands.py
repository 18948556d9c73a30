"""The command lines that the pages name, as the command line reads them."""

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
# At the beginning of a line, behind a prompt, in a substitution, or behind another command.
_TYPED = re.compile(r"(?:^(?:\$ )?|\$\(|&& )gc-assets( [^|&;)]*)?")


def terminals(page: str) -> list[list[str]]:
    """The lines of each block that shows a terminal, without their remarks."""
    return [[line.partition("  #")[0].strip() for line in block.splitlines()] for block in _BLOCK.findall(page)]


def typed_lines(page: str) -> Iterator[list[str]]:
    """The arguments of every line of a block that calls gc-assets."""
    for line in chain.from_iterable(terminals(page)):
        for arguments in _TYPED.findall(line.replace("$(whoami)", "WHO")):
            yield shlex.split(arguments)


def named_in_prose(page: str) -> Iterator[list[str]]:
    """The arguments of every call that stands between backticks in a sentence or a table; `[OPTION]` as if it were given."""
    prose = " ".join(_FENCED.sub("", page).split())
    for span in re.findall(r"`gc-assets ([^`]+)`", prose):
        yield shlex.split(re.sub(r"[\[\]…]", " ", re.split(r" [|>] ", span)[0]))


def wrong_in_a_block(arguments: list[str]) -> str | None:
    """What the command line would refuse of a line that is to be typed as it stands."""
    try:
        _parse(arguments)
    except click.ClickException as error:
        return f"gc-assets {' '.join(arguments)}: {error.format_message()}"
    return None


def wrong_in_prose(arguments: list[str]) -> str | None:
    """The same of a call that may name a command or an option alone, and stand for others: `KEY`, `table|json`."""
    stands_for_others = any(word.isupper() or "|" in word for word in arguments)
    try:
        _parse(arguments)
    except (click.MissingParameter, click.BadOptionUsage):
        return None
    except click.BadParameter as error:
        return None if stands_for_others else f"gc-assets {' '.join(arguments)}: {error.format_message()}"
    except click.ClickException as error:
        return None if arguments[0].isupper() else f"gc-assets {' '.join(arguments)}: {error.format_message()}"
    return None


def _parse(arguments: list[str]) -> None:
    """Reads the arguments and runs nothing."""
    if arguments in ([], ["--help"], ["--version"]):
        return
    context = click.Context(cli, info_name="gc-assets")
    name, command, rest = cli.resolve_command(context, list(arguments))
    assert command is not None
    with suppress(click.exceptions.Exit):  # --help
        command.make_context(name, rest, parent=context).close()
