"""A table is published completely or not at all, and damage is detected before it is read."""

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


def start_run(
    state: State, *keys: str, day: date = DAY, clock: Clock = CLOCK, asset: str = "live_files"
) -> tuple[TableRun, list[PartFile]]:
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


def publish_table(state: State, *keys: str, **more: Any) -> PublishedTable:
    run, parts = start_run(state, *keys, **more)
    return state.publish(run, receipt(run, parts))


def current(state: State, day: date = DAY) -> PublishedTable | None:
    return state.current("sales", "live_files", day)


def test_unpublished_run_is_not_listed(state: State) -> None:
    run, parts = start_run(state, "a")
    assert current(state) is None
    assert list(state.runs("sales", "live_files")) == []
    state.publish(run, receipt(run, parts))
    assert current(state) == PublishedTable(run.path, receipt(run, parts, sequence_number=1))


def test_published_table_lists_its_parts(state: State) -> None:
    found = publish_table(state, "a", "b")
    stray = PartWriter(state.files, found.path, SCHEMA)
    stray.write(batch("never meant"))
    stray.close()
    again = current(state)
    assert again is not None
    assert again.paths() == [f"{found.path}/{part.name}" for part in found.receipt.files]
    assert again.paths("_no_such_side") == []


def test_table_with_unequal_expected_and_found_counts_is_rejected(state: State) -> None:
    before = publish_table(state, "a")
    run, parts = start_run(state, "b")
    balances = (Balance(name="refs", expected=3, found=3), Balance(name="manifests read", expected=1234, found=1233))
    with pytest.raises(StateError, match=r"sales/live_files of 2026-03-14 is incomplete.*manifests read: expected 1,234, found 1,233$"):
        state.publish(run, receipt(run, parts, balances=balances))
    assert current(state) == before
    assert len(list(state.runs("sales", "live_files"))) == 1


def test_table_with_missing_part_is_rejected(state: State) -> None:
    run, parts = start_run(state, "a")
    lost = parts[0].model_copy(update={"name": "part-lost.parquet"})
    with pytest.raises(StateError, match=r"part-lost\.parquet is missing, expected"):
        state.publish(run, receipt(run, [*parts, lost]))
    assert current(state) is None


def test_missing_or_truncated_part_is_reported(state: State) -> None:
    found = publish_table(state, "a")
    path = root(state) / found.paths()[0]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(
        StateError, match=rf"{path.name} has {len(content) - 1:,} bytes, expected {len(content):,} bytes.*run `gc-assets doctor --repair`"
    ):
        current(state)
    path.unlink()
    with pytest.raises(StateError, match=rf"{path.name} is missing"):
        current(state)


def test_side_table_parts_are_checked(state: State) -> None:
    run, parts = start_run(state, "a")
    side = PartWriter(state.files, run.path, SCHEMA, "_containers")
    side.write(batch("c"))
    found = state.publish(run, receipt(run, parts, side={"_containers": tuple(side.close())}))
    assert len(found.paths("_containers")) == 1
    (root(state) / found.paths("_containers")[0]).unlink()
    with pytest.raises(StateError, match=r"_containers/part-.* is missing"):
        current(state)


def test_verification_detects_changed_bytes(state: State) -> None:
    """Sizes are verified on each read, checksums only before a deletion."""
    found = publish_table(state, "a")
    path = root(state) / found.paths()[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    state.verify(found)
    path.write_bytes(content)
    assert current(state) == found
    with pytest.raises(StateError, match=rf"{path.name} is damaged \(sha256 .* expected .*\).*run `gc-assets doctor --repair`"):
        state.verify(found)


def test_verification_covers_side_tables(state: State) -> None:
    run, parts = start_run(state, "a")
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


def test_missing_receipt_is_reported(state: State) -> None:
    found = publish_table(state, "a")
    (root(state) / found.path / "_receipt.json").unlink()
    with pytest.raises(StateError, match=r"_receipt\.json is missing: the table is incomplete or was removed"):
        current(state)


def test_changed_receipt_is_rejected(state: State) -> None:
    found = publish_table(state, "a")
    path = root(state) / found.path / "_receipt.json"
    path.write_text(path.read_text().replace('"rows": 1', '"rows": 2'))
    with pytest.raises(StateError, match="was changed after publication"):
        current(state)


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "\xff", '{"schema_version": "new"}', '{"schema_version": 1}'])
def test_damaged_receipt_is_reported(state: State, damage: str) -> None:
    found = publish_table(state, "a")
    (root(state) / found.path / "_receipt.json").write_bytes(damage.encode("latin-1"))
    (root(state) / "sales/live_files/_index.json").unlink()
    with pytest.raises(StateError, match=r"_receipt\.json is damaged.*run `gc-assets doctor --repair`"):
        list(state.runs("sales", "live_files"))


def test_newer_schema_version_is_rejected(state: State) -> None:
    run, parts = start_run(state, "a")
    state.publish(run, receipt(run, parts, schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(StateError, match=rf"schema version {SCHEMA_VERSION + 1}, this release reads up to {SCHEMA_VERSION}: .* upgrade"):
        current(state)


@pytest.mark.parametrize("damage", ["", "{}", "[]", "null", '{"run_id": "x"}', "\xff"])
def test_damaged_pointer_is_reported(state: State, damage: str) -> None:
    publish_table(state, "a")
    path = root(state) / "sales/live_files/run_date=2026-03-14/current.json"
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(StateError, match=r"current\.json is damaged.*run `gc-assets doctor --repair` and start the run again"):
        current(state)
    with pytest.raises(StateError, match=r"current\.json is damaged"):
        state.prune(0, Clock(NOW + timedelta(days=1)))


def test_pointer_to_removed_run_is_reported(state: State) -> None:
    found = publish_table(state, "a")
    shutil.rmtree(root(state) / found.path)
    with pytest.raises(StateError, match=r"_receipt\.json is missing"):
        current(state)


def test_empty_state_error_shows_next_command(state: State) -> None:
    publish_table(state, "a")
    shutil.rmtree(root(state))
    assert current(state) is None
    assert state.latest("sales", "live_files") is None
    assert list(state.runs("sales", "live_files")) == []
    assert state.prune(0, CLOCK) == []
    with pytest.raises(
        StateError, match="sales/live_files has no table for 2026-03-14; run `gc-assets run --run-date 2026-03-14 --through live_files`"
    ):
        state.require("sales", "live_files", DAY)


def test_last_publication_for_date_is_current(state: State) -> None:
    first, second = start_run(state, "a"), start_run(state, "b")
    late = state.publish(second[0], receipt(*second))
    assert current(state) == late
    early = state.publish(first[0], receipt(*first))
    assert current(state) == early
    assert {found.receipt.run_id for found in state.runs("sales", "live_files")} == {first[0].run_id, second[0].run_id}


def test_runs_with_fixed_clock_keep_order(state: State) -> None:
    made = [publish_table(state, str(number)).receipt.run_id for number in range(5)]
    assert [found.receipt.run_id for found in state.runs("sales", "live_files")] == made
    assert len(set(made)) == 5


def test_runs_are_ordered_by_date(state: State) -> None:
    late = publish_table(state, "a", day=date(2026, 3, 14), clock=Clock(NOW))
    backfill = publish_table(state, "b", day=date(2026, 3, 1), clock=Clock(NOW + timedelta(hours=1)))
    assert list(state.runs("sales", "live_files")) == [backfill, late]


def test_latest_before_date_excludes_date(state: State) -> None:
    days = [date(2026, 3, day) for day in (1, 9, 10)]
    tables = [publish_table(state, "a", day=day) for day in days]
    start_run(state, "never published", day=date(2026, 3, 11))
    assert state.dates("sales", "live_files") == days
    assert state.latest("sales", "live_files") == tables[2]
    assert state.latest("sales", "live_files", before=date(2026, 3, 10)) == tables[1]
    assert state.latest("sales", "live_files", before=date(2026, 3, 1)) is None


def test_invalid_run_date_is_reported(state: State) -> None:
    publish_table(state, "a")
    (root(state) / "sales/live_files/run_date=2026-03-14.bak").mkdir()
    (root(state) / "sales/live_files/_index.json").unlink()
    with pytest.raises(StateError, match=r"run_date=2026-03-14\.bak is not a run date"):
        state.dates("sales", "live_files")


def test_tables_of_different_groups_are_separate(state: State) -> None:
    publish_table(state, "a")
    assert state.current("sales_2", "live_files", DAY) is None
    assert state.current("sales", "live_file", DAY) is None


def test_prune_removes_old_runs(state: State) -> None:
    old = Clock(NOW - timedelta(days=31))
    replaced, kept = publish_table(state, "a", clock=old), publish_table(state, "b", clock=old)
    half, _ = start_run(state, "c", clock=old)
    young, _ = start_run(state, "d", clock=Clock(NOW - timedelta(days=29)))
    assert sorted(state.prune(30, CLOCK)) == sorted([replaced.path, half.path])
    assert current(state) == kept
    assert state.files.directories("sales/live_files/run_date=2026-03-14") == sorted([kept.receipt.run_id, young.run_id])


def test_prune_respects_keep_days(state: State) -> None:
    edge, _ = start_run(state, "a", clock=Clock(NOW - timedelta(days=30)))
    older, _ = start_run(state, "b", clock=Clock(NOW - timedelta(days=30, seconds=1)))
    assert state.prune(30, CLOCK) == [older.path]
    assert edge.run_id in state.files.directories("sales/live_files/run_date=2026-03-14")


def test_prune_keeps_runs_that_may_be_in_progress(state: State) -> None:
    hour_ago = Clock(NOW - timedelta(hours=1))
    replaced, _ = publish_table(state, "a", clock=hour_ago), publish_table(state, "b", clock=hour_ago)
    writing, written = start_run(state, "c", clock=hour_ago)
    assert state.prune(0, CLOCK) == [replaced.path]
    assert current(state) != (late := state.publish(writing, receipt(writing, written)))
    assert current(state) == late
    abandoned, _ = start_run(state, "d", clock=Clock(NOW - timedelta(days=1, seconds=1)))
    assert abandoned.path in state.prune(0, CLOCK)


def test_prune_keeps_protected_tables(state: State) -> None:
    old = Clock(NOW - timedelta(days=365))
    for asset in (POLICY_TABLE.name, LIVE_FILTER.name):
        for key in "ab":
            publish_table(state, key, asset=asset, clock=old)
    removed = state.prune(0, CLOCK, protected=[POLICY_TABLE.name])
    assert len(removed) == 1
    assert LIVE_FILTER.name in removed[0]
    assert len(list(state.runs("sales", POLICY_TABLE.name))) == 2


def test_prune_keeps_unknown_directories(state: State) -> None:
    publish_table(state, "a", clock=Clock(NOW - timedelta(days=365)))
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


def test_table_reference_changes_with_run_and_rows(state: State) -> None:
    run, parts = start_run(state, "a")
    one = receipt(run, parts)
    assert one.reference == f"{run.run_id}:{'0' * 16}"
    assert one.model_copy(update={"digest": "1" * 16}).reference != one.reference


def test_receipt_is_plain_json(state: State) -> None:
    found = publish_table(state, "a")
    document = json.loads((root(state) / found.path / "_receipt.json").read_text())
    assert (document["schema_version"], document["rows"], document["run_date"]) == (SCHEMA_VERSION, 1, "2026-03-14")
    assert Receipt.model_validate(document) == found.receipt
    assert Files(state.files.root).read(f"{found.path}/_receipt.json") == found.receipt.model_dump_json(indent=1).encode()


@pytest.mark.parametrize("asset", ["lake_refs", "storage_inventory"])
@pytest.mark.parametrize("first, second", [(False, False), (True, True), (False, True), (True, False)])
def test_run_is_overtaken_only_by_runs_with_its_own_clock(state: State, asset: str, *, first: bool, second: bool) -> None:
    """A rehearsal of an earlier date does not mean that the clock of a real run was wrong."""

    def publish(day: date, *, rehearsal: bool) -> PublishedTable:
        at = datetime.combine(day, NOW.time(), UTC)
        run = state.start("sales", asset, day, CLOCK)
        summary = {"frozen_at": at.isoformat(), "rehearsal": rehearsal}
        return state.publish(run, receipt(run, [], summary=summary).model_copy(update={"created_at": at}))

    table = publish(DAY + timedelta(days=10), rehearsal=first)
    publish(DAY, rehearsal=second)
    assert state.is_overtaken(table) == (first == second)
