"""A table is published whole or not at all, and damage to the state is found before anything is read from it."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.parts import PartWriter
from gc_assets.state.receipts import Balance, PartFile, Receipt
from gc_assets.state.schemas import LIVE_FILTER, POLICY_TABLE, SCHEMA_VERSION
from tests.state.test_parts import SCHEMA, batch

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=UTC)
CLOCK = Clock(NOW)
DAY = date(2026, 3, 14)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State.at(f"file://{tmp_path}/state")


def root(state: State) -> Path:
    return Path(state.files.root.removeprefix("file://"))


def started(state: State, *keys: str, day: date = DAY, clock: Clock = CLOCK, asset: str = "live_files") -> tuple[TableRun, list[PartFile]]:
    run = state.start("sales", asset, day, clock)
    writer = PartWriter(state.files, run.path, SCHEMA)
    writer.write(batch(*keys))
    return run, writer.close()


def receipt(run: TableRun, parts: list[PartFile], **more: Any) -> Receipt:
    return Receipt(
        group=run.group,
        asset=run.asset,
        run_date=run.run_date,
        run_id=run.run_id,
        created_at=NOW,
        rows=sum(part.rows for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
        digest="0" * 16,
        files=tuple(parts),
        **more,
    )


def published(state: State, *keys: str, **more: Any) -> PublishedTable:
    run, parts = started(state, *keys, **more)
    return state.publish(run, receipt(run, parts))


def current(state: State, day: date = DAY) -> PublishedTable | None:
    return state.current("sales", "live_files", day)


def test_nothing_is_visible_before_it_is_published(state: State) -> None:
    run, parts = started(state, "a")
    assert current(state) is None
    assert list(state.runs("sales", "live_files")) == []
    state.publish(run, receipt(run, parts))
    assert current(state) == PublishedTable(run.path, receipt(run, parts))


def test_a_published_table_names_exactly_its_own_parts(state: State) -> None:
    found = published(state, "a", "b")
    stray = PartWriter(state.files, found.path, SCHEMA)
    stray.write(batch("never meant"))
    stray.close()
    again = current(state)
    assert again is not None
    assert again.paths() == [f"{found.path}/{part.name}" for part in found.receipt.files]
    assert again.paths("_no_such_side") == []


def test_a_table_whose_counts_do_not_balance_is_refused_and_the_last_one_stays(state: State) -> None:
    before = published(state, "a")
    run, parts = started(state, "b")
    balances = (Balance(name="refs", expected=3, found=3), Balance(name="manifests read", expected=1234, found=1233))
    with pytest.raises(StateError, match=r"sales/live_files of 2026-03-14 is not complete.*manifests read: expected 1,234, found 1,233$"):
        state.publish(run, receipt(run, parts, balances=balances))
    assert current(state) == before
    assert len(list(state.runs("sales", "live_files"))) == 1


def test_a_table_with_a_part_that_never_arrived_is_refused(state: State) -> None:
    run, parts = started(state, "a")
    lost = parts[0].model_copy(update={"name": "part-lost.parquet"})
    with pytest.raises(StateError, match=r"part-lost\.parquet is missing, its receipt says"):
        state.publish(run, receipt(run, [*parts, lost]))
    assert current(state) is None


def test_a_part_that_vanished_or_was_cut_stops_the_reader(state: State) -> None:
    found = published(state, "a")
    path = root(state) / found.paths()[0]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(
        StateError, match=rf"{path.name} has {len(content) - 1:,} bytes, its receipt says {len(content):,} bytes.*run its asset again"
    ):
        current(state)
    path.unlink()
    with pytest.raises(StateError, match=rf"{path.name} is missing"):
        current(state)


def test_a_side_table_is_checked_like_the_table(state: State) -> None:
    run, parts = started(state, "a")
    side = PartWriter(state.files, run.path, SCHEMA, "_containers")
    side.write(batch("c"))
    found = state.publish(run, receipt(run, parts, side={"_containers": tuple(side.close())}))
    assert len(found.paths("_containers")) == 1
    (root(state) / found.paths("_containers")[0]).unlink()
    with pytest.raises(StateError, match=r"_containers/part-.* is missing"):
        current(state)


def test_other_bytes_of_the_same_length_are_found_by_verification(state: State) -> None:
    """Lengths are checked on every read; sums only where it is decided what goes."""
    found = published(state, "a")
    path = root(state) / found.paths()[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    state.verify(found)
    path.write_bytes(content)
    assert current(state) == found
    with pytest.raises(
        StateError, match=rf"{path.name} holds other bytes than were written \(sha256 .* expected .*\).*run its asset again"
    ):
        state.verify(found)


def test_verification_covers_side_tables_and_vanished_parts(state: State) -> None:
    run, parts = started(state, "a")
    side = PartWriter(state.files, run.path, SCHEMA, "_waiting")
    side.write(batch("c"))
    found = state.publish(run, receipt(run, parts, side={"_waiting": tuple(side.close())}))
    path = root(state) / found.paths("_waiting")[0]
    path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2"))
    with pytest.raises(StateError, match="_waiting/part-"):
        state.verify(found)
    path.unlink()
    with pytest.raises(StateError, match=r"_waiting/part-.* is missing"):
        state.verify(found)


def test_a_receipt_that_is_gone_is_a_half_written_table(state: State) -> None:
    found = published(state, "a")
    (root(state) / found.path / "_receipt.json").unlink()
    with pytest.raises(StateError, match=r"_receipt\.json is missing: the table is half written or was removed"):
        current(state)


def test_a_receipt_that_was_changed_after_publication_is_not_believed(state: State) -> None:
    found = published(state, "a")
    path = root(state) / found.path / "_receipt.json"
    path.write_text(path.read_text().replace('"rows": 1', '"rows": 2'))
    with pytest.raises(StateError, match="was changed after publication"):
        current(state)


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "\xff", '{"schema_version": "new"}', '{"schema_version": 1}'])
def test_a_damaged_receipt_is_named(state: State, damage: str) -> None:
    found = published(state, "a")
    (root(state) / found.path / "_receipt.json").write_bytes(damage.encode("latin-1"))
    (root(state) / "sales/live_files/_index.json").unlink()
    with pytest.raises(StateError, match=r"_receipt\.json is damaged.*run its asset again"):
        list(state.runs("sales", "live_files"))


def test_a_table_of_a_newer_release_is_not_guessed_at(state: State) -> None:
    run, parts = started(state, "a")
    state.publish(run, receipt(run, parts, schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(StateError, match=rf"schema version {SCHEMA_VERSION + 1}, this release reads up to {SCHEMA_VERSION}: .* upgrade"):
        current(state)


@pytest.mark.parametrize("damage", ["", "{}", "[]", "null", '{"run_id": "x"}', "\xff"])
def test_a_damaged_pointer_is_an_error_and_no_empty_table(state: State, damage: str) -> None:
    published(state, "a")
    path = root(state) / "sales/live_files/run_date=2026-03-14/current.json"
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(StateError, match=r"current\.json is damaged.*delete it and run live_files of 2026-03-14 again"):
        current(state)
    with pytest.raises(StateError, match=r"current\.json is damaged"):
        state.prune(0, Clock(NOW + timedelta(days=1)))


def test_a_pointer_at_a_removed_run_is_an_error(state: State) -> None:
    found = published(state, "a")
    shutil.rmtree(root(state) / found.path)
    with pytest.raises(StateError, match=r"_receipt\.json is missing"):
        current(state)


def test_a_state_that_is_lost_has_no_tables_and_says_what_to_run(state: State) -> None:
    published(state, "a")
    shutil.rmtree(root(state))
    assert current(state) is None
    assert state.latest("sales", "live_files") is None
    assert list(state.runs("sales", "live_files")) == []
    assert state.prune(0, CLOCK) == []
    with pytest.raises(
        StateError, match="sales/live_files has no table for 2026-03-14; run `gc-assets run --run-date 2026-03-14 --through live_files`"
    ):
        state.require("sales", "live_files", DAY)


def test_the_second_publisher_of_a_date_wins_and_both_tables_stay_whole(state: State) -> None:
    first, second = started(state, "a"), started(state, "b")
    late = state.publish(second[0], receipt(*second))
    assert current(state) == late
    early = state.publish(first[0], receipt(*first))
    assert current(state) == early
    assert {found.receipt.run_id for found in state.runs("sales", "live_files")} == {first[0].run_id, second[0].run_id}


def test_runs_started_at_one_fixed_moment_are_ordered_as_they_were_started(state: State) -> None:
    made = [published(state, str(number)).receipt.run_id for number in range(5)]
    assert [found.receipt.run_id for found in state.runs("sales", "live_files")] == made
    assert len(set(made)) == 5


def test_runs_come_by_date_before_time(state: State) -> None:
    late = published(state, "a", day=date(2026, 3, 14), clock=Clock(NOW))
    backfill = published(state, "b", day=date(2026, 3, 1), clock=Clock(NOW + timedelta(hours=1)))
    assert list(state.runs("sales", "live_files")) == [backfill, late]


def test_the_latest_table_is_the_one_of_the_newest_date_strictly_before(state: State) -> None:
    days = [date(2026, 3, day) for day in (1, 9, 10)]
    tables = [published(state, "a", day=day) for day in days]
    started(state, "never published", day=date(2026, 3, 11))
    assert state.dates("sales", "live_files") == days
    assert state.latest("sales", "live_files") == tables[2]
    assert state.latest("sales", "live_files", before=date(2026, 3, 10)) == tables[1]
    assert state.latest("sales", "live_files", before=date(2026, 3, 1)) is None


def test_a_directory_that_is_no_run_date_is_named(state: State) -> None:
    published(state, "a")
    (root(state) / "sales/live_files/run_date=2026-03-14.bak").mkdir()
    (root(state) / "sales/live_files/_index.json").unlink()
    with pytest.raises(StateError, match=r"run_date=2026-03-14\.bak is no run date"):
        state.dates("sales", "live_files")


def test_a_groups_tables_are_its_own(state: State) -> None:
    published(state, "a")
    assert state.current("sales_2", "live_files", DAY) is None
    assert state.current("sales", "live_file", DAY) is None


def test_pruning_removes_old_runs_that_are_not_current(state: State) -> None:
    old = Clock(NOW - timedelta(days=31))
    replaced, kept = published(state, "a", clock=old), published(state, "b", clock=old)
    half, _ = started(state, "c", clock=old)
    young, _ = started(state, "d", clock=Clock(NOW - timedelta(days=29)))
    assert sorted(state.prune(30, CLOCK)) == sorted([replaced.path, half.path])
    assert current(state) == kept
    assert state.files.directories("sales/live_files/run_date=2026-03-14") == sorted([kept.receipt.run_id, young.run_id])


def test_pruning_holds_the_edge_of_its_days(state: State) -> None:
    edge, _ = started(state, "a", clock=Clock(NOW - timedelta(days=30)))
    older, _ = started(state, "b", clock=Clock(NOW - timedelta(days=30, seconds=1)))
    assert state.prune(30, CLOCK) == [older.path]
    assert edge.run_id in state.files.directories("sales/live_files/run_date=2026-03-14")


def test_pruning_leaves_append_only_tables_alone(state: State) -> None:
    old = Clock(NOW - timedelta(days=365))
    for asset in (POLICY_TABLE.name, LIVE_FILTER.name):
        for key in "ab":
            published(state, key, asset=asset, clock=old)
    removed = state.prune(0, CLOCK, protected=[POLICY_TABLE.name])
    assert len(removed) == 1
    assert LIVE_FILTER.name in removed[0]
    assert len(list(state.runs("sales", POLICY_TABLE.name))) == 2


def test_pruning_touches_nothing_it_did_not_make(state: State) -> None:
    published(state, "a", clock=Clock(NOW - timedelta(days=365)))
    mine = [
        "sales/approvals/x.json",
        "sales/apply/5e1f/log.json",
        "sales/live_files/run_date=2026-03-14/notes/mine.txt",
        "sales/live_files/old/f",
    ]
    for path in mine:
        state.files.replace(path, b"mine")
    assert state.prune(0, CLOCK) == []
    assert [state.files.read(path) for path in mine] == [b"mine"] * len(mine)


def test_a_reference_changes_with_the_run_and_with_its_rows(state: State) -> None:
    run, parts = started(state, "a")
    one = receipt(run, parts)
    assert one.reference == f"{run.run_id}:{'0' * 16}"
    assert one.model_copy(update={"digest": "1" * 16}).reference != one.reference


def test_a_receipt_is_plain_json_for_anyone(state: State) -> None:
    found = published(state, "a")
    document = json.loads((root(state) / found.path / "_receipt.json").read_text())
    assert (document["schema_version"], document["rows"], document["run_date"]) == (SCHEMA_VERSION, 1, "2026-03-14")
    assert Receipt.model_validate(document) == found.receipt
    assert Files(state.files.root).read(f"{found.path}/_receipt.json") == found.receipt.model_dump_json(indent=1).encode()
