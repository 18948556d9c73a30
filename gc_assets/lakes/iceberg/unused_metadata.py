"""Find schemas and partition specs that no retained snapshot needs.

Apart from reading manifest lists, all functions are pure.

Source: `RemoveSnapshots.cleanExpiredMetadata` of Apache Iceberg 1.11. A schema is used if it is the
current one or belongs to a retained snapshot. Unlike Iceberg, we keep all schemas if a retained
snapshot does not record its schema, as with old writers, or may have equality deletes. To find
equality deletes, manifest lists are read as well, because iceberg-rust may write wrong totals
(apache/iceberg-rust #2390, #2576). A partition spec is used if it is the default, or a manifest of
a retained snapshot refers to it. Sort orders are kept, because no catalog can remove them.
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

# Key in `CommitSource.properties`. It is set if the table has more than one schema or spec.
EVOLUTION: Final = "evolution"
_SCHEMA_ID: Final = "schema-id"
# If a snapshot's summary contains one of these totals as 0, it does not have equality deletes.
_DELETE_TOTALS: Final = ("total-equality-deletes", "total-delete-files")
_REASONS: Final[Mapping[Action, str]] = {
    REMOVE_SCHEMA: "no retained snapshot uses schema {}, and it is not the current one",
    REMOVE_SPEC: "no manifest of a retained snapshot uses partition spec {}, and it is not the default",
}

# Summarizes the manifest lists at the given addresses.
ReadLists = Callable[[Sequence[str]], Iterable[ListSummary]]


def write_evolution(evolution: Evolution) -> dict[str, str]:
    """Serialize the schemas and specs of a table to a property in `CommitSource.properties`.

    The result is empty if the table has at most one schema and one spec, because none is unused.
    """
    if len(evolution.schemas) < 2 and len(evolution.specs) < 2:
        return {}
    values = (sorted(evolution.schemas), evolution.current_schema, sorted(evolution.specs), evolution.default_spec)
    return {EVOLUTION: json.dumps(values)}


def read_evolution(properties: Mapping[str, str]) -> Evolution:
    schemas, current, specs, default = json.loads(properties.get(EVOLUTION, "[[], null, [], null]"))
    return Evolution(frozenset(schemas), current, frozenset(specs), default)


@dataclass(frozen=True, slots=True)
class UsedMetadata:
    """Schema ids and partition spec ids in use, including the current schema and the default spec."""

    schemas: frozenset[int]
    specs: frozenset[int]


def read_needed_schema(summary: Mapping[str, str]) -> str | None:
    """Return the schema id that a snapshot needs, or None if it may need all schemas.

    It may need all schemas if it has equality delete files. They refer to columns by id, and
    readers look up a dropped column in earlier schemas.
    """
    has_no_deletes = any(summary.get(name) == "0" for name in _DELETE_TOTALS)
    return summary.get(_SCHEMA_ID) if has_no_deletes else None


def find_used(evolution: Evolution, schema_ids: Iterable[str | None], lists: Sequence[str], read: ReadLists) -> UsedMetadata:
    """Find the schemas and partition specs that snapshots use.

    Args:
        evolution: All schema ids and spec ids of the table.
        schema_ids: Schema that each snapshot needs, or None if it may need all schemas.
        lists: Addresses of the snapshots' manifest lists, the newest last.
        read: Reads manifest lists. Reading stops when all schemas and specs are known to be used.

    Raises:
        GcError, OSError: If a manifest list cannot be read.
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
    """A registration of a table whose metadata cannot be read.

    Attributes:
        name: Name in the catalog.
        address: Address of the metadata.
        table_uuid: UUID of the table, or None if it was not found in the metadata.
    """

    name: str
    address: str
    table_uuid: str | None

    def may_be(self, source: CommitSource) -> bool:
        """Return True if this may be another registration of the given table."""
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
    """Plan the removal of unused schemas and partition specs.

    Args:
        sources: Tables read at the start of the run.
        commits: Snapshots of these tables, with the columns of `commit_graph`.
        reachable: Retention decision for each snapshot, in the order of `commits`.
        read: Reads manifest lists.
        unread: Tables of the catalog that cannot be read.

    Returns:
        The planned actions as `expiry_plan` rows, and notes about tables that were skipped.
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
    # If the current schema or default spec is missing, the metadata predates these lists.
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
    """Return the schema id that each snapshot needs, and the addresses of the manifest lists."""
    summaries = [dict(summary or ()) for summary in rows.column("summary").to_pylist()]
    roots = rows.column("content_roots").to_pylist()
    return list(map(read_needed_schema, summaries)), [items[0]["address"] for items in roots if items]
