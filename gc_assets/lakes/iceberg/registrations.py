"""Registrations of tables in a catalog, with their refs, commit sources and snapshot graph.

A registration is a table under one of its names. No function in this module reads the catalog or a
store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gc_assets.core.graph import merge_parents
from gc_assets.lakes.iceberg.catalog_policy import CatalogPolicy
from gc_assets.lakes.iceberg.metadata import GC_ENABLED, MAIN, MAX_REF_AGE_MS, TABLE_SETTINGS, TableMetadata
from gc_assets.lakes.iceberg.retention import COLLECT, WRITABLE
from gc_assets.lakes.iceberg.unused_metadata import write_evolution
from gc_assets.lakes.protocol import PROTECTED, CommitSource, Ref
from gc_assets.state.schemas import COMMIT_GRAPH


@dataclass(frozen=True, slots=True)
class Registration:
    """A table under one of its names in the catalog.

    The same table may be registered under two names, with different metadata files.

    Attributes:
        name: `namespace.table`.
        table: Parsed metadata.
        size_bytes: Size of the metadata file in bytes.
        matched: True if a pattern of `tables` matches the name.
        writable: False if pyiceberg cannot commit to the table. In this case the whole history is
            retained, because every plan to edit it would fail.
        digest: SHA-256 of the metadata file.
        policy: The catalog's retention policy for the table. It is set if `retention.source` is
            `catalog`, or if the catalog has refs that the lake does not read.
    """

    name: str
    table: TableMetadata
    size_bytes: int
    matched: bool
    writable: bool = True
    digest: str | None = None
    policy: CatalogPolicy | None = None

    @property
    def exclusion(self) -> str | None:
        """Reason for keeping all files of the table, or None."""
        if not self.table.gc_enabled:
            return f"gc.enabled is {self.table.properties[GC_ENABLED]}"
        if not self.matched:
            return "no pattern of `tables` matches it"
        return None if self.policy is None else self.policy.protect

    @property
    def collect(self) -> bool:
        return self.exclusion is None


def list_refs(item: Registration) -> Iterator[Ref]:
    """Yield every branch and tag. For a table without refs, yield `main` without a head.

    A branch that must not be deleted as idle gets the `PROTECTED` property with the reason.
    """
    for ref in item.table.refs:
        reason = find_protection(item, ref.name, ref.settings) if ref.ref_type == "branch" else None
        properties = ref.settings if reason is None else {**ref.settings, PROTECTED: reason}
        yield Ref(ref.name, ref.ref_type, ref.snapshot_id, item.table.table_uuid, item.name, properties)
    if not item.table.refs:
        yield Ref(MAIN, "branch", None, item.table.table_uuid, item.name)


def find_protection(item: Registration, branch: str, settings: Mapping[str, str]) -> str | None:
    """Return the reason to keep a branch even if it is idle, or None.

    Args:
        item: The registration of the table.
        branch: Name of the branch.
        settings: Retention settings of the branch itself.
    """
    if branch == MAIN:
        return "it is the main branch"
    if MAX_REF_AGE_MS in settings:
        return f"its own {MAX_REF_AGE_MS} applies"
    if not item.collect:
        return f"table {item.name} is not collected: {item.exclusion}"
    return None if item.writable else f"pyiceberg cannot commit to table {item.name}"


def build_source(item: Registration) -> CommitSource:
    """Build the table's commit source, including the properties that retention needs."""
    properties = {key: value for key, value in item.table.properties.items() if key in {*TABLE_SETTINGS, GC_ENABLED}}
    own = {COLLECT: "true" if item.collect else "false"} | ({} if item.writable else {WRITABLE: "false"})
    own |= {} if item.policy is None else item.policy.as_property()
    evolution = write_evolution(item.table.evolution)
    return CommitSource(
        item.table.address, item.table.table_uuid, item.name, properties={**properties, **own, **evolution}, digest=item.digest
    )


def build_graph(items: Iterable[Registration]) -> pa.Table:
    """Build one `commit_graph` row for each distinct snapshot of all registrations of a table.

    If registrations list different parents of a snapshot, its row contains all of them. Only the
    columns that retention reads are set.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for item in items:
        for snapshot in item.table.snapshots:
            row: dict[str, Any] = {
                "table_uuid": item.table.table_uuid,
                "commit_id": snapshot.snapshot_id,
                "parents": [] if snapshot.parent_id is None else [snapshot.parent_id],
                "committed_at": snapshot.committed_at,
                "table_name": item.name,
                "parents_differ": False,
            }
            first = rows.setdefault((item.table.table_uuid, snapshot.snapshot_id), row)
            parents, differ = merge_parents([first["parents"], row["parents"]])
            first |= {"parents": parents, "parents_differ": differ or first["parents_differ"]}
    return pa.Table.from_pylist(list(rows.values()), schema=COMMIT_GRAPH.schema)
