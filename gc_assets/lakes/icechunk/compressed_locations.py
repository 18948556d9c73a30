"""Decompress the virtual chunk locations in chunk manifests of spec version 2.

Format: Icechunk `manifest.fbs`, `ChunkRef.compressed_location` and `Manifest.location_dictionary`.
Each location is a zstd frame of its own. All frames in a manifest use the same dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from gc_assets.core.errors import FormatError
from gc_assets.core.untrusted_input import max_decompressed_bytes

UNCOMPRESSED, ZSTD = 0, 1
# The library reads at most 1,024 bytes. A percent-encoded S3 key can have 3,072 bytes.
MAX_LOCATION_BYTES: Final = 1 << 16


def decompress_locations(
    source: str, frames: Iterable[pa.BinaryArray], algorithm: int, dictionary: bytes, file_bytes: int
) -> pa.BinaryArray:
    """Decompress the zstd frames of a manifest and return the distinct virtual chunk locations.

    Args:
        source: Name of the manifest for error messages.
        frames: Compressed locations, one zstd frame for each.
        algorithm: The manifest's `compression_algorithm`.
        dictionary: The manifest's zstd dictionary, or empty if it does not have one.
        file_bytes: Size of the manifest in bytes. It limits the total size of the locations.

    Raises:
        FormatError: If a location is damaged or too large, or the algorithm is not zstd.
    """
    distinct = pc.unique(pa.chunked_array(list(frames), pa.binary())).to_pylist()
    if not distinct:
        return pa.array([], pa.binary())
    if algorithm != ZSTD:
        raise FormatError(f"{source}: expected compression algorithm {ZSTD} (zstd) of locations, found {algorithm}; upgrade gc-assets")
    limit, found, total = max_decompressed_bytes(file_bytes), set[bytes](), 0
    try:
        shared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        decompressor = zstandard.ZstdDecompressor(dict_data=shared)
        for frame in distinct:
            # Before it reads the content, the decompressor allocates the size in the frame's
            # header.
            size = zstandard.frame_content_size(frame)
            if size > MAX_LOCATION_BYTES:
                raise FormatError(f"{source}: expected a location of at most {MAX_LOCATION_BYTES:,} bytes, found {size:,}")
            location = decompressor.decompress(frame, max_output_size=MAX_LOCATION_BYTES, allow_extra_data=False)
            total += len(location)
            if total > limit:
                raise FormatError(f"{source}: its locations have more than {limit:,} bytes, which is too large for metadata")
            found.add(location)
    except (zstandard.ZstdError, ValueError, MemoryError) as error:
        raise FormatError(f"{source}: a compressed location is damaged: {error}; restore the file from a backup") from error
    return pa.array(sorted(found), pa.binary())
