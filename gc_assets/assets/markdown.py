"""Other people's names in Markdown: as they are, and never as markup."""

from __future__ import annotations

import re
from typing import Final

# What begins something in Markdown or HTML in the middle of a line, or a cell of a table.
_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>#|~&]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# What Markdown takes for a link by itself.
_ADDRESS: Final = re.compile(r"(?i)\b(https?|ftp|mailto|javascript|data|www)([:.])")


def escape_markdown(text: str) -> str:
    """Returns Markdown that shows this text, in one line, in a table or outside."""
    shown = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    escaped = _MARKUP.sub(lambda match: {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(match[0], f"\\{match[0]}"), shown)
    return _ADDRESS.sub(lambda match: f"{match[1]}&#{ord(match[2])};", escaped)
