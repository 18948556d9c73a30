"""The envelope of every metadata file: a header of 39 bytes, then one zstd frame (spec.md,
"Metadata files").

Bytes in, payload out, and back: knows nothing of what a payload means, neither fetches nor logs.
"""

from __future__ import annotations

from typing import Final

import zstandard

from gc_assets.core.errors import FormatError
from gc_assets.core.untrusted_input import decompress_zstd

MAGIC: Final = "ICE🧊CHUNK".encode()
HEADER_BYTES: Final = 39
SPEC_VERSION: Final = 1
SNAPSHOT, CHUNK_MANIFEST, TRANSACTION_LOG = 1, 2, 4
_FILE_TYPES = {1: "snapshot", 2: "chunk manifest", 3: "attributes", 4: "transaction log", 5: "chunk", 6: "repository info"}
_SPEC_AT, _FILE_TYPE_AT, _COMPRESSION_AT = 36, 37, 38
_UNCOMPRESSED, _ZSTD = 0, 1
# The library's default first, then the others that a repository's configuration may name, but for
# the three that take hundreds of MiB.
_LEVELS = (3, 1, 2, *range(4, 20))


class SpecVersionError(FormatError):
    """A file of another spec version than 1. The file is sound, but this release does not read it."""


def unwrap(where: str, raw: bytes, file_type: int) -> bytes:
    """Returns the decompressed payload. `where` names the object in errors.

    Raises `FormatError` for bytes that are not one whole file of that type and spec version 1.
    """
    if len(raw) < HEADER_BYTES or not raw.startswith(MAGIC):
        raise FormatError(
            f"{where}: expected an Icechunk header of {HEADER_BYTES} bytes, found {len(raw):,} bytes starting with {raw[:12]!r}; "
            "restore the file from a backup"
        )
    if raw[_SPEC_AT] != SPEC_VERSION:
        raise SpecVersionError(f"{where}: written by Icechunk spec version {raw[_SPEC_AT]}; this release reads {SPEC_VERSION} only")
    if raw[_FILE_TYPE_AT] != file_type:
        found = _FILE_TYPES.get(raw[_FILE_TYPE_AT], f"file type {raw[_FILE_TYPE_AT]}")
        raise FormatError(f"{where}: expected a {_FILE_TYPES[file_type]}, found a {found}; restore the file from a backup")
    body = raw[HEADER_BYTES:]
    if raw[_COMPRESSION_AT] == _UNCOMPRESSED:
        return body
    if raw[_COMPRESSION_AT] != _ZSTD:
        raise FormatError(f"{where}: expected compression {_UNCOMPRESSED} or {_ZSTD} (zstd), found {raw[_COMPRESSION_AT]}")
    # The frame carries no content size, which only a streaming decompressor takes.
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        payload = b"".join(decompress_zstd(frame, body))
    except (zstandard.ZstdError, ValueError) as error:
        raise FormatError(f"{where}: its zstd frame is damaged: {error}; restore the file from a backup") from error
    if not frame.eof or frame.unused_data:
        found = f"{len(frame.unused_data):,} bytes after it" if frame.eof else "its end missing"
        raise FormatError(f"{where}: expected one whole zstd frame, found {found}; restore the file from a backup")
    return payload


def rewrap(raw: bytes, payload: bytes) -> bytes:
    """Returns a whole file with another payload, under the header of `raw` and compressed as `raw`
    is.

    The level is the one that makes `raw` of its own payload. Where none does (another release of
    zstd wrote it), it is the library's default.
    """
    header, body = raw[:HEADER_BYTES], raw[HEADER_BYTES:]
    if header[_COMPRESSION_AT] == _UNCOMPRESSED:
        return header + payload
    before = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    level = next((level for level in _LEVELS if _frame(before, body, level) == body), _LEVELS[0])
    return header + _frame(payload, body, level)


def _frame(payload: bytes, like: bytes, level: int) -> bytes:
    """Returns one zstd frame with the optional parts that the frame `like` has."""
    settings = zstandard.get_frame_parameters(like)
    size = len(payload) if settings.content_size != zstandard.CONTENTSIZE_UNKNOWN else -1
    compressor = zstandard.ZstdCompressor(level, write_content_size=size >= 0, write_checksum=settings.has_checksum)
    stream = compressor.compressobj(size=size)
    return stream.compress(payload) + stream.flush()
