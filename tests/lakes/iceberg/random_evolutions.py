"""Tables whose schemas and partition specs evolve at random, and plans that remove unused ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.state.schemas import COMMIT_GRAPH
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, GRACE_CUTOFF

REMOVE = {"unused_metadata": "remove"}


def lake_with_pruning(builder: LakeBuilder, **retention: Any) -> IcebergLake:
    return IcebergLake(builder.config(retention={**REMOVE, **retention}), LocalObjects())


def plan_all(read: IcebergLake, as_of: datetime = AS_OF) -> tuple[list[ExpiryAction], tuple[str, ...]]:
    """Return all planned edits, and the notes of the policy."""
    refs = read.freeze(as_of)
    rows = [
        {
            "table_uuid": commit.table_uuid,
            "commit_id": commit.commit_id,
            "parents": list(commit.parents),
            "committed_at": commit.committed_at,
            "table_name": commit.table_name,
            "summary": list(commit.summary.items()),
            "content_roots": [{"address": root.address} for root in commit.content_roots],
        }
        for source in refs.sources
        for commit in read.commits(source)
    ]
    distinct = {(row["table_uuid"], row["commit_id"]): row for row in rows}
    commits = pa.Table.from_pylist(list(distinct.values()), schema=COMMIT_GRAPH.schema)
    found = read.retain(refs, commits, as_of, GRACE_CUTOFF)
    return [ExpiryAction(**row) for row in found.expiry.to_pylist()], found.notes


def add_column(table: TableBuilder, at: datetime, name: str) -> None:
    with table.lake.at(at), table.table.update_schema() as update:
        update.add_column(name, StringType())


def partition_by(table: TableBuilder, at: datetime, column: str, name: str) -> None:
    with table.lake.at(at), table.table.update_spec() as update:
        update.add_field(column, IdentityTransform(), name)


def schema_ids(table: Table) -> set[int]:
    return {schema.schema_id for schema in table.metadata.schemas}


def spec_ids(table: Table) -> set[int]:
    return {spec.spec_id for spec in table.metadata.partition_specs}


def evolve(table: TableBuilder, chance: random.Random, at: datetime) -> None:
    """Make one random change."""
    number = len(table.table.metadata.schemas)

    def branch() -> None:
        if table.table.metadata.snapshots:
            target = chance.choice(table.table.metadata.snapshots)
            table.tag(at, f"tag-{at:%j}", str(target.snapshot_id))

    def partition() -> None:
        fields = table.table.spec().fields
        with table.lake.at(at), table.table.update_spec() as update:
            if fields:
                update.remove_field(fields[0].name)
            else:
                update.add_field("part", IdentityTransform(), f"p{at:%j}")

    changes: list[Callable[[], object]] = [
        lambda: table.append(at),
        lambda: table.overwrite(at),
        lambda: add_column(table, at, f"c{number}"),
        partition,
        branch,
    ]
    chance.choice(changes)()
