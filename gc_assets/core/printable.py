"""Escape text from lakes, servers and files before it becomes part of a message.

Such text may contain line breaks, terminal sequences, characters that reverse the text direction or
lone surrogates, and it may be megabytes long. In messages, notes, pages and printed tables, these
characters are escaped, and long text is shortened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# Replaces omitted characters.
ELLIPSIS: Final = "…"
# A bit more than the longest key on S3. Longer values are not legitimate.
MAX_VALUE: Final = 1_100
# A sample in a message consists of a key, a reason, and sometimes a command.
MAX_SAMPLE: Final = 3_500
MAX_LISTED: Final = 5
MAX_MESSAGE: Final = 20_000
# Lists in messages are indented, so that text from a lake cannot look like a separate line.
_LINE_BREAK: Final = re.compile(r"\\n(?=  )")


def escape(text: str, keep: str = "") -> str:
    """Escape unprintable characters.

    Args:
        text: Any text. It may contain lone surrogates.
        keep: Characters that must not be escaped.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else _escape_letter(letter) for letter in text)


def show(value: object) -> str:
    """Format a value from a lake for use in a message, as one line of limited length."""
    return escape(_cut(str(value), MAX_VALUE))


def show_list(samples: Sequence[str], separator: str = ", ") -> str:
    """Join up to `MAX_LISTED` samples for use in a message. Line breaks in them are escaped."""
    return separator.join(escape(_cut(sample, MAX_SAMPLE)) for sample in samples[:MAX_LISTED])


def to_message(text: str) -> str:
    """Shorten a message, and escape unprintable characters except line breaks before indentation."""
    if text.isprintable() and len(text) <= MAX_MESSAGE:
        return text
    return _LINE_BREAK.sub("\n", escape(_cut(text, MAX_MESSAGE)))


def is_utf8(name: bytes) -> bool:
    if name.isascii():
        return True
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decode_name(name: bytes) -> str:
    r"""Decode a key or file name. Bytes that are not UTF-8 become `\xNN`."""
    return name.decode("utf-8", "backslashreplace")


def _escape_letter(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()


def _cut(text: str, limit: int) -> str:
    """Shorten a long text in the middle, because the end of a message contains the next step."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end]}… ({len(text) - limit:,} characters left out) …{text[-end:]}"
