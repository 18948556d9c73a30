"""Writes what a commit did to the keys of a ref as text that a table can hold, and reads it back as
columns.

Pure. Each operation is one line of JSON. The commit graph keeps the lines with their commit, so
retention is a function of tables.
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

# Key of a commit's summary that holds its operations, one JSON object a line.
OPERATIONS: Final = "operations"
PUT: Final = "PUT"
DELETE: Final = "DELETE"
TABLE: Final = "ICEBERG_TABLE"
VIEW: Final = "ICEBERG_VIEW"
NAMESPACE: Final = "NAMESPACE"
# The types whose files can be listed.
LISTED: Final = (TABLE, VIEW)

# `type` is null where the key was deleted.
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
    """Joins the elements by dots. An element that is empty, or holds a dot or a backtick, stands in
    backticks, as in SQL. No two keys share a name.
    """
    return ".".join(f"`{part.replace('`', '``')}`" if not part or "." in part or "`" in part else part for part in elements)


def put_line(name: str, content: Content) -> str:
    """Returns the line of a put, or of an entry of a state."""
    snapshot = None if content.snapshot_id is None or content.snapshot_id < 0 else str(content.snapshot_id)
    line = {"key": name, "id": content.id, "type": content.type, "location": content.metadata_location, "snapshot": snapshot}
    return json.dumps(line)


def operation_lines(operations: Iterable[Operation]) -> Iterator[str]:
    """Yields one line per put or delete. The other types of API v2 (`UNCHANGED`) change nothing."""
    for operation in operations:
        name = key_name(operation.key.elements)
        if operation.type == PUT and operation.content is not None:
            yield put_line(name, operation.content)
        elif operation.type == DELETE:
            yield json.dumps({"key": name, "id": None, "type": None, "location": None, "snapshot": None})


def state_lines(entries: Iterable[Entry]) -> list[str]:
    """Returns a whole state as puts, in the order of their lines."""
    return sorted(put_line(key_name(entry.key.elements), entry.content) for entry in entries)


def row_lines(puts: pa.Table) -> list[str]:
    """Returns rows of `operation_table` as the lines they came from, in the order of `state_lines`."""
    return sorted(json.dumps(row) for row in puts.select(_LINE.names).to_pylist())


def operation_table(operations: list[str | None]) -> tuple[pa.Table, Ints]:
    """Returns the operations of all commits as the columns of a line, and for each row the position
    of its commit.
    """
    counts = np.array([text.count("\n") + 1 if text else 0 for text in operations], np.int32)
    commit = np.repeat(np.arange(len(operations), dtype=np.int32), counts)
    if not len(commit):
        return _LINE.empty_table(), commit
    lines = "\n".join(text for text in operations if text).encode()
    # A block must hold the longest line. More blocks mean more threads, not other rows.
    reading = arrow_json.ReadOptions(block_size=max(2**20, max(map(len, filter(None, operations))) * 4 + 1))
    parsing = arrow_json.ParseOptions(explicit_schema=_LINE, newlines_in_values=False)
    return arrow_json.read_json(pa.BufferReader(lines), read_options=reading, parse_options=parsing), commit
