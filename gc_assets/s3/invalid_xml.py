"""Characters that are not allowed in XML, literally or as a reference.

Servers still write them into keys, tokens and messages. Replacing them with U+FFFD affects a single
value instead of the whole response.
"""

from __future__ import annotations

import re
from typing import Final

REPLACEMENT: Final = "\ufffd"
_NOT_XML: Final = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]|&#(?:x0*(?:[0-8bcef]|1[0-9a-f]|fff[ef])|0*(?:[0-8]|1[124-9]|2\d|3[01]|6553[45]));",
    re.IGNORECASE,
)


def replace_invalid_characters(body: bytes) -> bytes:
    return _NOT_XML.sub(REPLACEMENT.encode(), body)
