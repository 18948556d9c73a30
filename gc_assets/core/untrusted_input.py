"""Decompress and parse untrusted input within limits.

A few kilobytes of compressed data can expand to gigabytes of zeros. If a limit is exceeded, the
functions raise `ValueError`. For damaged input, they raise the error of the library.
"""

from __future__ import annotations

import bz2
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import zstandard

# No real metadata object is larger than this, whether it is compressed or not.
MAX_OBJECT_BYTES: Final = 2**30
# Real metadata is compressed by a factor of at most 30. Small results may exceed this limit.
MAX_RATIO: Final = 200
_SMALL: Final = 64 * 2**20
# A metadata.json with 70,000 snapshots has two million values, each of which takes up to 100 bytes
# after parsing.
MAX_JSON_VALUES: Final = 20_000_000
# A zstd block of four bytes can expand to 128 KiB, so this much input results in at most 32 MiB.
_ZSTD_INPUT_BYTES: Final = 1024
_GZIP: Final = 31
_RAW_DEFLATE: Final = -15


class _Inflator(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def max_decompressed_bytes(compressed_bytes: int) -> int:
    """Return how large the decompressed content may be for this size of the input."""
    return min(MAX_OBJECT_BYTES, max(_SMALL, MAX_RATIO * compressed_bytes))


def gunzip(raw: bytes) -> bytes:
    """Decompress a gzip file with one or more members.

    Raises:
        EOFError: If the file is truncated.
    """
    found, is_complete = gunzip_start(raw)
    if not is_complete:
        raise EOFError("the gzip file ends before its end-of-stream marker")
    return found


def gunzip_start(raw: bytes) -> tuple[bytes, bool]:
    """Decompress a gzip file that may be truncated.

    Returns:
        The content, and True if the file is complete.
    """
    limit, found, rest = max_decompressed_bytes(len(raw)), bytearray(), raw
    while rest:
        member = zlib.decompressobj(_GZIP)
        found += member.decompress(rest, limit - len(found) + 1)
        _require(len(found), limit)
        if not member.eof:
            return bytes(found), False
        rest = member.unused_data.lstrip(b"\0")  # gzip allows padding
    return bytes(found), True


def decompress_block(raw: bytes, codec: str) -> bytes:
    """Decompress an Avro block.

    Args:
        codec: `snappy`, `deflate`, `bzip2`, `xz` or `zstandard`.

    Raises:
        ValueError: If the codec is any other one.
    """
    limit = max_decompressed_bytes(len(raw))
    if codec == "zstandard":
        import zstandard  # only installed with the lake kinds that use it

        frame = zstandard.ZstdDecompressor().decompressobj()
        return b"".join(decompress_zstd(frame, raw))
    if codec == "snappy":
        return _decompress_snappy(raw, limit)
    found = _inflator(codec).decompress(raw, limit + 1)
    _require(len(found), limit)
    return found


def decompress_zstd(frame: zstandard.ZstdDecompressionObj, raw: bytes) -> Iterator[bytes]:
    """Decompress a zstd frame up to the limit. The caller must check that the frame has ended."""
    limit, found = max_decompressed_bytes(len(raw)), 0
    for at in range(0, len(raw), _ZSTD_INPUT_BYTES):
        if frame.eof:
            raise ValueError(f"the zstd frame is followed by {len(raw) - at:,} extra bytes")
        piece = frame.decompress(raw[at : at + _ZSTD_INPUT_BYTES])
        found += len(piece)
        _require(found, limit)
        yield piece


def parse_json(content: bytes | str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse a JSON document.

    Args:
        pairs: The `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: If the content is not JSON, is nested too deeply, or contains more than
            `MAX_JSON_VALUES` values.
    """
    if len(content) > MAX_JSON_VALUES and _count_marks(content) > MAX_JSON_VALUES:
        raise ValueError(f"the JSON document has more than {MAX_JSON_VALUES:,} values")
    try:
        return json.loads(content, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("the JSON document is nested too deeply") from None


def is_text(value: str) -> bool:
    """Return False if a string contains lone surrogates.

    JSON and YAML can represent them, but UTF-8 cannot.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _count_marks(content: bytes | str) -> int:
    """Count the characters that come before a value in a JSON document."""
    if isinstance(content, str):
        return sum(content.count(mark) for mark in "[{,")
    return sum(content.count(mark) for mark in (b"[", b"{", b","))


def _inflator(codec: str) -> _Inflator:
    if codec == "deflate":
        return zlib.decompressobj(_RAW_DEFLATE)
    if codec == "bzip2":
        return bz2.BZ2Decompressor()
    if codec == "xz":
        return lzma.LZMADecompressor()
    raise ValueError(f"unsupported codec {codec!r}; expected deflate, bzip2, xz or zstandard")


def _decompress_snappy(raw: bytes, limit: int) -> bytes:
    """Decompress an Avro snappy block, which ends with the big-endian CRC32 of its content."""
    body, checksum, size = raw[:-4], raw[-4:], 0
    for position, byte in enumerate(body[:5]):  # the block begins with the decompressed length as a varint
        size |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            break
    _require(size, limit)
    import pyarrow as pa  # this import takes half of the time of a short command

    found = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(found).to_bytes(4, "big") != checksum:
        raise ValueError("the checksum of a snappy block is wrong")
    return found


def _require(found: int, limit: int) -> None:
    if found > limit:
        raise ValueError(f"the content is larger than {limit:,} bytes after decompression, which is too large for metadata")


def normalize_uuid(text: str) -> str:
    """Convert a UUID to lower case, because engines ignore its case. Other strings are unchanged."""
    return text.lower() if is_uuid(text) else text


def is_uuid(text: str) -> bool:
    """Return True if a string is a UUID in its usual form."""
    return _UUID.fullmatch(text) is not None


_UUID: Final = re.compile("(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
