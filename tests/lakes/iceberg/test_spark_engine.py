"""Iceberg's own runtime agrees: it removes the same schemas and specs, and reads the published history."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

from gc_assets.lakes.protocol import PRUNING
from tests.depth import full_suite_only
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, DAY, START
from tests.lakes.iceberg.published_histories import Publisher, expired_snapshot, snapshot
from tests.lakes.iceberg.random_evolutions import evolve, lake_with_pruning, plan_all, schema_ids, spec_ids
from tests.lakes.iceberg.spark_engine import run_sql

pytestmark = full_suite_only

TABLES = 30
# Iceberg's default for history.expire.max-snapshot-age-ms.
MAX_AGE = timedelta(days=5)


def test_plan_removes_the_same_schemas_and_specs_as_spark(tmp_path: Path) -> None:
    builder, chance = LakeBuilder(tmp_path), random.Random(11)
    tables = [builder.table(f"db.t{number}", START) for number in range(TABLES)]
    for table in tables:
        for day in range(1, 10):
            evolve(table, chance, START + day * DAY)
    planned: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for action in plan_all(lake_with_pruning(builder))[0]:
        if action.action in PRUNING:
            planned[action.table_name or ""].add((action.action, action.snapshot_id))
    before = {table.name: (schema_ids(table.table), spec_ids(table.table)) for table in tables}
    older_than = f"TIMESTAMP '{AS_OF - MAX_AGE:%Y-%m-%d %H:%M:%S}'"
    call = "CALL {{catalog}}.system.expire_snapshots(table => '{0}', older_than => {1}, retain_last => 1, clean_expired_metadata => true)"
    run_sql(builder, [call.format(table.name, older_than) for table in tables])
    removed: dict[str, set[tuple[str, str]]] = {}
    for table in tables:
        schemas, specs = before[table.name]
        removed[table.name] = {("remove_schema", str(number)) for number in schemas - schema_ids(table.table)}
        removed[table.name] |= {("remove_spec", str(number)) for number in specs - spec_ids(table.table)}
    assert {name: items for name, items in removed.items() if items} == dict(planned)
    assert {action for items in removed.values() for action, _ in items} == set(PRUNING)


def test_spark_reads_the_published_history(tmp_path: Path) -> None:
    publisher = Publisher(LakeBuilder(tmp_path))
    publisher.publish(snapshot(1), snapshot(2), snapshot(3))
    publisher.publish(expired_snapshot(1), snapshot(2), snapshot(3))
    query = "SELECT snapshot_id, summary['added-records'] AS records, plan_id FROM {catalog}.gc.snapshot_history WHERE expired"
    assert run_sql(publisher.builder, [query]) == [[{"snapshot_id": 1, "records": "1", "plan_id": "p1"}]]
