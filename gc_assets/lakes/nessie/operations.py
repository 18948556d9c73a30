"""Serialize the operations of Nessie commits as JSON lines, and parse them into columns.

The commit graph stores these lines in the summaries of commits, so that retention can be computed
from published tables alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from gc_assets.core.chains import Ints
from gc_assets.lakes.nessie.models import Content, Entry, Operation

# Summary key for the operations of a commit, with one JSON object per line.
OPERATIONS: Final = "operations"
PUT: Final = "PUT"
DELETE: Final = "DELETE"
TABLE: Final = "ICEBERG_TABLE"
VIEW: Final = "ICEBERG_VIEW"
NAMESPACE: Final = "NAMESPACE"
# Files can be listed for contents of these types.
LISTED: Final = (TABLE, VIEW)

# If a key is deleted, its row has a null `type`.
_LINE: Final = pa.schema(
    [
        ("key", pa.string()),
        ("id", pa.string()),
        ("type", pa.string()),
        ("location", pa.string()),
        ("snapshot", pa.string()),
    ]
)


def key_name(elements: Iterable[str]) -> str:
    """Join the elements of a content key with dots, so that different keys have different names.

    As in SQL, backticks quote an element that is empty or contains a dot or a backtick.
    """
    return ".".join(f"`{part.replace('`', '``')}`" if not part or "." in part or "`" in part else part for part in elements)


def put_line(name: str, content: Content) -> str:
    """Serialize a put operation, or an entry of a state, as one JSON line."""
    snapshot = None if content.snapshot_id is None or content.snapshot_id < 0 else str(content.snapshot_id)
    location = content.metadata_location or ("" if content.type in LISTED else None)  # As in `build_content_roots`.
    line = {"key": name, "id": content.id, "type": content.type, "location": location, "snapshot": snapshot}
    return json.dumps(line)


def operation_lines(operations: Iterable[Operation]) -> Iterator[str]:
    """Yield one JSON line for each put or delete operation. `UNCHANGED` operations are skipped."""
    for operation in operations:
        name = key_name(operation.key.elements)
        if operation.type == PUT and operation.content is not None:
            yield put_line(name, operation.content)
        elif operation.type == DELETE:
            yield json.dumps({"key": name, "id": None, "type": None, "location": None, "snapshot": None})


def state_lines(entries: Iterable[Entry]) -> list[str]:
    """Serialize a complete state as sorted JSON lines of put operations."""
    return sorted(put_line(key_name(entry.key.elements), entry.content) for entry in entries)


def row_lines(puts: pa.Table) -> list[str]:
    """Convert rows of `operation_table` back to JSON lines, sorted as in `state_lines`."""
    return sorted(json.dumps(row) for row in puts.select(_LINE.names).to_pylist())


def operation_table(operations: list[str | None]) -> tuple[pa.Table, Ints]:
    """Parse the operations of all commits.

    Returns:
        A table with one row per operation, and the position of each row's commit.
    """
    counts = np.array([text.count("\n") + 1 if text else 0 for text in operations], np.int32)
    commit = np.repeat(np.arange(len(operations), dtype=np.int32), counts)
    if not len(commit):
        return _LINE.empty_table(), commit
    lines = "\n".join(text for text in operations if text).encode()
    # A block must be able to contain the longest line. Otherwise its size only affects parallelism.
    read_options = arrow_json.ReadOptions(block_size=max(2**20, max(map(len, filter(None, operations))) * 4 + 1))
    parse_options = arrow_json.ParseOptions(explicit_schema=_LINE, newlines_in_values=False)
    return arrow_json.read_json(pa.BufferReader(lines), read_options=read_options, parse_options=parse_options), commit
