"""Expire random histories with random settings, and compare them with the oracle of the stage tests.

`tests/stages/delete/test_expire_killed.py` applies a plan over 300 of them in repeatedly killed processes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from benchmarks.iceberg_history import HistoryWriter, Snap
from gc_assets.lakes.protocol import DELETE_REF, REMOVE_SNAPSHOT, ExpiryAction
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, DAY, GRACE_CUTOFF, START, lake, plan_expiry, run_expiry, verdicts
from tests.stages.oracles import iceberg_retained, local_path

HISTORIES = 60
DAY_MS = 24 * 3600 * 1000


def random_history(luck: random.Random, as_of: datetime = AS_OF, *, statistics: bool = True) -> dict[str, Any]:
    ids = luck.sample(range(1, 10**18), luck.randint(1, 12))
    snapshots = []
    for index, snapshot_id in enumerate(ids):
        # Mostly chains, with times in any order and parents that an earlier expiry removed.
        parent = ids[index - 1] if index and luck.random() < 0.7 else luck.choice([None, 77, *ids[:index]])
        snapshots.append(
            Snap(snapshot_id, parent, as_of - luck.choice([1, 2, 3, 4, 5, 6, 9, 20]) * DAY, statistics and luck.random() < 0.3)
        )

    def settings(*names: str) -> dict[str, int]:
        values = {"min-snapshots-to-keep": luck.randint(1, 4)}
        return {name: values.get(name, luck.choice([1, 2, 5, 8]) * DAY_MS) for name in names if luck.random() < 0.4}

    refs = {"main": {"snapshot-id": luck.choice(ids), "type": "branch", **settings("min-snapshots-to-keep", "max-snapshot-age-ms")}}
    for name in luck.sample(["dev", "rel", "v1", "v2", "v3"], luck.randint(0, 5)):
        own = ("max-ref-age-ms",) if name.startswith("v") else ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
        refs[name] = {"snapshot-id": luck.choice(ids), "type": "tag" if name.startswith("v") else "branch", **settings(*own)}
    table = settings("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
    properties = {f"history.expire.{name}": str(value) for name, value in table.items()}
    if luck.random() < 0.05:
        properties["gc.enabled"] = "false"
    log = [*luck.choices(ids, k=luck.randint(0, 6)), refs["main"]["snapshot-id"]]
    return {"snapshots": snapshots, "refs": refs, "properties": properties, "log": log}


def document(table: Table) -> dict[str, Any]:
    return json.loads(Path(local_path(table.metadata_location)).read_bytes())


def trim_log(log: list[dict[str, Any]], kept: set[int]) -> list[dict[str, Any]]:
    gaps = [index for index, entry in enumerate(log) if entry["snapshot-id"] not in kept]
    return log[gaps[-1] + 1 :] if gaps else log


def test_expiry_of_random_histories_matches_the_oracle(tmp_path: Path) -> None:
    builder, luck = LakeBuilder(tmp_path), random.Random(4)
    writer = HistoryWriter(builder, START)
    uuids = {f"db.t{index}": writer.table(f"t{index}", **random_history(luck)) for index in range(HISTORIES)}
    before = {name: document(builder.catalog.load_table(name)) for name in uuids}
    read = lake(builder)
    actions = plan_expiry(read)

    outcomes = run_expiry(read, actions)

    assert set(verdicts(outcomes)) == {"done"}
    check_expired_tables(builder, before, actions)


def check_expired_tables(
    builder: LakeBuilder,
    before: dict[str, dict[str, Any]],
    actions: Iterable[ExpiryAction],
    as_of: datetime = AS_OF,
    grace_cutoff: datetime = GRACE_CUTOFF,
) -> None:
    """Compare the plan and the tables with the oracle, and read all retained snapshots.

    `before` has the metadata of each table before the expiry, by name.
    """
    by_uuid: dict[str, set[tuple[str, str, str | None]]] = {old["table-uuid"]: set() for old in before.values()}
    for action in actions:
        if action.table_uuid in by_uuid:
            by_uuid[action.table_uuid].add((action.action, action.snapshot_id, action.ref_name))
    for name, old in before.items():
        collected = old["properties"].get("gc.enabled") != "false"
        kept = {snapshot["snapshot-id"] for snapshot in old["snapshots"]}
        refs = old["refs"]
        if collected:
            kept = iceberg_retained(old, as_of, grace_cutoff)
            refs = {ref_name: ref for ref_name, ref in refs.items() if is_ref_kept(old, ref_name, ref, as_of)}
        assert by_uuid[old["table-uuid"]] == {
            *((REMOVE_SNAPSHOT, str(item["snapshot-id"]), None) for item in old["snapshots"] if item["snapshot-id"] not in kept),
            *((DELETE_REF, str(ref["snapshot-id"]), ref_name) for ref_name, ref in old["refs"].items() if ref_name not in refs),
        }, name
        table = builder.catalog.load_table(name)
        new = document(table)
        # Retained snapshots are unchanged, including the ids of removed parents.
        assert new["snapshots"] == [snapshot for snapshot in old["snapshots"] if snapshot["snapshot-id"] in kept], name
        assert new["refs"] == refs, name
        assert new["snapshot-log"] == trim_log(old["snapshot-log"], kept), name
        for kind in ("statistics", "partition-statistics"):
            assert [item["snapshot-id"] for item in new[kind]] == [i["snapshot-id"] for i in old[kind] if i["snapshot-id"] in kept], name
        assert {key: new[key] for key in ("table-uuid", "schemas", "current-snapshot-id", "last-sequence-number", "properties")} == {
            key: old[key] for key in ("table-uuid", "schemas", "current-snapshot-id", "last-sequence-number", "properties")
        }
        for snapshot_id in kept:
            assert table.scan(snapshot_id=snapshot_id).count() == 2, name


def is_ref_kept(table: dict[str, Any], name: str, ref: dict[str, Any], as_of: datetime) -> bool:
    stamp = next(snapshot["timestamp-ms"] for snapshot in table["snapshots"] if snapshot["snapshot-id"] == ref["snapshot-id"])
    limit = ref.get("max-ref-age-ms", table["properties"].get("history.expire.max-ref-age-ms"))
    return name == "main" or limit is None or int(as_of.timestamp() * 1000) - stamp <= int(limit)
