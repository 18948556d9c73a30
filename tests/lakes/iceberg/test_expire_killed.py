from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

from benchmarks.iceberg_history import HistoryWriter, Snap
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.expiries import DAY, START, expired, lake, planned, verdicts

CHECKOUT = Path(__file__).parents[3]
TABLES, SNAPSHOTS, KILLS = 40, 5, 30


def test_an_expiry_killed_at_any_moment_leaves_whole_tables_and_the_next_one_does_the_rest(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    writer = HistoryWriter(builder, START)
    snapshots = [Snap(index + 1, index or None, START + index * DAY) for index in range(SNAPSHOTS)]
    refs = {"main": {"snapshot-id": SNAPSHOTS, "type": "branch"}, "old": {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 1}}
    for index in range(TABLES):
        writer.table(f"t{index}", snapshots, refs)
    read = lake(builder)
    actions = planned(read)
    (tmp_path / "expiry.pickle").write_bytes(pickle.dumps((read, actions)))

    command = [sys.executable, "-m", "tests.lakes.iceberg.killed_expiries", str(tmp_path), str(KILLS)]
    rounds = json.loads(subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True, timeout=300).stdout)

    counts = [list(item["snapshots"].values()) for item in rounds]
    assert all(set(count) <= {1, SNAPSHOTS} for count in counts)  # each table as it was or as it is to be
    assert sum(item["killed"] for item in rounds) >= 3
    assert any(1 < count.count(SNAPSHOTS) < TABLES for count in counts)  # some fell into the middle
    outcomes = expired(read, actions)
    assert set(verdicts(outcomes)) <= {"done", "absent"}
    for index in range(TABLES):
        table = TableBuilder(builder, f"db.t{index}").table
        assert [snapshot.snapshot_id for snapshot in table.metadata.snapshots] == [SNAPSHOTS]
        assert set(table.metadata.refs) == {"main"}
        assert table.scan().count() == 2
