"""Recognize paths that the REST API cannot represent.

Paths in lakeFS may contain any bytes, but JSON cannot. Go replaces each byte that is not UTF-8, so
different paths may look the same, and their order may differ.
"""

from __future__ import annotations

import re
from typing import Final

# How Go's JSON shows a byte that is not UTF-8.
REPLACED: Final = "\ufffd"
_ESCAPED: Final = re.compile("[\udc80-\udcff]")


def is_exact(name: str) -> bool:
    """Return False if a name may be that of a path that is not UTF-8."""
    return REPLACED not in name


def to_text(key: bytes) -> str:
    """Convert a path to a string. Each byte that is not UTF-8 becomes `REPLACED` and an escape.

    Without `REPLACED`, the string could be another path of the repository.
    """
    text = key.decode(errors="surrogateescape")
    return _ESCAPED.sub(lambda found: f"{REPLACED}\\x{ord(found[0]) - 0xDC00:02x}", text)
