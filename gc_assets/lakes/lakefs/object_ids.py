"""Names of ranges and metaranges, which are hashes of their content.

Source: lakeFS `pkg/graveler/sstable/writer.go` and `pkg/ident`. The name is the SHA-256 digest of
the records and of the properties that were passed to the writer. Before each key and value, its
length in decimal digits and a bar are hashed. Properties that the writer itself counts are left
out. lakeFS has used this scheme since commit fd4c1e93d of January 2021, which also moved all tables
to one folder.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.lakes.lakefs.sstable import SSTable

_OBJECT_ID: Final = re.compile("[0-9a-f]{64}")
_COUNTED_BY_THE_WRITER: Final = {b"min_key", b"max_key", b"count", b"estimated_size_bytes"}
_TABLES_OWN: Final = b"rocksdb."
_STRING, _INT64, _STRING_MAP = b"\x01", b"\x02", b"\x04"
_BAR: Final = pa.scalar(b"|")


def is_object_id(text: str) -> bool:
    """Return True if a string has the form of a range's or metarange's name."""
    return _OBJECT_ID.fullmatch(text) is not None


def object_id(table: SSTable) -> str:
    """Compute the name under which lakeFS stores an SSTable with this content."""
    keys, values = table.entries.keys, table.entries.values()
    records = pc.binary_join_element_wise(_digits(keys), keys, _BAR, _digits(values), values, _BAR, pa.scalar(b""))
    content = hashlib.sha256()
    if len(records):
        content.update(memoryview(records.buffers()[2])[: pc.sum(pc.binary_length(records)).as_py()])
    given = {k: v for k, v in table.properties.items() if not k.startswith(_TABLES_OWN) and k not in _COUNTED_BY_THE_WRITER}
    content.update(_STRING_MAP + _number(len(given)))
    for name in sorted(given):
        content.update(_text(name) + _text(given[name]))
    return content.hexdigest()


def _digits(texts: pa.BinaryArray) -> pa.BinaryArray:
    return pc.binary_length(texts).cast(pa.string()).cast(pa.binary())


def _number(value: int) -> bytes:
    return _INT64 + bytes([8]) + value.to_bytes(8, "big")


def _text(value: bytes) -> bytes:
    return _STRING + _number(len(value)) + value
