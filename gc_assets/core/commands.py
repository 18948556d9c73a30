"""Suggested `gc-assets` commands, quoted for a shell."""

from __future__ import annotations

import shlex
from typing import Final

from gc_assets.core.printable import MAX_VALUE

_TOO_LONG: Final = "TOO_LONG"


def command(name: str, *arguments: str, **options: str | bool) -> str:
    """Return a command line that a user can paste into a shell.

    Args:
        arguments: Positional arguments. Placeholders are in capital letters, e.g. `PLAN_ID`.
        options: Values by option name, written with `_` instead of `-`. The value of a flag is
            True.
    """
    flags = [_option(key, value) for key, value in options.items() if value is not False]
    values = [quote(value) for value in arguments]
    if any(value.startswith("-") for value in arguments):
        return " ".join(["gc-assets", name, *flags, "--", *values])
    return " ".join(["gc-assets", name, *values, *flags])


def quote(value: str) -> str:
    """Quote a value for a shell, as one printable word.

    Unprintable characters are escaped for bash, zsh and ksh (`$'…'`), because a terminal would act
    on them.
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
