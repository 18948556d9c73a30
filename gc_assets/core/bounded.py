"""Decompresses what others wrote without letting it grow beyond a bound.

A few kilobytes can name gigabytes of zeros. Pure: bytes in, bytes out. Raises `ValueError` where
the bound is passed, and the libraries' own errors for damaged bytes.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import zstandard

# Metadata of every real lake is smaller, compressed or not.
MOST_BYTES: Final = 2**30
# Real metadata shrinks to a thirtieth at best. What is small when it is whole may shrink further.
MOST_TIMES: Final = 200
_SMALL: Final = 64 * 2**20
# One zstd block of four bytes may stand for 128 KiB, so a piece brings 32 MiB at most.
_ZSTD_PIECE: Final = 1024
_GZIP: Final = 31
_RAW_DEFLATE: Final = -15


class _Inflator(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def bound_of(compressed_bytes: int) -> int:
    """Returns how many bytes that many compressed ones may become."""
    return min(MOST_BYTES, max(_SMALL, MOST_TIMES * compressed_bytes))


def gunzip(raw: bytes) -> bytes:
    """Returns the content of a gzip file of one or more members. Raises `EOFError` where it is cut
    off.
    """
    limit, found, rest = bound_of(len(raw)), bytearray(), raw
    while rest:
        member = zlib.decompressobj(_GZIP)
        found += member.decompress(rest, limit - len(found) + 1)
        _require(len(found), limit)
        if not member.eof:
            raise EOFError("the gzip file ends before its end-of-stream marker was reached")
        rest = member.unused_data.lstrip(b"\0")  # padding may follow, as gzip itself allows
    return bytes(found)


def inflated(raw: bytes, codec: str) -> bytes:
    """Returns a block that an Avro codec compressed: `deflate`, `bzip2`, `xz` or `zstandard`.

    Raises `ValueError` for another codec.
    """
    limit = bound_of(len(raw))
    if codec == "zstandard":
        import zstandard  # only the lakes that use it bring it

        frame = zstandard.ZstdDecompressor().decompressobj()
        return b"".join(zstd_pieces(frame, raw))
    found = _inflator(codec).decompress(raw, limit + 1)
    _require(len(found), limit)
    return found


def zstd_pieces(frame: zstandard.ZstdDecompressionObj, raw: bytes) -> Iterator[bytes]:
    """Yields what a frame decompresses to, up to the bound. The caller looks at the frame's end."""
    limit, found = bound_of(len(raw)), 0
    for at in range(0, len(raw), _ZSTD_PIECE):
        if frame.eof:
            raise ValueError(f"{len(raw) - at:,} bytes after its end")
        piece = frame.decompress(raw[at : at + _ZSTD_PIECE])
        found += len(piece)
        _require(found, limit)
        yield piece


def _inflator(codec: str) -> _Inflator:
    if codec == "deflate":
        return zlib.decompressobj(_RAW_DEFLATE)
    if codec == "bzip2":
        return bz2.BZ2Decompressor()
    if codec == "xz":
        return lzma.LZMADecompressor()
    raise ValueError(f"compressed with {codec!r}; known are deflate, bzip2, xz and zstandard")


def _require(found: int, limit: int) -> None:
    if found > limit:
        raise ValueError(f"it decompresses to more than {limit:,} bytes, which no metadata of this length does")
