"""Tables of many small runs are read from few files, and every reader gets the rows of exactly the runs that it asks for."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gc_assets.core.clock import Clock
from gc_assets.engine.tables import publish, write_rows
from gc_assets.state import compaction as folds
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_LOG, MANIFEST_ENTRIES, Table
from gc_assets.state.side_tables import LOCATIONS
from tests.state.publisher import DAY, NOW
from tests.state.s3_place import place
from tests.stores.builders import in_memory

OWNER = "warehouse"


@pytest.fixture
def state() -> Iterator[State]:
    with in_memory() as root:
        yield State.at(str(root))


def add(state: State, run_context: int, table: Table = DELETION_LOG, rows: int = 2, **summary: str) -> None:
    """A run with rows of its own, and as many in a side table."""
    clock = Clock(NOW + timedelta(days=run_context))
    run = state.start(OWNER, table.name, DAY + timedelta(days=run_context), clock)
    first = table.schema.names[0]
    main = pa.Table.from_pylist([{first: f"{run_context}-{number}"} for number in range(rows)], schema=table.schema)
    places = pa.Table.from_pylist([{"container": f"{run_context}-{number}"} for number in range(rows)], schema=LOCATIONS)
    publish(state, run, write_rows(main, table, run, state.files, {"_places": places}), clock, summary=summary)


def add_apart(state: State, nights: Iterable[int], monkeypatch: pytest.MonkeyPatch, table: Table = DELETION_LOG) -> None:
    """Runs as a release without folds left them."""
    with monkeypatch.context() as without:
        without.setattr(State, "_compact", lambda *_: None)
        for run_context in nights:
            add(state, run_context, table)


def listed(state: State, table: Table = DELETION_LOG) -> folds.SegmentList:
    return folds.read_list(state.files, OWNER, table.name)


def runs_of(state: State, table: Table = DELETION_LOG) -> list[PastRun]:
    return sorted(state.history(OWNER, table.name), key=lambda run: run.run_id)


def rows_of(state: State, runs: list[PastRun], table: Table = DELETION_LOG) -> list[str]:
    return read_parts(state.files, state.paths(runs), table.schema).column(0).to_pylist()


def rows_by_themselves(state: State, runs: list[PastRun], table: Table = DELETION_LOG) -> list[str]:
    return read_parts(state.files, [path for run in runs for path in run.paths()], table.schema).column(0).to_pylist()


def test_the_rows_of_many_runs_lie_in_few_files_in_the_order_of_the_runs(state: State) -> None:
    for run_context in range(100):
        add(state, run_context, rows=run_context % 3)
        assert len(state.paths(runs_of(state))) <= 2, "after the first two nights there is a fold, and every night joins it"
    runs = runs_of(state)
    assert len(state.paths(runs)) == 1
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
    places = read_parts(state.files, state.paths(runs, "_places"), LOCATIONS).column("container").to_pylist()
    assert places == rows_of(state, runs)


def test_the_second_night_writes_no_fold_and_a_night_without_rows_reads_no_list(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for run_context in range(2):
        add(state, run_context)
    assert directories(state) == set()
    monkeypatch.setattr(folds, "listed", lambda *_: pytest.fail("the list was read"))
    run = state.start(OWNER, DELETION_LOG.name, DAY, Clock(NOW))
    publish(state, run, write_rows(DELETION_LOG.schema.empty_table(), DELETION_LOG, run, state.files), Clock(NOW))
    assert len(runs_of(state)) == 3


def test_a_state_of_a_release_without_folds_is_folded_by_the_first_run_with_rows(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_apart(state, range(60), monkeypatch)
    runs = runs_of(state)
    assert len(state.paths(runs)) == 60
    before = rows_of(state, runs)
    add(state, 60)
    assert len(state.paths(runs_of(state))) == 1
    assert rows_of(state, runs_of(state))[:-2] == before


def test_who_knows_the_runs_before_the_newest_reads_the_fold_of_these(state: State) -> None:
    """A night that began before another published, or a question about what was known before an apply."""
    for run_context in range(30):
        add(state, run_context)
    known = runs_of(state)
    for run_context in range(30, 30 + folds.MAX_REPLACED):
        add(state, run_context)
        assert len(state.paths(known)) == 1
        assert rows_of(state, known) == rows_by_themselves(state, known)
    add(state, 40)
    assert rows_of(state, known) == rows_by_themselves(state, known)


@pytest.mark.parametrize("table", [DELETION_LOG, MANIFEST_ENTRIES])
def test_a_run_that_publishes_after_later_ones_is_read_with_them(state: State, table: Table) -> None:
    """In a log the last word counts, so its rows stand where the run began."""
    for run_context in (*range(10), *range(11, 20)):
        add(state, run_context, table)
    late = state.start(OWNER, table.name, DAY + timedelta(days=10), Clock(NOW + timedelta(days=10)))
    rows = pa.Table.from_pylist([{table.schema.names[0]: "late"}], schema=table.schema)
    publish(state, late, write_rows(rows, table, late, state.files), Clock(NOW + timedelta(days=20)))
    runs = runs_of(state, table)
    assert [run.run_id for run in runs].index(late.run_id) == 10
    assert len(state.paths(runs)) == 1
    told, apart = rows_of(state, runs, table), rows_by_themselves(state, runs, table)
    assert told == apart if table.name in folds.ORDERED_TABLES else sorted(told) == sorted(apart)


def test_a_log_is_read_in_its_order_before_the_run_that_came_late_is_folded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for run_context in (*range(10), *range(11, 20)):
        add(state, run_context)
    add_apart(state, [10], monkeypatch)
    runs = runs_of(state)
    assert rows_of(state, runs) == rows_by_themselves(state, runs)


def test_a_fold_of_another_process_is_not_undone_by_one_who_knows_fewer_runs(state: State) -> None:
    for run_context in range(20):
        add(state, run_context)
    stale = {run.run_id: run.entry for run in runs_of(state)}
    add(state, 20)
    before = listed(state).content
    state._compact(OWNER, DELETION_LOG.name, stale)
    assert listed(state).content == before
    assert len(state.paths(runs_of(state))) == 1


def test_a_fold_that_comes_after_another_process_changed_the_list_is_dropped(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_apart(state, range(20), monkeypatch)
    runs, seen = runs_of(state), listed(state)
    first = folds.compact(state.files, runs, seen)
    assert first is not None
    assert folds.compact(state.files, runs, seen) is None
    assert directories(state) == {first.name}
    assert rows_of(state, runs) == rows_by_themselves(state, runs)


def test_a_list_older_than_the_index_tells_of_every_run_once(state: State) -> None:
    """Somebody put it back from a backup."""
    listing = Path(state.files.root) / OWNER / DELETION_LOG.name / folds.LIST_FILE
    for run_context in range(20):
        add(state, run_context)
    old = listing.read_bytes()
    for run_context in range(20, 40):
        add(state, run_context)
    listing.write_bytes(old)
    runs = runs_of(state)
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
    add(state, 40)
    runs = runs_of(state)
    assert len(state.paths(runs)) == 1
    assert rows_of(state, runs) == rows_by_themselves(state, runs)


def test_any_choice_of_runs_gives_their_rows_and_no_others(state: State) -> None:
    for run_context in range(80):
        add(state, run_context)
    runs, luck = runs_of(state), random.Random(3)
    for share in (0.1, 0.5, 0.9, 0.99):
        chosen = [run for run in runs if luck.random() < share]
        assert rows_of(state, chosen) == rows_by_themselves(state, chosen)
    assert rows_of(state, runs[:60]) == rows_by_themselves(state, runs[:60])


def test_runs_on_s3_are_folded_and_read_as_on_a_disk() -> None:
    with place() as (root, settings):
        state = State(Files(root, settings))
        for run_context in range(5):
            add(state, run_context)
        runs = runs_of(state)
        assert len(state.paths(runs)) == 1
        assert rows_of(state, runs) == rows_by_themselves(state, runs)
        assert state.find_index_errors() == []
        state.prune(0, Clock(NOW + timedelta(days=500)))
        assert rows_of(state, runs_of(state)) == rows_by_themselves(state, runs)


def test_runs_that_were_decoded_differently_share_no_fold(state: State) -> None:
    for run_context in range(90):
        add(state, run_context, MANIFEST_ENTRIES, decoded_as="old" if run_context < 40 else "new")
    runs = runs_of(state, MANIFEST_ENTRIES)
    for meaning in ("old", "new"):
        chosen = [run for run in runs if run.entry.summary["decoded_as"] == meaning]
        assert len(state.paths(chosen)) == 1
        assert rows_of(state, chosen, MANIFEST_ENTRIES) == rows_by_themselves(state, chosen, MANIFEST_ENTRIES)


def test_every_row_of_a_log_without_run_ids_still_tells_its_run(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_apart(state, range(6), monkeypatch)
    for run in runs_of(state):  # as 0.2 wrote them
        (path,) = (Path(state.files.root) / path for path in run.paths())
        pq.write_table(pq.read_table(path).drop_columns(["run_id"]), path)
    for run_context in range(6, 50):
        add(state, run_context)
    runs = runs_of(state)
    told: list[str] = []
    for source in state.segment_files(runs):
        rows = read_parts(state.files, [source.path], DELETION_LOG.schema)
        told += [run_id or source.run_id for run_id in rows.column("run_id").to_pylist()]
    assert told == [run.run_id for run in runs for _ in range(2)]


def test_a_piece_of_many_bytes_is_left_alone(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "MAX_SMALL_BYTES", 100)
    for run_context in range(60):
        add(state, run_context)
    assert not (Path(state.files.root) / OWNER / DELETION_LOG.name / folds.LIST_FILE).exists()
    assert len(state.paths(runs_of(state))) == 60


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"version": 1, "list": {}, "sha256": "other"}', b'{"version": 2}'])
def test_without_a_sound_list_every_run_is_read_by_itself(state: State, content: bytes | None) -> None:
    for run_context in range(50):
        add(state, run_context)
    runs, listed = runs_of(state), Path(state.files.root) / OWNER / DELETION_LOG.name / folds.LIST_FILE
    assert len(state.paths(runs)) < 50
    if content is None:
        listed.unlink()
    else:
        listed.write_bytes(content)
    assert state.paths(runs) == [path for run in runs for path in run.paths()]
    add(state, 50)
    assert len(state.paths(runs_of(state))) == 1


def test_of_processes_that_fold_at_once_no_row_is_told_twice(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_apart(state, range(70), monkeypatch)
    runs = runs_of(state)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda newest: folds.compact(state.files, runs[:newest], listed(state)), (70, 60, 50, 70)))
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
    assert len(state.paths(runs)) < 70
    there = listed(state).content
    names = {held.name for held in (*there.segments, *there.replaced_segments)} | set(there.replaced_at)
    assert directories(state) == names, "copies that nobody lists are left behind"


def directories(state: State) -> set[str]:
    return set(state.files.directories(f"{OWNER}/{DELETION_LOG.name}/{folds.DIRECTORY}"))


def test_a_fold_that_a_larger_one_replaced_is_kept_for_its_readers_and_pruned_later(state: State) -> None:
    for run_context in range(30):
        add(state, run_context)
    runs = runs_of(state)
    before, there = rows_of(state, runs), directories(state)
    assert state.prune(0, Clock(NOW + timedelta(days=500))) == []
    assert directories(state) == there
    old = folds.take_replaced(state.files, OWNER, DELETION_LOG.name, datetime.now(UTC) + timedelta(minutes=1))
    assert len(old) == len(there) - 1 - folds.MAX_REPLACED
    for path in old:
        state.files.delete_directory(path)
    assert rows_of(state, runs) == before
    assert folds.take_replaced(state.files, OWNER, DELETION_LOG.name, datetime.now(UTC) + timedelta(minutes=1)) == []


def test_a_fold_of_a_run_that_is_gone_makes_room_for_another(state: State) -> None:
    for run_context in range(50):
        add(state, run_context)
    runs = runs_of(state)
    shutil.rmtree(Path(state.files.root) / runs[3].path)
    state.repair()
    for run_context in range(50, 60):
        add(state, run_context)
    runs = runs_of(state)
    assert len(runs) == 59
    assert len(state.paths(runs)) == 1
    assert rows_of(state, runs) == rows_by_themselves(state, runs)


def test_a_run_that_is_published_again_is_read_as_it_is_by_then(state: State) -> None:
    """No stage does so. A ledger that lacked its newer rows would forget what lies in quarantine."""
    for run_context in range(5):
        add(state, run_context)
    again = runs_of(state)[2]
    run = TableRun(OWNER, DELETION_LOG.name, again.run_date, again.run_id)
    rows = pa.Table.from_pylist([{"key": f"again-{number}"} for number in range(3)], schema=DELETION_LOG.schema)
    publish(state, run, write_rows(rows, DELETION_LOG, run, state.files), Clock(NOW))
    runs = runs_of(state)
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
    assert rows_of(state, runs[2:3]) == ["again-0", "again-1", "again-2"]
    add(state, 5)
    assert len(state.paths(runs_of(state))) == 1
    assert rows_of(state, runs_of(state))[:-2] == rows_of(state, runs)


def test_a_run_that_cannot_be_folded_fails_no_other_run(state: State, caplog: pytest.LogCaptureFixture) -> None:
    for run_context in range(2):
        add(state, run_context)
    (Path(state.files.root) / runs_of(state)[0].paths()[0]).unlink()
    for run_context in range(2, 20):
        add(state, run_context)
    assert len(runs_of(state)) == 20
    assert "its small runs stay apart" in caplog.text


def test_a_run_whose_column_has_a_damaged_name_fails_no_other_run(state: State, caplog: pytest.LogCaptureFixture) -> None:
    for run_context in range(2):
        add(state, run_context)
    harmed = Path(state.files.root) / runs_of(state)[0].paths()[0]
    pq.write_table(pq.read_table(harmed), harmed, store_schema=False)
    harmed.write_bytes(harmed.read_bytes().replace(b"outcome", b"outc\xffme"))
    with pytest.raises(UnicodeDecodeError):
        _ = pq.read_table(harmed).schema.names
    for run_context in range(2, 4):
        add(state, run_context)
    assert len(runs_of(state)) == 4
    assert "its small runs stay apart" in caplog.text


def test_rows_of_many_bytes_are_folded_a_share_at_a_time(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "MAX_SEGMENTS", 20)
    add_apart(state, range(70), monkeypatch)
    made = folds.compact(state.files, runs_of(state), listed(state))
    assert made is not None
    assert len(made.runs) == 20
    add(state, 70)
    assert len(state.paths(runs_of(state))) <= 70 / 20


def test_a_fold_that_is_full_is_written_no_more(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night copies the newest rows again, and never all that a table has."""
    for run_context in range(10):
        add(state, run_context)
    full = listed(state).content.segments
    one_more = (*full[0].parts, *runs_of(state)[0].entry.parts)
    monkeypatch.setattr(folds, "MAX_NEWEST_BYTES", sum(part.size_bytes or 0 for part in one_more) - 50)
    for run_context in range(10, 14):
        add(state, run_context)
        assert listed(state).content.segments[0] == full[0]
    runs = runs_of(state)
    assert len(state.paths(runs)) == 2
    assert rows_of(state, runs) == rows_by_themselves(state, runs)


@pytest.mark.parametrize("harm", ["gone", "other bytes"])
@pytest.mark.parametrize("of_former", [False, True])
def test_a_harmed_fold_is_told_and_forgotten_by_a_repair(state: State, harm: str, of_former: bool) -> None:
    for run_context in range(50):
        add(state, run_context)
    runs = runs_of(state)
    there = listed(state).content
    held = (there.replaced_segments if of_former else there.segments)[0]
    lost = Path(state.files.root) / OWNER / DELETION_LOG.name / folds.DIRECTORY / held.name / held.parts[0].name
    if harm == "gone":
        lost.unlink()
    else:
        lost.write_bytes(b"\0" * lost.stat().st_size)
    assert any("is not there as it was written" in said for said in state.find_index_errors())
    assert state.repair() == [f"{OWNER}/{DELETION_LOG.name}/{folds.LIST_FILE}"]
    assert state.find_index_errors() == []
    assert rows_of(state, runs) == rows_by_themselves(state, runs)
