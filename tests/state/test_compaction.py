"""Many small runs are read from few files, and each reader gets exactly the rows of its runs."""

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
from gc_assets.core.errors import StateError
from gc_assets.engine.tables import publish, write_rows
from gc_assets.state import compaction
from gc_assets.state.compaction import Reduction, Segment
from gc_assets.state.files import Files
from gc_assets.state.index import INDEX, PastRun
from gc_assets.state.journal import State, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import DELETION_LOG, MANIFEST_ENTRIES, Table
from gc_assets.state.side_tables import LOCATIONS
from tests.depth import in_turn
from tests.state.publisher import DAY, NOW
from tests.state.s3_location import unused_location
from tests.stores.builders import memory_directory

pytestmark = in_turn

OWNER = "warehouse"


@pytest.fixture
def state() -> Iterator[State]:
    with memory_directory() as root:
        yield State.at(str(root))


def add(state: State, day: int, table: Table = DELETION_LOG, rows: int = 2, **summary: str) -> None:
    """Publish a run with rows, and as many rows in a side table."""
    clock = Clock(NOW + timedelta(days=day))
    run = state.start(OWNER, table.name, DAY + timedelta(days=day), clock)
    first = table.schema.names[0]
    main = pa.Table.from_pylist([{first: f"{day}-{number}"} for number in range(rows)], schema=table.schema)
    locations = pa.Table.from_pylist([{"container": f"{day}-{number}"} for number in range(rows)], schema=LOCATIONS)
    publish(state, run, write_rows(main, table, run, state.files, {"_places": locations}), clock, summary=summary)


def add_uncompacted(state: State, days: Iterable[int], monkeypatch: pytest.MonkeyPatch, table: Table = DELETION_LOG) -> None:
    """Publish runs like a release without compaction."""
    with monkeypatch.context() as patch:
        patch.setattr(State, "compact", lambda *_: None)
        for day in days:
            add(state, day, table)


def current_list(state: State, table: Table = DELETION_LOG) -> compaction.SegmentList:
    return compaction.read_list(state.files, OWNER, table.name)


def runs_of(state: State, table: Table = DELETION_LOG) -> list[PastRun]:
    return sorted(state.history(OWNER, table.name), key=lambda run: run.run_id)


def rows_of(state: State, runs: list[PastRun], table: Table = DELETION_LOG) -> list[str]:
    return read_parts(state.files, state.paths(runs), table.schema).column(0).to_pylist()


def rows_of_runs(state: State, runs: list[PastRun], table: Table = DELETION_LOG) -> list[str]:
    return read_parts(state.files, [path for run in runs for path in run.paths()], table.schema).column(0).to_pylist()


def test_compaction_keeps_order_of_runs(state: State) -> None:
    for day in range(100):
        add(state, day, rows=day % 3)
        assert len(state.paths(runs_of(state))) <= 2, "each run after the second joins the compacted segment"
    runs = runs_of(state)
    assert len(state.paths(runs)) == 1
    assert rows_of(state, runs) == rows_of_runs(state, runs)
    locations = read_parts(state.files, state.paths(runs, "_places"), LOCATIONS).column("container").to_pylist()
    assert locations == rows_of(state, runs)


def test_compaction_does_not_start_at_second_run(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(2):
        add(state, day)
    assert directories(state) == set()
    monkeypatch.setattr(compaction, "read_list", lambda *_: pytest.fail("the list was read"))
    run = state.start(OWNER, DELETION_LOG.name, DAY, Clock(NOW))
    publish(state, run, write_rows(DELETION_LOG.schema.empty_table(), DELETION_LOG, run, state.files), Clock(NOW))
    assert len(runs_of(state)) == 3


def test_state_without_segments_is_compacted(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_uncompacted(state, range(60), monkeypatch)
    runs = runs_of(state)
    assert len(state.paths(runs)) == 60
    before = rows_of(state, runs)
    add(state, 60)
    assert len(state.paths(runs_of(state))) == 1
    assert rows_of(state, runs_of(state))[:-2] == before


def test_reader_of_earlier_runs_uses_replaced_segment(state: State) -> None:
    """The reader started before another publication, or asks for the state before an apply."""
    for day in range(30):
        add(state, day)
    known = runs_of(state)
    for day in range(30, 30 + compaction.MAX_REPLACED):
        add(state, day)
        assert len(state.paths(known)) == 1
        assert rows_of(state, known) == rows_of_runs(state, known)
    add(state, 40)
    assert rows_of(state, known) == rows_of_runs(state, known)


@pytest.mark.parametrize("table", [DELETION_LOG, MANIFEST_ENTRIES])
def test_run_published_late_is_read_in_order(state: State, table: Table) -> None:
    """In a log the last entry counts, so the rows are ordered by the start of the run."""
    for day in (*range(10), *range(11, 20)):
        add(state, day, table)
    late = state.start(OWNER, table.name, DAY + timedelta(days=10), Clock(NOW + timedelta(days=10)))
    rows = pa.Table.from_pylist([{table.schema.names[0]: "late"}], schema=table.schema)
    publish(state, late, write_rows(rows, table, late, state.files), Clock(NOW + timedelta(days=20)))
    runs = runs_of(state, table)
    assert [run.run_id for run in runs].index(late.run_id) == 10
    assert len(state.paths(runs)) == 1
    found, expected = rows_of(state, runs, table), rows_of_runs(state, runs, table)
    assert found == expected if table.name in compaction.ORDERED_TABLES else sorted(found) == sorted(expected)


def test_log_keeps_order_with_late_run(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in (*range(10), *range(11, 20)):
        add(state, day)
    add_uncompacted(state, [10], monkeypatch)
    runs = runs_of(state)
    assert rows_of(state, runs) == rows_of_runs(state, runs)


def test_segment_written_by_another_process_is_kept(state: State) -> None:
    for day in range(20):
        add(state, day)
    stale = {run.run_id: run.entry for run in runs_of(state)}
    add(state, 20)
    before = current_list(state).content
    state.compact(OWNER, DELETION_LOG.name, stale)
    assert current_list(state).content == before
    assert len(state.paths(runs_of(state))) == 1


def test_new_segment_is_deleted_if_another_writer_was_faster(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_uncompacted(state, range(20), monkeypatch)
    runs, seen = runs_of(state), current_list(state)
    first = compaction.compact(state.files, runs, seen)
    assert first is not None
    assert compaction.compact(state.files, runs, seen) is None
    assert directories(state) == {first.name}
    assert rows_of(state, runs) == rows_of_runs(state, runs)


def test_outdated_segment_list_returns_every_run_once(state: State) -> None:
    """A user restored the list from a backup."""
    listing = Path(state.files.root) / OWNER / DELETION_LOG.name / compaction.LIST_FILE
    for day in range(20):
        add(state, day)
    old = listing.read_bytes()
    for day in range(20, 40):
        add(state, day)
    listing.write_bytes(old)
    runs = runs_of(state)
    assert rows_of(state, runs) == rows_of_runs(state, runs)
    add(state, 40)
    runs = runs_of(state)
    assert len(state.paths(runs)) == 1
    assert rows_of(state, runs) == rows_of_runs(state, runs)


def test_any_subset_of_runs_returns_only_rows_of_these_runs(state: State) -> None:
    for day in range(80):
        add(state, day)
    runs, luck = runs_of(state), random.Random(3)
    for share in (0.1, 0.5, 0.9, 0.99):
        selected = [run for run in runs if luck.random() < share]
        assert rows_of(state, selected) == rows_of_runs(state, selected)
    assert rows_of(state, runs[:60]) == rows_of_runs(state, runs[:60])


def test_compaction_works_on_s3() -> None:
    with unused_location() as (root, settings):
        state = State(Files(root, settings))
        for day in range(5):
            add(state, day)
        runs = runs_of(state)
        assert len(state.paths(runs)) == 1
        assert rows_of(state, runs) == rows_of_runs(state, runs)
        assert state.find_index_errors() == []
        state.prune(0, Clock(NOW + timedelta(days=500)))
        assert rows_of(state, runs_of(state)) == rows_of_runs(state, runs)


def test_segments_with_different_decoder_settings_are_not_merged(state: State) -> None:
    for day in range(90):
        add(state, day, MANIFEST_ENTRIES, decoded_as="old" if day < 40 else "new")
    runs = runs_of(state, MANIFEST_ENTRIES)
    for meaning in ("old", "new"):
        selected = [run for run in runs if run.entry.summary["decoded_as"] == meaning]
        assert len(state.paths(selected)) == 1
        assert rows_of(state, selected, MANIFEST_ENTRIES) == rows_of_runs(state, selected, MANIFEST_ENTRIES)


def test_compaction_adds_run_ids_to_old_logs(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_uncompacted(state, range(6), monkeypatch)
    for run in runs_of(state):  # as 0.2 wrote them
        (path,) = (Path(state.files.root) / path for path in run.paths())
        pq.write_table(pq.read_table(path).drop_columns(["run_id"]), path)
    for day in range(6, 50):
        add(state, day)
    runs = runs_of(state)
    found: list[str] = []
    for source in state.segment_files(runs):
        rows = read_parts(state.files, [source.path], DELETION_LOG.schema)
        found += [run_id or source.run_id for run_id in rows.column("run_id").to_pylist()]
    assert found == [run.run_id for run in runs for _ in range(2)]


def test_large_segment_is_not_copied(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_SMALL_BYTES", 100)
    for day in range(60):
        add(state, day)
    assert not (Path(state.files.root) / OWNER / DELETION_LOG.name / compaction.LIST_FILE).exists()
    assert len(state.paths(runs_of(state))) == 60


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"version": 1, "list": {}, "sha256": "other"}', b'{"version": 3}'])
def test_every_run_is_read_if_segment_list_is_damaged(state: State, content: bytes | None) -> None:
    for day in range(50):
        add(state, day)
    runs, current_list = runs_of(state), Path(state.files.root) / OWNER / DELETION_LOG.name / compaction.LIST_FILE
    assert len(state.paths(runs)) < 50
    if content is None:
        current_list.unlink()
    else:
        current_list.write_bytes(content)
    assert state.paths(runs) == [path for run in runs for path in run.paths()]
    add(state, 50)
    assert len(state.paths(runs_of(state))) == 1


def test_concurrent_compactions_create_no_duplicate_rows(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    add_uncompacted(state, range(70), monkeypatch)
    runs = runs_of(state)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda newest: compaction.compact(state.files, runs[:newest], current_list(state)), (70, 60, 50, 70)))
    assert rows_of(state, runs) == rows_of_runs(state, runs)
    assert len(state.paths(runs)) < 70
    existing = current_list(state).content
    names = {segment.name for segment in (*existing.segments, *existing.replaced_segments)} | set(existing.replaced_at)
    assert directories(state) == names, "there are no unlisted copies"


def directories(state: State, table: Table = DELETION_LOG) -> set[str]:
    return set(state.files.directories(f"{OWNER}/{table.name}/{compaction.DIRECTORY}"))


def test_replaced_segment_is_kept_and_pruned_later(state: State) -> None:
    for day in range(30):
        add(state, day)
    runs = runs_of(state)
    before, existing = rows_of(state, runs), directories(state)
    assert state.prune(0, Clock(NOW + timedelta(days=500))) == []
    assert directories(state) == existing
    old = compaction.take_replaced(state.files, OWNER, DELETION_LOG.name, datetime.now(UTC) + timedelta(minutes=1))
    assert len(old) == len(existing) - 1 - compaction.MAX_REPLACED
    for path in old:
        state.files.delete_directory(path)
    assert rows_of(state, runs) == before
    assert compaction.take_replaced(state.files, OWNER, DELETION_LOG.name, datetime.now(UTC) + timedelta(minutes=1)) == []


def test_segment_of_removed_run_is_replaced(state: State) -> None:
    for day in range(50):
        add(state, day)
    runs = runs_of(state)
    shutil.rmtree(Path(state.files.root) / runs[3].path)
    state.files.delete(f"{OWNER}/{DELETION_LOG.name}/{INDEX}")  # rebuilt without the run
    for day in range(50, 60):
        add(state, day)
    runs = runs_of(state)
    assert len(runs) == 59
    assert len(state.paths(runs)) == 1
    assert rows_of(state, runs) == rows_of_runs(state, runs)


def test_republished_run_is_read_from_its_files(state: State) -> None:
    """No stage does this, but a ledger without the newer rows would lose files in quarantine."""
    for day in range(5):
        add(state, day)
    republished = runs_of(state)[2]
    run = TableRun(OWNER, DELETION_LOG.name, republished.run_date, republished.run_id)
    rows = pa.Table.from_pylist([{"key": f"again-{number}"} for number in range(3)], schema=DELETION_LOG.schema)
    publish(state, run, write_rows(rows, DELETION_LOG, run, state.files), Clock(NOW))
    runs = runs_of(state)
    assert rows_of(state, runs) == rows_of_runs(state, runs)
    assert rows_of(state, runs[2:3]) == ["again-0", "again-1", "again-2"]
    add(state, 5)
    assert len(state.paths(runs_of(state))) == 1
    assert rows_of(state, runs_of(state))[:-2] == rows_of(state, runs)


def test_compaction_failure_does_not_fail_run(state: State, caplog: pytest.LogCaptureFixture) -> None:
    for day in range(2):
        add(state, day)
    gone = Path(state.files.root) / runs_of(state)[0].paths()[0]
    gone.unlink()
    for day in range(2, 20):
        add(state, day)
    assert len(runs_of(state)) == 20
    assert "its small runs were not compacted" in caplog.text
    assert f"{gone} is missing" in caplog.text


def test_damaged_column_name_does_not_fail_run(state: State, caplog: pytest.LogCaptureFixture) -> None:
    for day in range(2):
        add(state, day)
    damaged = Path(state.files.root) / runs_of(state)[0].paths()[0]
    pq.write_table(pq.read_table(damaged), damaged, store_schema=False)
    damaged.write_bytes(damaged.read_bytes().replace(b"outcome", b"outc\xffme"))
    with pytest.raises(UnicodeDecodeError):
        _ = pq.read_table(damaged).schema.names
    for day in range(2, 4):
        add(state, day)
    assert len(runs_of(state)) == 4
    assert "its small runs were not compacted" in caplog.text


def test_many_large_rows_are_compacted_in_steps(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_SEGMENTS", 20)
    add_uncompacted(state, range(70), monkeypatch)
    new = compaction.compact(state.files, runs_of(state), current_list(state))
    assert new is not None
    assert len(new.runs) == 20
    add(state, 70)
    assert len(state.paths(runs_of(state))) <= 70 / 20


def test_full_segment_gets_no_more_rows(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run copies only the newest rows, never the whole table."""
    for day in range(10):
        add(state, day)
    full = current_list(state).content.segments
    one_more = (*full[0].parts, *runs_of(state)[0].entry.parts)
    monkeypatch.setattr(compaction, "MAX_NEWEST_BYTES", sum(part.size_bytes or 0 for part in one_more) - 50)
    for day in range(10, 14):
        add(state, day)
        assert current_list(state).content.segments[0] == full[0]
    runs = runs_of(state)
    assert len(state.paths(runs)) == 2
    assert rows_of(state, runs) == rows_of_runs(state, runs)


@pytest.mark.parametrize("harm", ["gone", "other bytes"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_damaged_segment_is_reported_and_repaired(state: State, harm: str, is_replaced: bool) -> None:
    for day in range(50):
        add(state, day)
    runs = runs_of(state)
    existing = current_list(state).content
    segment = (existing.replaced_segments if is_replaced else existing.segments)[0]
    lost = Path(state.files.root) / OWNER / DELETION_LOG.name / compaction.DIRECTORY / segment.name / segment.parts[0].name
    if harm == "gone":
        lost.unlink()
    else:
        lost.write_bytes(b"\0" * lost.stat().st_size)
    assert any("is missing or damaged" in message for message in state.find_index_errors())
    assert state.repair() == [f"{OWNER}/{DELETION_LOG.name}/{compaction.LIST_FILE}"]
    assert state.find_index_errors() == []
    assert rows_of(state, runs) == rows_of_runs(state, runs)


def reduce(state: State, segments: list[Segment]) -> bool:
    """Replace segments by copies without the rows of even numbers."""
    reductions, listed = copy_odd_rows(state, segments), current_list(state, MANIFEST_ENTRIES)
    return compaction.add_reduced(state.files, reductions, runs_of(state, MANIFEST_ENTRIES), listed)


def copy_odd_rows(state: State, segments: list[Segment]) -> dict[str, Reduction]:
    reductions: dict[str, Reduction] = {}
    for segment in segments:
        name = f"without-even-{segment.runs[0].run_id}"
        directory = compaction.segment_directory(segment.base, name)
        rows = read_parts(state.files, segment.paths(), MANIFEST_ENTRIES.schema)
        kept = rows.take([index for index in range(rows.num_rows) if index % 2])
        locations = read_parts(state.files, segment.paths("_places"), LOCATIONS)
        parts: list[PartFile] = []
        for side, content in (("", kept), ("_places", locations)):
            writer = PartWriter(state.files, directory, content.schema, side)
            for batch in content.to_batches():
                writer.write(batch)
            parts += writer.close()
        reductions[name] = Reduction(segment, tuple(parts), rows.num_rows - kept.num_rows)
    return reductions


def three_segments(state: State, monkeypatch: pytest.MonkeyPatch) -> list[Segment]:
    """Return the segments of three runs of two rows."""
    add_uncompacted(state, range(3), monkeypatch, MANIFEST_ENTRIES)
    return compaction.list_segments(runs_of(state, MANIFEST_ENTRIES), current_list(state, MANIFEST_ENTRIES))


def test_reduced_segments_are_used_only_if_all_are_listed(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that one segment keeps may reference a container that another segment dropped."""
    for day in range(4):
        add(state, day, MANIFEST_ENTRIES)
    add_uncompacted(state, [4, 5], monkeypatch, MANIFEST_ENTRIES)
    runs = runs_of(state, MANIFEST_ENTRIES)
    segments = compaction.list_segments(runs, current_list(state, MANIFEST_ENTRIES))
    assert [len(segment.runs) for segment in segments] == [4, 1, 1]
    assert reduce(state, segments[:2])
    assert rows_of(state, runs, MANIFEST_ENTRIES) == ["0-1", "1-1", "2-1", "3-1", "4-1", "5-0", "5-1"]
    assert rows_of(state, runs[:5], MANIFEST_ENTRIES) == ["0-1", "1-1", "2-1", "3-1", "4-1"]
    assert rows_of(state, runs[4:], MANIFEST_ENTRIES) == ["4-1", "5-0", "5-1"]
    for selected in (runs[1:], [*runs[:1], *runs[2:]]):
        assert rows_of(state, selected, MANIFEST_ENTRIES) == rows_of_runs(state, selected, MANIFEST_ENTRIES)
    assert read_parts(state.files, state.segments(runs, complete=True).paths(), MANIFEST_ENTRIES.schema).num_rows == 12


def test_compaction_merges_reduced_segments(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reduce(state, three_segments(state, monkeypatch)[:2])
    add(state, 3, MANIFEST_ENTRIES)
    runs = runs_of(state, MANIFEST_ENTRIES)
    assert len(state.paths(runs)) == 1
    assert rows_of(state, runs, MANIFEST_ENTRIES) == ["0-1", "1-1", "2-0", "2-1", "3-0", "3-1"]
    assert [segment.dropped_rows for segment in current_list(state, MANIFEST_ENTRIES).content.segments] == [2]
    assert state.find_index_errors() == []


def test_reduced_segment_without_needed_rows_is_not_listed(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = three_segments(state, monkeypatch)[0]
    listed = current_list(state, MANIFEST_ENTRIES)
    with pytest.raises(StateError, match="accounts for 3 of 4 rows"):
        compaction.add_reduced(state.files, {"x": Reduction(segment, (), 3)}, runs_of(state, MANIFEST_ENTRIES), listed)
    assert current_list(state, MANIFEST_ENTRIES).content == listed.content


def test_reduced_segments_are_deleted_if_another_writer_was_faster(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = three_segments(state, monkeypatch)
    listed, runs = current_list(state, MANIFEST_ENTRIES), runs_of(state, MANIFEST_ENTRIES)
    reductions = copy_odd_rows(state, segments) | {"without-rows": Reduction(segments[0], (), 4)}
    add(state, 3, MANIFEST_ENTRIES)
    assert not compaction.add_reduced(state.files, reductions, runs, listed)
    assert not any("without" in name for name in directories(state, MANIFEST_ENTRIES))
    assert rows_of(state, runs, MANIFEST_ENTRIES) == rows_of_runs(state, runs, MANIFEST_ENTRIES)


def test_prune_accepts_replaced_segment_without_files(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    segments, runs = three_segments(state, monkeypatch), runs_of(state, MANIFEST_ENTRIES)
    reductions = {"without-rows": Reduction(segments[0], (), 4)}
    assert compaction.add_reduced(state.files, reductions, runs, current_list(state, MANIFEST_ENTRIES))
    for day in range(3, 8):
        add(state, day, MANIFEST_ENTRIES)
    old = compaction.take_replaced(state.files, OWNER, MANIFEST_ENTRIES.name, datetime.now(UTC) + timedelta(minutes=1))
    assert old
    for path in old:
        state.files.delete_directory(path)
    assert rows_of(state, runs_of(state, MANIFEST_ENTRIES), MANIFEST_ENTRIES)[:2] == ["1-0", "1-1"]
