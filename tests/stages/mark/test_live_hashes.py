"""One pass over hashes counts the live files like a brute-force join of states and entries."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import StateError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark import key_groups, live_hashes
from gc_assets.stages.mark.container_states import route_of
from gc_assets.stages.mark.file_entries import build_hashes
from gc_assets.stages.mark.hash_scan import HashScan
from gc_assets.stages.mark.live_hashes import LiveHashes
from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import EXTERNAL_SIDE, HASHES, STATES

STORAGES = ("disk", "bucket")
KINDS = (Kind.DATA, Kind.POSITION_DELETES)
# Recorded lengths that no object has.
IMPOSSIBLE = (2**63 - 1, 2**62, -1)


class Case(NamedTuple):
    """Random states and entries of one lake."""

    states: list[dict[str, Any]]
    entries: list[dict[str, Any]]


def random_case(chance: Random) -> Case:
    names = [f"m{number}" for number in range(chance.randint(1, 6))]
    entries = [
        {
            "container": chance.choice([*names, "dead"]),
            "storage": chance.choice([*STORAGES, None]),
            "key": f"k{chance.randint(0, 9)}",
            "address": f"a{chance.randint(0, 9)}",
            "kind": chance.choice(KINDS),
            "is_container": False,
            "size_bytes": chance.choice([None, 5, 7, *IMPOSSIBLE]),
            "entry_status": chance.choice([None, "added", "deleted"]),
            "must_exist": chance.choice([True, False]),
        }
        for _ in range(chance.randint(0, 60))
    ]
    entries = [row | ({"key": None} if row["storage"] is None else {}) for row in entries]
    counted = [row for row in entries if row["entry_status"] != "deleted"]
    states = [
        {
            "storage": "disk",
            "key": chance.choice([f"k{chance.randint(0, 9)}", f"metadata/{name}"]),
            "address": name,
            "kind": Kind.MANIFEST,
            "size_bytes": chance.choice([None, 9]),
            "container_size_bytes": 11,
            "must_exist": chance.choice([True, False]),
            "rank": chance.randint(0, 4),
            "commit_id": chance.choice("xyz"),
            "table_uuid": chance.choice([None, "t"]),
            "container": chance.choice([None, "list"]),
            "expands": True,
            "files": sum(row["container"] == name for row in counted),
        }
        for name in names
    ]
    return Case(states, entries)


def count(case: Case) -> dict[tuple[str | None, str, str, str], tuple[int, int]]:
    """Return files and bytes by storage, commit, kind and route, by a join in Python."""
    found = defaultdict[tuple[str | None, str], list[tuple[Any, ...]]](list)
    for state in case.states:
        size = state["size_bytes"] or state["container_size_bytes"]
        witness = (
            state["rank"],
            state["commit_id"],
            state["table_uuid"] or "~",
            state["container"] or "~",
            False,
            state["must_exist"],
            state["kind"],
        )
        found[state["storage"], state["key"]].append((witness, state["kind"], size))
    by_address = {state["address"]: state for state in case.states}
    for row in case.entries:
        if row["container"] in by_address and row["entry_status"] != "deleted":
            state = by_address[row["container"]]
            witness = (
                state["rank"],
                state["commit_id"],
                state["table_uuid"] or "~",
                row["container"],
                True,
                state["must_exist"],
                state["kind"],
            )
            size = 0 if row["size_bytes"] in IMPOSSIBLE else row["size_bytes"] or 0
            found[row["storage"], row["key"] or row["address"]].append((witness, row["kind"], size))
    totals = defaultdict[tuple[str | None, str, str, str], tuple[int, int]](lambda: (0, 0))
    for (storage, _), rows in found.items():
        witness, kind, _ = min(rows)
        group = storage, witness[1], kind, route_of(witness[0]) if storage is not None else EXTERNAL_SIDE
        files, size = totals[group]
        totals[group] = files + 1, size + max(size for *_, size in rows)
    return dict(totals)


def scan_of(root: Path, name: str, case: Case) -> HashScan:
    files = Files(str(root / name))
    states, hashes = PartWriter(files, "run", STATES, "_states"), PartWriter(files, "run", HASHES, "_hashes")
    states.write(pa.RecordBatch.from_pylist(case.states, schema=STATES))
    rows = [{**row, "key": row["key"]} for row in case.entries]
    hashes.write(build_hashes(pa.RecordBatch.from_pylist(rows, schema=MANIFEST_ENTRIES.schema)))
    paths, states_paths = ([f"run/{part.name}" for part in writer.close()] for writer in (hashes, states))
    return HashScan(files, tuple(states_paths), tuple((path,) for path in paths), STORAGES)


def totals_of(hashes: LiveHashes) -> dict[tuple[str | None, str, str, str], tuple[int, int]]:
    totals = hashes.totals()
    assert totals.expected == totals.found
    found = defaultdict[tuple[str | None, str, str, str], tuple[int, int]](lambda: (0, 0))
    for row in totals.rows.to_pylist():
        group = row["storage"], row["commit_id"], row["kind"], row["route"]
        files, size = found[group]
        found[group] = files + row["files"], size + row["bytes"]
    return dict(found)


@pytest.mark.parametrize("grouped_rows", [2_000_000, 5])
def test_live_file_totals_equal_plain_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped_rows: int) -> None:
    monkeypatch.setattr(key_groups, "GROUPED_ROWS", grouped_rows)
    for seed in range(100):
        case = random_case(Random(seed))
        assert totals_of(LiveHashes(None, scan_of(tmp_path, str(seed), case), len(case.entries), None)) == count(case), seed


@pytest.mark.spark
def test_executors_and_process_count_equal_live_files(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_hashes, "MAX_LOCAL_HASHES", -1)
    for seed in range(3):
        case = random_case(Random(seed))
        hashes = LiveHashes(spark, scan_of(tmp_path, str(seed), case), len(case.entries), None)
        assert not hashes.runs_in_process
        assert totals_of(hashes) == count(case)


def test_lost_file_entries_are_detected(tmp_path: Path) -> None:
    case = Case([{**random_case(Random(1)).states[0], "address": "m", "files": 2}], [])
    totals = LiveHashes(None, scan_of(tmp_path, "state", case), 0, None).totals()
    assert (totals.expected, totals.found) == (3, 1)


@pytest.mark.spark
@pytest.mark.parametrize("in_process", [True, False])
def test_container_with_wrong_entries_is_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    if not in_process:
        monkeypatch.setattr(live_hashes, "MAX_LOCAL_HASHES", -1)
    case = next(case for case in map(random_case, map(Random, range(99))) if len(case.states) > 1 and case.states[1]["files"])
    case.states[0]["files"] += 1
    case.states[1]["files"] -= 1
    hashes = LiveHashes(spark, scan_of(tmp_path, "state", case), len(case.entries), None)
    assert hashes.totals().expected == hashes.totals().found
    assert sorted(hashes.find_unbalanced()) == sorted(state["address"] for state in case.states[:2])


@pytest.mark.parametrize(
    "damage, finding", [({"storage": "other"}, "expected one of disk, bucket, found 'other'"), ({"kind": None}, "a row has no file kind")]
)
def test_entry_with_unknown_values_stops_the_run_and_names_the_file(tmp_path: Path, damage: dict[str, Any], finding: str) -> None:
    entry = {"container": "m", "storage": "disk", "key": "k", "kind": Kind.DATA, "is_container": False, "must_exist": True, **damage}
    case = Case([{**random_case(Random(1)).states[0], "address": "m", "files": 1}], [entry])
    with pytest.raises(StateError, match=rf"run/_hashes/part-\S+ is damaged \({finding}.*doctor --repair"):
        LiveHashes(None, scan_of(tmp_path, "state", case), 1, None).totals()


def test_state_of_a_container_in_an_unknown_storage_names_the_file(tmp_path: Path) -> None:
    case = Case([{**random_case(Random(1)).states[0], "storage": "other", "files": 0}], [])
    with pytest.raises(StateError, match=r"run/_states/part-\S+ is damaged \(expected one of disk, bucket, found 'other'"):
        LiveHashes(None, scan_of(tmp_path, "state", case), 1, None).totals()
