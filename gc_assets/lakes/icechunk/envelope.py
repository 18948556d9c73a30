"""Envelope of Icechunk's metadata files: a 39-byte header, followed by one zstd frame.

Format: Icechunk `spec-v1.md` and `spec-v2.md`, "Binary File Format". This module extracts and
replaces payloads, but does not interpret them.
"""

from __future__ import annotations

from typing import Final

import zstandard

from gc_assets.core.errors import FormatError
from gc_assets.core.untrusted_input import decompress_zstd

MAGIC: Final = "ICE🧊CHUNK".encode()
HEADER_BYTES: Final = 39
SPEC_V1: Final = frozenset({1})
# Spec version 2.1 also writes the number 2. Repositories with spec version 2 may contain files of
# both.
SPEC_V1_AND_V2: Final = frozenset({1, 2})
SPEC_V2: Final = frozenset({2})
SNAPSHOT, CHUNK_MANIFEST, TRANSACTION_LOG, REPO_INFO = 1, 2, 4, 6
_FILE_TYPES = {1: "snapshot", 2: "chunk manifest", 3: "attributes", 4: "transaction log", 5: "chunk", 6: "repository info"}
_SPEC_AT, _FILE_TYPE_AT, _COMPRESSION_AT = 36, 37, 38
_UNCOMPRESSED, _ZSTD = 0, 1
# The library's default comes first, followed by all levels that a repository can configure. The
# three levels that need hundreds of MiB are left out.
_LEVELS = (3, 1, 2, *range(4, 20))


class SpecVersionError(FormatError):
    """Raised if a file is valid, but its spec version is not supported."""


def unwrap(source: str, raw: bytes, file_type: int, spec_versions: frozenset[int]) -> bytes:
    """Verify the header of a metadata file and return its decompressed payload.

    Args:
        source: Name of the object for error messages.
        raw: Content of the file.
        file_type: Type that the header must contain.
        spec_versions: Spec versions to accept.

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
        raise SpecVersionError(f"{source}: the file has Icechunk spec version {raw[_SPEC_AT]}; expected {known}; upgrade gc-assets")
    if raw[_FILE_TYPE_AT] != file_type:
        found = _FILE_TYPES.get(raw[_FILE_TYPE_AT], f"file type {raw[_FILE_TYPE_AT]}")
        raise FormatError(f"{source}: expected a {_FILE_TYPES[file_type]}, found a {found}; restore the file from a backup")
    body = raw[HEADER_BYTES:]
    if raw[_COMPRESSION_AT] == _UNCOMPRESSED:
        return body
    if raw[_COMPRESSION_AT] != _ZSTD:
        raise FormatError(f"{source}: expected compression {_UNCOMPRESSED} or {_ZSTD} (zstd), found {raw[_COMPRESSION_AT]}")
    # The frame does not record its content size, which only a streaming decompressor accepts.
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        payload = b"".join(decompress_zstd(frame, body))
    except (zstandard.ZstdError, ValueError) as error:
        raise FormatError(f"{source}: its zstd frame is damaged: {error}; restore the file from a backup") from error
    if not frame.eof or frame.unused_data:
        found = f"{len(frame.unused_data):,} bytes after it" if frame.eof else "a truncated one"
        raise FormatError(f"{source}: expected one whole zstd frame, found {found}; restore the file from a backup")
    return payload


def spec_version(raw: bytes) -> int:
    """Return the spec version from the header of a file that `unwrap` accepted."""
    return raw[_SPEC_AT]


def rewrap(raw: bytes, payload: bytes) -> bytes:
    """Build a metadata file with a new payload, and with the header and compression of `raw`.

    The compression level is found by compressing the payload of `raw` again. If no level reproduces
    it, because `raw` was written by another release of zstd, the library's default is used.
    """
    header, body = raw[:HEADER_BYTES], raw[HEADER_BYTES:]
    if header[_COMPRESSION_AT] == _UNCOMPRESSED:
        return header + payload
    previous = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    level = next((level for level in _LEVELS if _frame(previous, body, level) == body), _LEVELS[0])
    return header + _frame(payload, body, level)


def _frame(payload: bytes, like: bytes, level: int) -> bytes:
    """Build a zstd frame that has the same optional parts as the frame `like`."""
    settings = zstandard.get_frame_parameters(like)
    size = len(payload) if settings.content_size != zstandard.CONTENTSIZE_UNKNOWN else -1
    compressor = zstandard.ZstdCompressor(level, write_content_size=size >= 0, write_checksum=settings.has_checksum)
    stream = compressor.compressobj(size=size)
    return stream.compress(payload) + stream.flush()
