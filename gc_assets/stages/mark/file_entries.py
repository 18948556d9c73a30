"""Select the entries of containers that refer to files, and hash their keys.

Child containers are entries too, but the walk follows them along their edges. Entries marked as
deleted are skipped, because the manifest does not need their files.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.hashing import xxhash64
from gc_assets.core.key_resolver import loosen_spelling
from gc_assets.state.side_tables import HASHES

# No store allows larger objects. Azure has the highest limit, with 190.7 TiB.
MAX_LENGTH: Final = 2**48
_DELETED: Final = "deleted"
# Columns of entries that `build_hashes` needs.
_HASHED: Final = ["container", "storage", "kind", "key", "address", "size_bytes"]
# The same rule as `is_file_entry`, in SQL.
IS_FILE_ENTRY: Final = f"not is_container and (entry_status is null or entry_status <> '{_DELETED}')"


def is_file_entry(entries: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return a mask of entries whose files are live if their container is live.

    Args:
        entries: The columns `is_container` and `entry_status` of `manifest_entries`.
    """
    is_deleted = pc.fill_null(pc.equal(entries.column("entry_status"), _DELETED), fill_value=False)
    return pc.invert(pc.or_(entries.column("is_container"), is_deleted))


def possible_lengths(lengths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Remove lengths (in bytes) that no object can have, because their sums would overflow."""
    is_possible = pc.and_(pc.greater_equal(lengths, 0), pc.less_equal(lengths, MAX_LENGTH))
    return pc.if_else(is_possible, lengths, pa.scalar(None, pa.int64()))


def loose_form(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Normalize keys so that different encodings of the same file name become equal.

    The result is in lower case, because disks may ignore case. It is used to find all keys that may
    refer to the same file. `exact_comparison` then decides whether they do.
    """
    return pc.utf8_lower(loosen_spelling(keys))


def build_hashes(entries: pa.RecordBatch) -> pa.RecordBatch:
    """Hash the keys of file entries.

    Args:
        entries: Columns of `manifest_entries`.

    Returns:
        Rows with the `HASHES` columns.
    """
    files = entries.select(_HASHED).filter(is_file_entry(entries))
    keys = files.column("key")
    loose = loose_form(keys)
    respelled = pc.fill_null(pc.not_equal(loose, keys), fill_value=False)
    columns = {
        "key_hash": pa.array(xxhash64(pc.coalesce(keys, files.column("address")) if keys.null_count else keys)),
        "loose_hash": pc.replace_with_mask(pa.nulls(files.num_rows, pa.int64()), respelled, pa.array(xxhash64(loose.filter(respelled)))),
    }
    arrays = [columns[name] if name in columns else files.column(name) for name in HASHES.names]
    return pa.RecordBatch.from_arrays(arrays, schema=HASHES)
