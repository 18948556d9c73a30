"""Check the names and comments that users enter with their decisions."""

from __future__ import annotations

from gc_assets.core.approvals import normalize_name
from gc_assets.core.errors import UsageError
from gc_assets.core.printable import show


def require_name(by: str, decision: str, comment: str = "") -> None:
    """Check that a decision has a name, and that its name and comment can be recorded as UTF-8.

    Args:
        by: The name of the user.
        decision: The decision, for the message, such as `a retry`.
        comment: The reason.

    Raises:
        UsageError: If the name is empty, or a text contains lone surrogates. Python reads bytes of
            the command line that are not UTF-8 as such characters.
    """
    if not normalize_name(by):
        raise UsageError(f"{decision} requires --by WHO")
    for option, text in (("--by", by), ("--comment", comment)):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{decision} cannot be recorded: {option} {show(text)} is not UTF-8; enter it again") from None
