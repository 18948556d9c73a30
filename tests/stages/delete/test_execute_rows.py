"""Files are removed and restored in the order of reference, so that no kill leaves a dangling
snapshot.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import cast

import icechunk
import pyarrow as pa
import pytest
import zarr

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.core.phases import Action
from gc_assets.lakes.file_kinds import LEAF_RANK, RANKS, Kind
from gc_assets.stages.delete.execute_rows import RowExecutor
from gc_assets.stages.delete.restore import MovedFiles
from gc_assets.state.files import Files
from gc_assets.stores.execution import to_planned_actions
from gc_assets.stores.local.objects import etag_of
from gc_assets.stores.protocol import LEASE_DURATION, Lease, PlannedAction, QuarantineMode, Result, Store
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import WriteAheadLog, open_log
from tests.depth import example_count
from tests.lakes.icechunk.builder import DocumentTree, document_tree, numbers
from tests.lakes.icechunk.icechunk_lakes import expire, lake_at, plan_actions, verdicts
from tests.process_kills import exit_code, kill_before
from tests.stages.delete.row_execution import execute_all
from tests.stores.builders import CLOCK, NOW, PLAN, memory_directory, write

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
# The first snapshot of each repository has no group to open.
EMPTY = "1CECHNKREP0F1RSTCMT0"
KINDS = {"snapshots": Kind.SNAPSHOT, "transactions": Kind.TRANSACTION_LOG, "manifests": Kind.CHUNK_MANIFEST, "chunks": Kind.CHUNK}


@pytest.mark.parametrize(
    "chain",
    [
        [Kind.SNAPSHOT, Kind.TRANSACTION_LOG, Kind.CHUNK_MANIFEST, Kind.CHUNK],
        [Kind.VERSION_HINT, Kind.METADATA_JSON, Kind.MANIFEST_LIST, Kind.MANIFEST, Kind.DATA],
        [Kind.METADATA_JSON, Kind.STATISTICS],
        [Kind.METADATA_JSON, Kind.PARTITION_STATISTICS],
        [Kind.MANIFEST, Kind.POSITION_DELETES],
        [Kind.MANIFEST, Kind.EQUALITY_DELETES],
        [Kind.MANIFEST, Kind.DELETION_VECTOR],
        [Kind.METARANGE, Kind.RANGE, Kind.OBJECT],
    ],
)
def test_metadata_is_quarantined_before_files_it_references(chain: list[str]) -> None:
    ranks = [RANKS.get(kind, LEAF_RANK) for kind in chain]
    assert ranks == sorted(set(ranks))


@pytest.fixture(scope="module")
def expired_repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A storage with an expired repository, and the keys of all its garbage, not in order."""
    root = tmp_path_factory.mktemp("acting")
    tree: DocumentTree = document_tree(root / "repo", START)
    tree.builder.abandon_snapshot("main", START, numbers("reset", range(3)))
    lake = lake_at(root / "repo", {"default": {"keep": tree.cutoff.isoformat()}})
    assert verdicts(expire(lake, AS_OF, plan_actions(lake, AS_OF))) == {"done"}
    collected = tmp_path_factory.mktemp("collected") / "storage"
    shutil.copytree(root, collected)
    open_repository(collected).garbage_collect(datetime.now(UTC))  # the library's own word for what is garbage
    keys = sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not (collected / path.relative_to(root)).exists()
    )
    assert {key.split("/")[1] for key in keys} == set(KINDS)
    return root, keys


def open_repository(root: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(root / "repo")))


def snapshots(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "repo/snapshots").iterdir())


def build_rows(root: Path, keys: list[str], action: Action, held: Path | None = None) -> pa.RecordBatch:
    """Build rows with the `EXECUTION_ROWS` columns."""
    rows = [
        {
            "key": key,
            "action": action,
            "size_bytes": ((held or root) / key).stat().st_size,
            "etag": etag_of(((held or root) / key).lstat()),
            "version_id": None,
            "source_plan_id": None if action == "quarantine" else PLAN,
            "quarantine": "trash",
            "kind": KINDS[key.split("/")[1]],
            "needed": None,
            "in_use": False,
            "retry": False,
            "in_quarantine": action != "quarantine",
            "refused": None,
        }
        for key in keys
    ]
    return pa.RecordBatch.from_pylist(rows)


def test_outdated_plan_stops_retrying_move_that_always_fails(tmp_path: Path) -> None:
    """The file is at its path and in the trash, as after a restore that was killed between link and
    unlink.
    """
    root, held = tmp_path / "storage", tmp_path / "storage/.gc-assets/trash" / PLAN / "repo/chunks/a"
    write(root, "repo/chunks/a")
    rows = build_rows(root, ["repo/chunks/a"], "quarantine")
    held.parent.mkdir(parents=True)
    os.link(root / "repo/chunks/a", held)
    store = open_store(f"file://{root}/")
    lease, log = store.acquire(PLAN, "test", CLOCK), open_log(Files(str(tmp_path / "state")), "wal", PLAN, 1)
    late = RowExecutor(store, log, lease, CLOCK, PLAN, only_interrupted=True)
    (never_begun,) = late(iter([rows]))
    assert never_begun.column("outcome").to_pylist() == ["denied"]

    log = open_log(Files(str(tmp_path / "state")), "begun", PLAN, 1)
    log.write_intent(0, lease.token, list(to_planned_actions(rows)))
    (timely,) = replace(late, log=log, only_interrupted=False)(iter([rows]))
    assert timely.column("outcome").to_pylist() == ["failed"]
    (given_up,) = replace(late, log=log)(iter([rows]))
    assert given_up.column("outcome").to_pylist() == ["denied"]
    assert "is both in the storage and in the trash" in given_up.column("error").to_pylist()[0]
    assert (root / "repo/chunks/a").exists()
    assert held.exists()
    assert dict(log.read_quarantined(0)) == dict.fromkeys(to_planned_actions(rows))


@pytest.mark.parametrize("mode", ["trash", "deferred"])
def test_purge_of_outdated_plan_is_done_only_if_interrupted_apply_made_it(tmp_path: Path, mode: QuarantineMode) -> None:
    """An outcome `denied` would leave the purged copy in the ledger of quarantined files."""
    root, keys = tmp_path / "storage", [f"repo/chunks/{name}" for name in ("kept", "purged", "restored")]
    held = root / ".gc-assets/trash" / PLAN if mode == "trash" else root
    for key in keys:
        write(root, key)
        write(held, key)
    rows = build_rows(root, keys, "purge", held)
    planned, store = list(to_planned_actions(rows)), open_store(f"file://{root}/")
    lease, log = store.acquire(PLAN, "test", CLOCK), open_log(Files(str(tmp_path / "state")), "wal", PLAN, 1)
    log.write_intent(0, lease.token, planned)
    for key in keys[1:]:
        (held / key).unlink()
    columns = {"quarantine": [mode] * 3, "refused": ["out of date"] * 3, "in_quarantine": [True, True, False]}
    for name, values in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
    (results,) = RowExecutor(store, log, lease, CLOCK, PLAN, only_interrupted=True)(iter([rows]))
    assert results.column("key").to_pylist() == keys
    assert results.column("outcome").to_pylist() == ["denied", "done", "changed"]
    assert (held / keys[0]).exists()


def test_executor_without_access_to_log_moves_no_file(tmp_path: Path) -> None:
    """For example an executor whose `/state` is a local disk: its moves would not be recorded."""
    root = tmp_path / "storage"
    write(root, "repo/chunks/a")
    store = open_store(f"file://{root}/")
    lease, log = store.acquire(PLAN, "test", CLOCK), open_log(Files(str(tmp_path / "state")), "wal", PLAN, 1)
    missing_log = replace(log, files=Files(str(tmp_path / "state of another machine")))
    rows = build_rows(root, ["repo/chunks/a"], "quarantine")
    with pytest.raises(StateError, match=r"does not exist on .*\. Nothing was changed\. `state` must be a location"):
        list(RowExecutor(store, missing_log, lease, CLOCK, PLAN)(iter([rows])))
    assert (root / "repo/chunks/a").exists()
    with pytest.raises(StateError, match=r"does not exist on .*, which executes plan"):
        list(MovedFiles(missing_log, "trash", NOW, lease.token, rehearsal=False, rows=1)(iter([pa.RecordBatch.from_pydict({"id": [0]})])))


@dataclass(frozen=True)
class MovedFile:
    """A quarantined file whose move has no outcome, whose name is taken, and which a lake needs."""

    store: Store
    lease: Lease
    log: WriteAheadLog
    row: pa.RecordBatch
    name: Path
    copy: Path

    def outcomes(self, store: Store) -> list[str]:
        """Return the outcomes of the plan when it is resumed over this store."""
        (results,) = RowExecutor(store, self.log, self.lease, CLOCK, PLAN)(iter([self.row]))
        return results.column("outcome").to_pylist()


def moved_file_with_taken_name(place: Path) -> MovedFile:
    root, key = place / "storage", "repo/chunks/a"
    write(root, key, b"old")
    rows = build_rows(root, [key], "quarantine")
    store = open_store(f"file://{root}/")
    lease, log = store.acquire(PLAN, "test", CLOCK), open_log(Files(str(place / "state")), "wal", PLAN, 1)
    log.write_intent(0, lease.token, list(to_planned_actions(rows)))
    store.quarantine("trash", PLAN).act(list(to_planned_actions(rows)))
    write(root, key, b"another")
    needed = rows.set_column(rows.schema.get_field_index("needed"), "needed", pa.array(["live again"]))
    return MovedFile(store, lease, log, needed, root / key, root / ".gc-assets/trash" / PLAN / key)


def test_moved_file_stays_in_quarantine_if_its_path_is_in_use(tmp_path: Path) -> None:
    moved = moved_file_with_taken_name(tmp_path)
    assert moved.outcomes(moved.store) == ["done"]
    assert (moved.name.read_bytes(), moved.copy.read_bytes()) == (b"another", b"old")
    assert [row.key for row, outcome in moved.log.read_quarantined(0) if outcome is not None] == ["repo/chunks/a"]


def test_replaced_object_moved_by_interrupted_apply_is_moved_back(tmp_path: Path) -> None:
    """A writer replaced the file just before an interrupted apply moved it."""
    moved = moved_file_with_taken_name(tmp_path)
    moved.copy.unlink()
    moved.name.rename(moved.copy)
    assert moved.outcomes(moved.store) == ["changed"]
    assert moved.name.read_bytes() == b"another"
    assert not moved.copy.exists()


@dataclass(frozen=True)
class StoreWithLostAnswers:
    """A store that quarantines, and whose answers are lost."""

    inner: Store

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> StoreWithLostAnswers:
        return StoreWithLostAnswers(self.inner.quarantine(mode, plan_id))  # pyright: ignore[reportArgumentType]

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        answers = self.inner.act(batch, resumed)  # pyright: ignore
        return [Result("failed", "timed out") if row.action == "quarantine" else result for row, result in zip(batch, answers, strict=True)]


def test_moved_file_is_retried_if_the_trash_cannot_be_examined(tmp_path: Path) -> None:
    """Found by program 9260: the second answer was lost, and the copy in the trash was not
    recorded.
    """
    moved = moved_file_with_taken_name(tmp_path)
    assert moved.outcomes(cast("Store", StoreWithLostAnswers(moved.store))) == ["failed"]
    assert [row.key for row, _ in moved.log.read_quarantined(0)] == ["repo/chunks/a"]
    assert moved.outcomes(moved.store) == ["done"]


def dangling_snapshots(root: Path) -> list[str]:
    """Return the snapshots that can be looked up and cannot be read in full."""
    repo, found = open_repository(root), list[str]()
    for snapshot in set(snapshots(root)) - {EMPTY}:
        try:
            group = zarr.open_group(repo.readonly_session(snapshot_id=snapshot).store, mode="r")
            for _, array in group.arrays():
                array[...]
        except (icechunk.IcechunkError, zarr.errors.BaseZarrError, FileNotFoundError) as error:
            found.append(f"{snapshot}: {error}")
    return found


@pytest.mark.parametrize("action", ["quarantine", "restore"])
def test_killed_quarantine_or_restore_leaves_no_dangling_snapshot(expired_repository: tuple[Path, list[str]], action: Action) -> None:
    readable, keys = expired_repository
    with memory_directory() as base:
        for step in count(1, example_count(3, 1)):
            root, state = base / "storage", base / f"state{step}"
            shutil.copytree(readable, root)
            rows = build_rows(root, keys, "quarantine")
            if action == "restore":
                execute_all(root, base / f"before{step}", rows, CLOCK)
                rows = build_rows(root, keys, "restore", root / f".gc-assets/trash/{PLAN}")
            code = exit_code(kill_before, step, ("rename", "link"), execute_all, root, state, rows, CLOCK)
            assert code in {0, -signal.SIGKILL}
            assert dangling_snapshots(root) == []
            outcomes = execute_all(root, state, rows, Clock(NOW + LEASE_DURATION))
            assert outcomes.column("outcome").to_pylist() == ["done"] * len(keys)
            assert [key for key in keys if (root / key).exists()] == (keys if action == "restore" else [])
            shutil.rmtree(root)
            if code == 0:
                break
        assert step > len(keys)
