"""Escape text of lakes, servers and files before it becomes part of a message.

A name can contain line breaks, terminal sequences, marks that reverse the direction of text, halves
of characters, or megabytes. Messages, notes, pages and tables show them as escapes, and cut them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# Replaces letters that are left out.
ELLIPSIS: Final = "…"
# Longer than a key on S3 is only a value that is meant to flood a message.
MAX_VALUE: Final = 1_100
# A sample in a message contains a key, a reason, and sometimes a command.
MAX_SAMPLE: Final = 3_500
MAX_LISTED: Final = 5
MAX_MESSAGE: Final = 20_000
# Lists in messages are indented, so that the text of a list cannot begin a line of its own.
_LINE_BREAK: Final = re.compile(r"\\n(?=  )")


def escape(text: str, keep: str = "") -> str:
    """Return the text with escapes for all characters that do not print.

    Args:
        text: Any text, also with lone surrogates.
        keep: Characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else _escape_letter(letter) for letter in text)


def show(value: object) -> str:
    """Return a value of a lake as a part of a message: on one line, and not too long."""
    return escape(_cut(str(value), MAX_VALUE))


def show_list(samples: Sequence[str], separator: str = ", ") -> str:
    """Return the first `MAX_LISTED` samples of a message, each on one line."""
    return separator.join(escape(_cut(sample, MAX_SAMPLE)) for sample in samples[:MAX_LISTED])


def to_message(text: str) -> str:
    """Return a message without characters that do not print. Indented lines stay lines."""
    if text.isprintable() and len(text) <= MAX_MESSAGE:
        return text
    return _LINE_BREAK.sub("\n", escape(_cut(text, MAX_MESSAGE)))


def _escape_letter(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()


def _cut(text: str, limit: int) -> str:
    """Replace the middle of a long text, because the end of a message is the next step."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end]}… ({len(text) - limit:,} characters left out) …{text[-end:]}"
