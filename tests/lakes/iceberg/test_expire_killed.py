from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.iceberg_history import HistoryWriter, Snap
from gc_assets.lakes.iceberg import catalog, expire  # noqa: F401 - imported before the fork, the lake imports them late
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import example_count, in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, DAY, GRACE_CUTOFF, START, lake, plan_expiry, run_expiry, verdicts
from tests.process_kills import KillRounds, kill_at_random
from tests.stages.oracles import iceberg_tables

pytestmark = in_turn

TABLES, SNAPSHOTS, KILLS = 20, 5, example_count(12, 30)


@dataclass(frozen=True)
class Expire:
    """Expire the lake in another process. It opens the lake itself, because a pickled one has no catalog."""

    config: IcebergLakeConfig
    actions: tuple[ExpiryAction, ...]

    def __call__(self) -> None:
        list(IcebergLake(self.config, LocalObjects()).expire(self.actions, AS_OF, GRACE_CUTOFF))


@dataclass(frozen=True)
class Snapshots:
    """Count the snapshots in the JSON of each table. Raises if a metadata file is incomplete."""

    root: Path

    def __call__(self) -> dict[str, int]:
        tables = iceberg_tables(self.root / "catalog.db")
        return {name: len(json.loads(Path(metadata).read_bytes())["snapshots"]) for name, metadata in tables.items()}


def test_killed_expiry_leaves_valid_tables_and_is_completed(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    writer = HistoryWriter(builder, START)
    snapshots = [Snap(index + 1, index or None, START + index * DAY) for index in range(SNAPSHOTS)]
    refs = {"main": {"snapshot-id": SNAPSHOTS, "type": "branch"}, "old": {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 1}}
    for index in range(TABLES):
        writer.table(f"t{index}", snapshots, refs)
    read = lake(builder)
    actions = plan_expiry(read)
    unit = Expire(builder.config(), (replace(actions[0], table_uuid="no table"),))
    work = replace(unit, actions=tuple(actions))
    rounds = kill_at_random(KillRounds(work, Snapshots(tmp_path), KILLS, 0.5, 2, unit), tmp_path / "rounds.pickle")

    counts = [list(item["seen"].values()) for item in rounds]
    assert all(set(count) <= {1, SNAPSHOTS} for count in counts)  # each table is unchanged or complete
    assert sum(item["killed"] for item in rounds) >= 3
    assert any(1 < count.count(SNAPSHOTS) < TABLES for count in counts)  # some processes were killed in between
    outcomes = run_expiry(read, actions)
    assert set(verdicts(outcomes)) <= {"done", "absent"}
    for index in range(TABLES):
        table = TableBuilder(builder, f"db.t{index}").table
        assert [snapshot.snapshot_id for snapshot in table.metadata.snapshots] == [SNAPSHOTS]
        assert set(table.metadata.refs) == {"main"}
        assert table.scan().count() == 2
