"""Parse Azure's response to a batch of requests.

It contains one part for each request. A part belongs to the request with the same Content-ID, and
the order of the parts does not matter.

Source: Azure REST API reference, "Blob Batch".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The response to a single request of a batch. Header names are in lower case."""

    status_code: int
    reason: str
    headers: Mapping[str, str]
    body: str

    def text(self, encoding: str | None = None) -> str:
        """Return the decoded body. Microsoft's library reads responses with this method."""
        del encoding
        return self.body


def parse_parts(content_type: str, body: bytes) -> dict[int, BatchPart]:
    """Split a response into its parts, keyed by the Content-ID of the request.

    Parts that are unreadable or have the same id as another one are left out, because it is unknown
    whether their requests succeeded.
    """
    message = message_from_bytes(b"Content-Type: " + content_type.encode("ascii", "replace") + b"\r\n\r\n" + body)
    parts, repeated = dict[int, BatchPart](), set[int]()
    for item in message.get_payload() if message.is_multipart() else []:
        found = _parse_part(item) if isinstance(item, Message) else None
        if found is not None:
            number, part = found
            repeated |= {number} & parts.keys()
            parts[number] = part
    return {number: part for number, part in parts.items() if number not in repeated}


def _parse_part(item: Message) -> tuple[int, BatchPart] | None:
    number, content = str(item.get("Content-ID", "")).strip(), item.get_payload(decode=True)
    if not (number.isascii() and number.isdecimal()) or not isinstance(content, bytes):
        return None
    first, _, rest = content.partition(b"\r\n")
    version, _, status_line = first.decode("latin-1").partition(" ")
    status, _, reason = status_line.partition(" ")
    if not version.startswith("HTTP/") or not (status.isascii() and status.isdecimal()):
        return None
    answer = message_from_bytes(rest)
    headers = {name.lower(): str(value) for name, value in answer.items()}
    return int(number), BatchPart(int(status), reason.strip(), headers, str(answer.get_payload()))
