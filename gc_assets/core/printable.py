"""Escape text of lakes, servers and files before it becomes part of a message.

A name can contain line breaks, terminal sequences, characters that reverse the text direction or
lone surrogates, or be megabytes long. Messages, notes, pages and tables show escapes instead, and
long names are cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# Replaces the omitted characters.
ELLIPSIS: Final = "…"
# The longest key on S3. A longer value can only be meant to flood a message.
MAX_VALUE: Final = 1_100
# A sample in a message contains a key, a reason, and sometimes a command.
MAX_SAMPLE: Final = 3_500
MAX_LISTED: Final = 5
MAX_MESSAGE: Final = 20_000
# Lists in messages are indented, so that text from a lake cannot begin a line of its own.
_LINE_BREAK: Final = re.compile(r"\\n(?=  )")


def escape(text: str, keep: str = "") -> str:
    """Return the text with all unprintable characters escaped.

    Args:
        text: Any text, which may contain lone surrogates.
        keep: Characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else _escape_letter(letter) for letter in text)


def show(value: object) -> str:
    """Format a value from a lake for a message, as one line of limited length."""
    return escape(_cut(str(value), MAX_VALUE))


def show_list(samples: Sequence[str], separator: str = ", ") -> str:
    """Format the first `MAX_LISTED` samples of a message, each on one line."""
    return separator.join(escape(_cut(sample, MAX_SAMPLE)) for sample in samples[:MAX_LISTED])


def to_message(text: str) -> str:
    """Escape the unprintable characters of a message. Line breaks before indented lines are kept."""
    if text.isprintable() and len(text) <= MAX_MESSAGE:
        return text
    return _LINE_BREAK.sub("\n", escape(_cut(text, MAX_MESSAGE)))


def _escape_letter(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()


def _cut(text: str, limit: int) -> str:
    """Shorten a long text in the middle, because a message ends with the next step for the user."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end]}… ({len(text) - limit:,} characters left out) …{text[-end:]}"
