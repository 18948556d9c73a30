"""Names of refs as the library's local store encodes them in directory names. Pure.

Source: the crate `object_store`, `PathPart::from`, checked with icechunk 1.1.21 for every character
of ASCII. Stores in a bucket use the names unchanged.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_UNSAFE: Final = re.compile(rb'[\x00-\x1f"#%*/<>?\[\\\]^`{|}~\x7f-\xff]')


def escape(name: str) -> str:
    """Return the directory name of a ref."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], name.encode()).decode()


def unescape(directory: str) -> str:
    """Return the ref of a directory.

    A name that the library would spell differently was copied from a bucket, and is returned
    unchanged.
    """
    try:
        name = unquote_to_bytes(directory).decode()
    except UnicodeDecodeError:
        return directory
    return name if escape(name) == directory else directory
