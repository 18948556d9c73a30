"""Tables of many small runs are read from few files, and every reader gets the rows of exactly the runs that it asks for."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gc_assets.core.clock import Clock
from gc_assets.stages.tables import publish, write_rows
from gc_assets.state import folds
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_LOG, MANIFEST_ENTRIES, PLACES, Table
from tests.state.publisher import DAY, NOW
from tests.state.s3_place import place
from tests.stores.builders import in_memory

OWNER = "warehouse"
# At most this many pieces of few bytes are left: a row too short to fold, and the newest runs.
FEW = folds.FOLD_PIECES + folds.NEWEST_APART


@pytest.fixture
def state() -> Iterator[State]:
    with in_memory() as root:
        yield State.at(str(root))


def add(state: State, night: int, table: Table = DELETION_LOG, rows: int = 2, **facts: str) -> None:
    """A run with rows of its own, and as many in a side table."""
    clock = Clock(NOW + timedelta(days=night))
    run = state.start(OWNER, table.name, DAY + timedelta(days=night), clock)
    first = table.schema.names[0]
    main = pa.Table.from_pylist([{first: f"{night}-{number}"} for number in range(rows)], schema=table.schema)
    places = pa.Table.from_pylist([{"container": f"{night}-{number}"} for number in range(rows)], schema=PLACES)
    publish(state, run, write_rows(main, table, run, state.files, {"_places": places}), clock, facts=facts)


def runs_of(state: State, table: Table = DELETION_LOG) -> list[PastRun]:
    return sorted(state.history(OWNER, table.name), key=lambda run: run.run_id)


def rows_of(state: State, runs: list[PastRun], table: Table = DELETION_LOG) -> list[str]:
    return read_parts(state.files, state.paths(runs), table.schema).column(0).to_pylist()


def rows_by_themselves(state: State, runs: list[PastRun], table: Table = DELETION_LOG) -> list[str]:
    return read_parts(state.files, [path for run in runs for path in run.paths()], table.schema).column(0).to_pylist()


def test_the_rows_of_many_runs_lie_in_few_files_in_the_order_of_the_runs(state: State) -> None:
    for night in range(200):
        add(state, night, rows=night % 3)
        if night % 50 == 0:
            assert len(state.paths(runs_of(state))) <= FEW
    runs = runs_of(state)
    assert len(state.paths(runs)) <= FEW
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
    places = read_parts(state.files, state.paths(runs, "_places"), PLACES).column("container").to_pylist()
    assert places == rows_of(state, runs)


def test_any_choice_of_runs_gives_their_rows_and_no_others(state: State) -> None:
    for night in range(80):
        add(state, night)
    runs, luck = runs_of(state), random.Random(3)
    for share in (0.1, 0.5, 0.9, 0.99):
        chosen = [run for run in runs if luck.random() < share]
        assert rows_of(state, chosen) == rows_by_themselves(state, chosen)
    assert rows_of(state, runs[:60]) == rows_by_themselves(state, runs[:60])


def test_runs_on_s3_are_folded_and_read_as_on_a_disk() -> None:
    with place() as (root, settings):
        state = State(Files(root, settings))
        for night in range(FEW + 2):
            add(state, night)
        runs = runs_of(state)
        assert len(state.paths(runs)) < len(runs)
        assert rows_of(state, runs) == rows_by_themselves(state, runs)
        assert state.unindexed() == []
        state.prune(0, Clock(NOW + timedelta(days=500)))
        assert rows_of(state, runs_of(state)) == rows_by_themselves(state, runs)


def test_runs_that_were_decoded_differently_share_no_fold(state: State) -> None:
    for night in range(90):
        add(state, night, MANIFEST_ENTRIES, decoded_as="old" if night < 40 else "new")
    runs = runs_of(state, MANIFEST_ENTRIES)
    for meaning, least in (("old", 30), ("new", 30)):
        chosen = [run for run in runs if run.entry.facts["decoded_as"] == meaning]
        assert len(state.paths(chosen)) < least
        assert rows_of(state, chosen, MANIFEST_ENTRIES) == rows_by_themselves(state, chosen, MANIFEST_ENTRIES)


def test_every_row_of_a_log_without_run_ids_still_tells_its_run(state: State) -> None:
    for night in range(6):
        add(state, night)
    for run in runs_of(state):  # as 0.2 wrote them
        (path,) = (Path(state.files.root) / path for path in run.paths())
        pq.write_table(pq.read_table(path).drop_columns(["run_id"]), path)
    for night in range(6, 50):
        add(state, night)
    runs = runs_of(state)
    told: list[str] = []
    for source in state.sources(runs):
        rows = read_parts(state.files, [source.path], DELETION_LOG.schema)
        told += [run_id or source.run_id for run_id in rows.column("run_id").to_pylist()]
    assert told == [run.run_id for run in runs for _ in range(2)]


def test_a_piece_of_many_bytes_is_left_alone(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "SMALL_BYTES", 100)
    for night in range(60):
        add(state, night)
    assert not (Path(state.files.root) / OWNER / DELETION_LOG.name / folds.LIST).exists()
    assert len(state.paths(runs_of(state))) == 60


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"version": 1, "list": {}, "sha256": "other"}', b'{"version": 2}'])
def test_without_a_sound_list_every_run_is_read_by_itself(state: State, content: bytes | None) -> None:
    for night in range(50):
        add(state, night)
    runs, listed = runs_of(state), Path(state.files.root) / OWNER / DELETION_LOG.name / folds.LIST
    assert len(state.paths(runs)) < 50
    if content is None:
        listed.unlink()
    else:
        listed.write_bytes(content)
    assert state.paths(runs) == [path for run in runs for path in run.paths()]
    add(state, 50)
    assert len(state.paths(runs_of(state))) <= FEW


def test_of_processes_that_fold_at_once_no_row_is_told_twice(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(folds, "FOLD_PIECES", 10**6)
        for night in range(70):
            add(state, night)
    runs = runs_of(state)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda newest: folds.fold(state.files, runs[:newest]), (70, 60, 50, 70)))
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
    assert len(state.paths(runs)) < 70
    listed = folds._read(state.files, f"{OWNER}/{DELETION_LOG.name}")
    assert directories(state) == {held.name for held in listed.folds} | set(listed.replaced), "copies that nobody lists are left behind"


def directories(state: State) -> set[str]:
    return set(state.files.directories(f"{OWNER}/{DELETION_LOG.name}/{folds.DIRECTORY}"))


def test_a_fold_that_a_larger_one_replaced_is_kept_for_its_readers_and_pruned_later(state: State) -> None:
    for night in range(120):
        add(state, night)
    runs = runs_of(state)
    before, there = rows_of(state, runs), directories(state)
    assert state.prune(0, Clock(NOW + timedelta(days=500))) == []
    assert directories(state) == there
    old = folds.unused(state.files, OWNER, DELETION_LOG.name, datetime.now(UTC) + timedelta(minutes=1))
    assert len(old) == len(there) - len({path.split("/")[3] for path in state.paths(runs) if folds.DIRECTORY in path})
    for path in old:
        state.files.delete_directory(path)
    assert rows_of(state, runs) == before
    assert folds.unused(state.files, OWNER, DELETION_LOG.name, datetime.now(UTC) + timedelta(minutes=1)) == []


def test_a_fold_of_a_run_that_is_gone_makes_room_for_another(state: State) -> None:
    for night in range(50):
        add(state, night)
    runs = runs_of(state)
    shutil.rmtree(Path(state.files.root) / runs[3].path)
    state.repair()
    for night in range(50, 60):
        add(state, night)
    runs = runs_of(state)
    assert len(runs) == 59
    assert len(state.paths(runs)) <= FEW
    assert rows_of(state, runs) == rows_by_themselves(state, runs)


def test_a_run_that_cannot_be_folded_fails_no_other_run(state: State, caplog: pytest.LogCaptureFixture) -> None:
    for night in range(folds.FOLD_PIECES):
        add(state, night)
    (Path(state.files.root) / runs_of(state)[0].paths()[0]).unlink()
    for night in range(folds.FOLD_PIECES, 20):
        add(state, night)
    assert len(runs_of(state)) == 20
    assert "its small runs stay apart" in caplog.text


def test_rows_of_many_bytes_are_folded_a_share_at_a_time(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "MOST_PIECES", 20)
    with monkeypatch.context() as without:
        without.setattr(folds, "FOLD_PIECES", 10**6)
        for night in range(70):
            add(state, night)
    made = folds.fold(state.files, runs_of(state))
    assert made is not None
    assert len(made.runs) == 20
    add(state, 70)
    assert len(state.paths(runs_of(state))) <= FEW


@pytest.mark.parametrize("harm", ["gone", "other bytes"])
def test_a_harmed_fold_is_told_and_forgotten_by_a_repair(state: State, harm: str) -> None:
    for night in range(50):
        add(state, night)
    runs = runs_of(state)
    lost = Path(state.files.root) / next(path for path in state.paths(runs) if folds.DIRECTORY in path)
    if harm == "gone":
        lost.unlink()
    else:
        lost.write_bytes(b"\0" * lost.stat().st_size)
    assert any("is not there as it was written" in said for said in state.unindexed())
    assert state.repair() == [f"{OWNER}/{DELETION_LOG.name}/{folds.LIST}"]
    assert state.unindexed() == []
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
