"""Metadata file envelope: a 39-byte header followed by one zstd frame.

Format: Icechunk `spec-v1.md` and `spec-v2.md`, "Binary File Format". The module converts bytes to a
payload and back, but does not interpret payloads.
"""

from __future__ import annotations

from typing import Final

import zstandard

from gc_assets.core.errors import FormatError
from gc_assets.core.untrusted_input import decompress_zstd

MAGIC: Final = "ICE🧊CHUNK".encode()
HEADER_BYTES: Final = 39
SPEC_V1: Final = frozenset({1})
# Spec version 2.1 also writes 2. A repository of spec version 2 can contain files of both versions.
SPEC_V1_AND_V2: Final = frozenset({1, 2})
SPEC_V2: Final = frozenset({2})
SNAPSHOT, CHUNK_MANIFEST, TRANSACTION_LOG, REPO_INFO = 1, 2, 4, 6
_FILE_TYPES = {1: "snapshot", 2: "chunk manifest", 3: "attributes", 4: "transaction log", 5: "chunk", 6: "repository info"}
_SPEC_AT, _FILE_TYPE_AT, _COMPRESSION_AT = 36, 37, 38
_UNCOMPRESSED, _ZSTD = 0, 1
# The library's default, followed by the other levels that a repository can configure, except the
# three that need hundreds of MiB.
_LEVELS = (3, 1, 2, *range(4, 20))


class SpecVersionError(FormatError):
    """The file is valid, but has an unsupported spec version."""


def unwrap(source: str, raw: bytes, file_type: int, spec_versions: frozenset[int]) -> bytes:
    """Return the decompressed payload.

    Args:
        source: Name of the object in error messages.
        raw: Content of the file.
        file_type: Expected type in the header.
        spec_versions: Accepted spec versions.

    Raises:
        SpecVersionError: If the file has another spec version.
        FormatError: If the file is damaged, incomplete or of another type.
    """
    if len(raw) < HEADER_BYTES or not raw.startswith(MAGIC):
        raise FormatError(
            f"{source}: expected an Icechunk header of {HEADER_BYTES} bytes, found {len(raw):,} bytes starting with {raw[:12]!r}; "
            "restore the file from a backup"
        )
    if raw[_SPEC_AT] not in spec_versions:
        known = " and ".join(map(str, sorted(spec_versions)))
        raise SpecVersionError(f"{source}: written by Icechunk spec version {raw[_SPEC_AT]}; expected {known}; upgrade gc-assets")
    if raw[_FILE_TYPE_AT] != file_type:
        found = _FILE_TYPES.get(raw[_FILE_TYPE_AT], f"file type {raw[_FILE_TYPE_AT]}")
        raise FormatError(f"{source}: expected a {_FILE_TYPES[file_type]}, found a {found}; restore the file from a backup")
    body = raw[HEADER_BYTES:]
    if raw[_COMPRESSION_AT] == _UNCOMPRESSED:
        return body
    if raw[_COMPRESSION_AT] != _ZSTD:
        raise FormatError(f"{source}: expected compression {_UNCOMPRESSED} or {_ZSTD} (zstd), found {raw[_COMPRESSION_AT]}")
    # The frame has no content size, so a streaming decompressor is necessary.
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        payload = b"".join(decompress_zstd(frame, body))
    except (zstandard.ZstdError, ValueError) as error:
        raise FormatError(f"{source}: its zstd frame is damaged: {error}; restore the file from a backup") from error
    if not frame.eof or frame.unused_data:
        found = f"{len(frame.unused_data):,} bytes after it" if frame.eof else "its end missing"
        raise FormatError(f"{source}: expected one whole zstd frame, found {found}; restore the file from a backup")
    return payload


def spec_version(raw: bytes) -> int:
    """Return the spec version in the header of a file accepted by `unwrap`."""
    return raw[_SPEC_AT]


def rewrap(raw: bytes, payload: bytes) -> bytes:
    """Build a file with a new payload, using the header and the compression of `raw`.

    The compression level is the one that reproduces `raw` from its payload. If there is no such
    level, because another release of zstd wrote the file, the library's default is used.
    """
    header, body = raw[:HEADER_BYTES], raw[HEADER_BYTES:]
    if header[_COMPRESSION_AT] == _UNCOMPRESSED:
        return header + payload
    previous = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    level = next((level for level in _LEVELS if _frame(previous, body, level) == body), _LEVELS[0])
    return header + _frame(payload, body, level)


def _frame(payload: bytes, like: bytes, level: int) -> bytes:
    """Build a zstd frame with the same optional parts as the frame `like`."""
    settings = zstandard.get_frame_parameters(like)
    size = len(payload) if settings.content_size != zstandard.CONTENTSIZE_UNKNOWN else -1
    compressor = zstandard.ZstdCompressor(level, write_content_size=size >= 0, write_checksum=settings.has_checksum)
    stream = compressor.compressobj(size=size)
    return stream.compress(payload) + stream.flush()
