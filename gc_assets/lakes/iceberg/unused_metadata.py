"""Find the schemas and partition specs that no retained snapshot needs.

The functions are pure, except that they read manifest lists.

Source: `RemoveSnapshots.cleanExpiredMetadata` of Apache Iceberg 1.11. A schema is used if it is
current or belongs to a retained snapshot. Unlike Iceberg, a retained snapshot keeps all schemas if
it has no schema id, as old writers make it, or may have equality deletes. Its manifest list is read
too, because iceberg-rust may write wrong totals (apache/iceberg-rust #2390, #2576). A partition
spec is used if it is the default, or a manifest of a retained snapshot has it. Sort orders are
kept, because no catalog can remove them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from gc_assets.core.claims import find_table_location
from gc_assets.core.errors import GcError
from gc_assets.lakes.iceberg.manifests import ListSummary
from gc_assets.lakes.iceberg.metadata import Evolution
from gc_assets.lakes.protocol import REMOVE_SCHEMA, REMOVE_SPEC, RETAINED, Action, CommitSource, is_editable

# Key in a frozen source's properties. It is only set for tables with more than one schema or spec.
EVOLUTION: Final = "evolution"
_SCHEMA_ID: Final = "schema-id"
# If one of these totals is 0 in a summary, the snapshot has no equality deletes.
_DELETE_TOTALS: Final = ("total-equality-deletes", "total-delete-files")
_REASONS: Final[Mapping[Action, str]] = {
    REMOVE_SCHEMA: "no retained snapshot has schema {}, and it is not current",
    REMOVE_SPEC: "no manifest of a retained snapshot has partition spec {}, and it is not the default",
}

# Function that returns the summaries of manifest lists, given their addresses.
ReadLists = Callable[[Sequence[str]], Iterable[ListSummary]]


def write_evolution(evolution: Evolution) -> dict[str, str]:
    """Return the frozen property for a table that has more than one schema or spec."""
    if len(evolution.schemas) < 2 and len(evolution.specs) < 2:
        return {}
    values = (sorted(evolution.schemas), evolution.current_schema, sorted(evolution.specs), evolution.default_spec)
    return {EVOLUTION: json.dumps(values)}


def read_evolution(properties: Mapping[str, str]) -> Evolution:
    schemas, current, specs, default = json.loads(properties.get(EVOLUTION, "[[], null, [], null]"))
    return Evolution(frozenset(schemas), current, frozenset(specs), default)


@dataclass(frozen=True, slots=True)
class UsedMetadata:
    """Schemas and partition specs that snapshots use, with the current schema and the default spec."""

    schemas: frozenset[int]
    specs: frozenset[int]


def read_needed_schema(summary: Mapping[str, str]) -> str | None:
    """Return the id of the schema needed by a snapshot, or None if it may need all schemas.

    An equality delete file refers to columns by id, and readers look up a dropped column in earlier
    schemas.
    """
    has_no_deletes = any(summary.get(name) == "0" for name in _DELETE_TOTALS)
    return summary.get(_SCHEMA_ID) if has_no_deletes else None


def find_used(evolution: Evolution, schema_ids: Iterable[str | None], lists: Sequence[str], read: ReadLists) -> UsedMetadata:
    """Find the schemas and specs used by snapshots.

    Args:
        evolution: The schemas and specs of the table.
        schema_ids: The schema needed by each snapshot, or None if it may need all schemas.
        lists: Addresses of their manifest lists, the newest last.
        read: Reads lists. It is not called any more when all schemas and specs of the table have
            been found.

    Raises:
        GcError, OSError: If a list cannot be read.
    """
    named = set(schema_ids)
    is_known = all(value is not None and value.isdecimal() for value in named)
    schemas = {int(value) for value in named if value is not None} if is_known else set(evolution.schemas)
    specs = set[int]() if evolution.default_spec is None else {evolution.default_spec}
    unread = list(dict.fromkeys(reversed(lists)))
    schemas |= set[int]() if evolution.current_schema is None else {evolution.current_schema}
    while unread and not (evolution.specs <= specs and evolution.schemas <= schemas):
        batch, unread = unread[:_BATCH], unread[_BATCH:]
        for found in read(batch):
            specs |= found.specs
            if found.has_deletes:
                schemas |= evolution.schemas
    return UsedMetadata(frozenset(schemas), frozenset(specs))


_BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class UnreadRegistration:
    """A table name in a catalog, for a table that cannot be read.

    Attributes:
        name: The name.
        address: Address of its metadata.
        table_uuid: Its uuid, or None if it is not found in the metadata.
    """

    name: str
    address: str
    table_uuid: str | None

    def may_be(self, source: CommitSource) -> bool:
        """Check if this may be another registration of the given table."""
        if self.table_uuid is not None:
            return self.table_uuid == source.table_uuid
        return find_table_location(self.address) == find_table_location(source.address)


def plan_pruning(
    sources: Iterable[CommitSource],
    commits: pa.Table,
    reachable: pa.Table,
    read: ReadLists,
    unread: Sequence[UnreadRegistration] = (),
) -> tuple[list[dict[str, Any]], list[str]]:
    """Plan the removal of unused schemas and specs. Returns the actions, and notes on skipped
    tables.

    Args:
        sources: The frozen tables.
        commits: Their snapshots, with the columns of `commit_graph`.
        reachable: The state of each snapshot, in the order of `commits`.
        read: Reads manifest lists.
        unread: Tables of the catalog that cannot be read.
    """
    by_uuid: dict[str, list[CommitSource]] = defaultdict(list)
    for source in sources:
        by_uuid[source.table_uuid or ""].append(source)
    evolved = {uuid: own for uuid, own in by_uuid.items() if any(EVOLUTION in source.properties for source in own)}
    rows_of = _group_rows(commits, evolved)
    states = reachable.column("state").to_pylist() if evolved else []
    actions, notes = list[dict[str, Any]](), list[str]()
    for uuid, own in evolved.items():
        if not all(map(is_editable, own)):
            continue
        name = own[0].table_name
        if len(own) > 1:
            notes.append(f"table {name} is registered {len(own)} times, so no schema or partition spec of it is removed")
            continue
        if (twin := next((item.name for item in unread if item.may_be(own[0])), None)) is not None:
            notes.append(
                f"table {name}: no schema or partition spec is removed, because table {twin} cannot be read and may be another "
                "registration of it; repair that table, or drop it from the catalog"
            )
            continue
        evolution = read_evolution(own[0].properties)
        rows = commits.take([row for row in rows_of.get(uuid, ()) if states[row] == RETAINED]).sort_by("committed_at")
        try:
            used = find_used(evolution, *_read_snapshots(rows), read)
        except (GcError, OSError) as error:
            notes.append(f"table {name}: no schema or partition spec is removed, because a manifest list cannot be read: {error}")
            continue
        for action, unused in _find_unused(evolution, used):
            identity = {"table_uuid": uuid, "table_name": name, "snapshot_id": str(unused), "action": action}
            actions.append({**identity, "reason": _REASONS[action].format(unused)})
    return actions, notes


def _find_unused(evolution: Evolution, used: UsedMetadata) -> Iterator[tuple[Action, int]]:
    # Without a current schema or a default spec, the metadata is older than these lists.
    if evolution.current_schema is not None:
        for number in sorted(evolution.schemas - used.schemas):
            yield REMOVE_SCHEMA, number
    if evolution.default_spec is not None:
        for number in sorted(evolution.specs - used.specs):
            yield REMOVE_SPEC, number


def _group_rows(commits: pa.Table, uuids: Iterable[str]) -> dict[str, list[int]]:
    wanted, found = set(uuids), defaultdict[str, list[int]](list)
    if wanted:
        for row, uuid in enumerate(commits.column("table_uuid").to_pylist()):
            if uuid in wanted:
                found[uuid].append(row)
    return found


def _read_snapshots(rows: pa.Table) -> tuple[list[str | None], list[str]]:
    """Return the schemas needed by snapshots, and the addresses of their manifest lists."""
    summaries = [dict(summary or ()) for summary in rows.column("summary").to_pylist()]
    roots = rows.column("content_roots").to_pylist()
    return list(map(read_needed_schema, summaries)), [items[0]["address"] for items in roots if items]
