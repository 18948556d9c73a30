"""Format `gc-assets` commands that messages suggest to the user."""

from __future__ import annotations

import shlex
from typing import Final

from gc_assets.core.printable import MAX_VALUE

_TOO_LONG: Final = "TOO_LONG"


def command(name: str, *arguments: str, **options: str | bool) -> str:
    """Format a command line that a user can paste into a shell.

    Args:
        arguments: Positional arguments. Placeholders are in capital letters, such as `PLAN_ID`.
        options: The value of each option. Names contain `_` instead of `-`. A flag has the value
            True.
    """
    flags = [_option(key, value) for key, value in options.items() if value is not False]
    values = [quote(value) for value in arguments]
    if any(value.startswith("-") for value in arguments):
        return " ".join(["gc-assets", name, *flags, "--", *values])
    return " ".join(["gc-assets", name, *values, *flags])


def quote(value: str) -> str:
    """Quote a value so that a shell treats it as one word.

    Unprintable characters could affect the terminal, so they are escaped as `$'…'`, which bash, zsh
    and ksh understand.
    """
    if len(value) > MAX_VALUE:
        return _TOO_LONG
    if value.isprintable():
        return shlex.quote(value)
    return f"$'{''.join(_escape(letter) for letter in value)}'"


def _option(key: str, value: str | bool) -> str:
    flag = f"--{key.replace('_', '-')}"
    if value is True:
        return flag
    return f"{flag}={quote(str(value))}" if str(value).startswith("-") else f"{flag} {quote(str(value))}"


def _escape(letter: str) -> str:
    if letter in {"\\", "'"}:
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(
        f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape" if "\udc80" <= letter <= "\udcff" else "surrogatepass")
    )
