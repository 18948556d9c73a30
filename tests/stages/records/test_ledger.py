"""The copies in quarantine according to the deletion logs: the newest settled entry of each copy."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from gc_assets.core.phases import PHASES, VERDICTS
from gc_assets.engine.run_context import RunContext
from gc_assets.report.load import load_report
from gc_assets.stages.records.ledger import (
    LOG_ENTRIES,
    QUARANTINED_COPY,
    CopySelection,
    LogReader,
    copies_in_quarantine,
    first_of_each_key,
    newest_first,
    newest_of_each_key,
    quarantine_ledger,
    read_quarantine,
    removed_objects,
    settled_entries,
)
from gc_assets.stages.records.purged_files import find_purged, find_purged_by
from gc_assets.state.schemas import ORPHAN_FILES
from tests.records import EMPTY_SWEEP, NOW, STORAGE, log_row, publish_log, publish_mark, publish_table, run_context_at


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return run_context_at(tmp_path)


def quarantine_rows(context: RunContext) -> list[tuple[str, int, int]]:
    """Return plan, files and bytes of each quarantine row of the report."""
    publish_mark(context)
    publish_table(context, STORAGE, ORPHAN_FILES, **EMPTY_SWEEP)
    (page,) = load_report(context, lakes=["none"]).storages
    return [(row.plan_id, row.files, row.size_bytes) for row in page.quarantined]


def test_quarantine_report_counts_key_once_per_plan_with_copy(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "quarantine", "p2", minutes=5, size_bytes=7))
    assert quarantine_rows(context) == [("p2", 1, 7), ("p1", 1, 10)]


def test_quarantine_report_shows_second_copy_after_purge(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "quarantine", "p2", minutes=5))
    publish_log(context, log_row("a", "purge", "p3", minutes=9, source="p2"))
    assert quarantine_rows(context) == [("p1", 1, 10)]


def test_log_entries_of_equal_time_are_ordered_by_run(context: RunContext) -> None:
    """With the clock of a rehearsal, runs and restores share one time."""
    publish_log(context, log_row("a", "quarantine", "p1"))
    publish_log(context, log_row("a", "restore", "r1", source="p1"))
    assert read_quarantine(context.state, STORAGE).num_rows == 0
    publish_log(context, log_row("a", "quarantine", "p1", run_id="zz"))
    assert read_quarantine(context.state, STORAGE).column("source_plan_id").to_pylist() == ["p1"]


def test_log_entries_without_run_id_use_run_id_of_receipt(context: RunContext) -> None:
    """0.2.0 wrote no `run_id` column."""
    published = publish_log(context, log_row("a", "quarantine", "p1"))
    assert published.receipt.run_id < publish_log(context, log_row("a", "restore", "r1", source="p1")).receipt.run_id
    assert read_quarantine(context.state, STORAGE).num_rows == 0


def test_log_entries_are_ordered_by_lease_and_not_by_clock(context: RunContext) -> None:
    """A restore by a slow clock is still newer, and so is the quarantine after it."""
    publish_log(context, log_row("a", "quarantine", "p1", minutes=60, token=4))
    publish_log(context, log_row("a", "restore", "r1", minutes=-60, source="p1", token=5))
    assert read_quarantine(context.state, STORAGE).num_rows == 0
    publish_log(context, log_row("a", "quarantine", "p1", minutes=-90, token=6))
    assert read_quarantine(context.state, STORAGE).column("source_plan_id").to_pylist() == ["p1"]


def test_log_entries_without_fencing_token_come_first(context: RunContext) -> None:
    publish_log(context, log_row("a", "restore", "r1", source="p1", token=1))
    publish_log(context, log_row("a", "quarantine", "p1", minutes=60))
    publish_log(context, log_row("b", "quarantine", "p1"))
    publish_log(context, log_row("b", "restore", "r1", minutes=5, source="p1"))
    assert read_quarantine(context.state, STORAGE).num_rows == 0


def test_deferred_quarantine_ends_if_object_was_replaced(context: RunContext) -> None:
    """The new object can be purged only through its own record."""
    publish_log(context, *(log_row("a", "quarantine", plan, minutes=at, quarantine="deferred") for plan, at in (("p1", 0), ("p2", 5))))
    changed = log_row("a", "purge", "p3", minutes=9, source="p1", outcome="changed", quarantine="deferred", ends_record=True)
    publish_log(context, changed)
    assert read_quarantine(context.state, STORAGE).column("source_plan_id").to_pylist() == ["p2"]


@pytest.mark.parametrize("mode", ["deferred", "versioned"])
@pytest.mark.parametrize("phase", ["restore", "purge"])
def test_restore_or_purge_ends_all_quarantine_records_of_object(context: RunContext, mode: str, phase: str) -> None:
    """Earlier releases recorded an object twice if two plans quarantined it."""
    same = {"etag": "e", "version_id": "v1" if mode == "versioned" else None, "quarantine": mode}
    publish_log(context, *(log_row("a", "quarantine", plan, minutes=at, **same) for plan, at in (("p1", 0), ("p2", 5))))
    assert copies(read_quarantine(context.state, STORAGE)).keys() == {("a", "p1"), ("a", "p2")}
    publish_log(context, log_row("a", phase, "p3", minutes=9, source="p2", **same))
    assert read_quarantine(context.state, STORAGE).num_rows == 0
    of_plan = CopySelection(plan_id="p1")
    entries = pa.concat_tables(LogReader.of(context.state, STORAGE, of_plan).shares())
    assert of_plan.find_copies(entries).num_rows == 0
    publish_log(context, log_row("a", "quarantine", "p4", minutes=12, **same))
    assert copies(read_quarantine(context.state, STORAGE)).keys() == {("a", "p4")}


def test_object_keeps_its_identity_if_versioning_is_enabled_later(context: RunContext) -> None:
    """S3 then returns the version `null` for objects that were written before."""
    before, after = ({"etag": "e", "version_id": version, "quarantine": "deferred"} for version in (None, "null"))
    publish_log(context, log_row("a", "quarantine", "p1", **before), log_row("a", "quarantine", "p2", minutes=5, **after))
    publish_log(context, log_row("a", "restore", "r1", minutes=9, source="p2", **after))
    assert read_quarantine(context.state, STORAGE).num_rows == 0


@pytest.mark.parametrize("other", [{"etag": "f"}, {"version_id": "v2"}, {"quarantine": "trash"}, {"key": "b"}])
def test_restore_of_one_object_does_not_end_records_of_other_objects(context: RunContext, other: dict[str, str]) -> None:
    """Each plan has its own copy in the trash."""
    same = {"etag": "e", "version_id": "v1", "quarantine": "trash" if "quarantine" in other else "versioned"}
    publish_log(context, log_row("a", "quarantine", "p1", **same), log_row("a", "quarantine", "p2", **same) | other)
    publish_log(context, log_row("a", "restore", "r1", minutes=9, source="p1", **same))
    assert read_quarantine(context.state, STORAGE).column("source_plan_id").to_pylist() == ["p2"]


@pytest.mark.parametrize("ends_record", [False, None])
def test_deferred_quarantine_does_not_end_if_purge_has_to_wait(context: RunContext, ends_record: bool | None) -> None:
    """Earlier releases did not record why the outcome is `changed`."""
    waits = log_row("a", "purge", "p3", minutes=9, source="p1", outcome="changed", quarantine="deferred", ends_record=ends_record)
    publish_log(context, log_row("a", "quarantine", "p1", quarantine="deferred"), waits)
    assert read_quarantine(context.state, STORAGE).column("source_plan_id").to_pylist() == ["p1"]


def test_changed_copy_in_the_trash_stays_in_quarantine(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"), log_row("a", "purge", "p3", minutes=9, source="p1", outcome="changed"))
    assert read_quarantine(context.state, STORAGE).num_rows == 1


def test_replaced_object_is_neither_removed_nor_purged(context: RunContext) -> None:
    entries = [
        log_row("a", "quarantine", "p1", quarantine="deferred"),
        log_row("a", "purge", "p2", minutes=9, source="p1", outcome="changed", quarantine="deferred", ends_record=True),
    ]
    publish_log(context, *entries)
    assert not removed_objects(pa.Table.from_pylist(entries, LOG_ENTRIES), NOW).num_rows
    assert find_purged(context.state, STORAGE, CopySelection()) is None
    assert find_purged_by(context.state, STORAGE, "p2") is None


def test_copy_not_found_by_restore_is_removed_from_quarantine(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p1"), log_row("b", "quarantine", "p1"), log_row("a", "quarantine", "p2"))
    publish_log(context, *(log_row("a", "restore", "r1", minutes=5, source="p1", outcome=outcome) for outcome in ("failed", "absent")))
    publish_log(context, log_row("b", "restore", "r1", minutes=5, source="p1", outcome="changed"))
    assert copies(read_quarantine(context.state, STORAGE)).keys() == {("b", "p1"), ("a", "p2")}


def test_object_whose_copy_is_lost_counts_as_removed() -> None:
    """An older inventory still contains it."""
    entries = [log_row("lost", "quarantine", "p1"), log_row("lost", "restore", "r1", minutes=5, source="p1", outcome="absent")]
    entries += [log_row("back", "quarantine", "p1"), log_row("back", "restore", "r1", minutes=5, source="p1")]
    assert removed_objects(pa.Table.from_pylist(entries, LOG_ENTRIES), NOW).column("key").to_pylist() == ["lost"]


def test_only_log_entries_of_given_keys_are_read(context: RunContext) -> None:
    publish_log(context, *(log_row(key, "quarantine", "p1") for key in "abc"))
    publish_log(context, log_row("a", "restore", "r1", minutes=5, source="p1"))
    reader = LogReader.of(context.state, STORAGE)
    assert sorted(reader.read_keys(pa.array(["a", "c", "d"])).column("key").to_pylist()) == ["a", "a", "c"]


def visible_copies(context: RunContext, *, rehearsal: bool) -> list[str]:
    return sorted(read_quarantine(context.state, STORAGE, rehearsal=rehearsal).column("key").to_pylist())


def test_rehearsals_and_real_runs_ignore_copies_of_each_other(context: RunContext) -> None:
    publish_log(context, log_row("real", "quarantine", "p1", token=1, rehearsal=False))
    publish_log(context, log_row("rehearsed", "quarantine", "p2", token=2, rehearsal=True))
    publish_log(context, log_row("older", "quarantine", "p3"))
    assert visible_copies(context, rehearsal=False) == ["older", "real"]
    assert visible_copies(context, rehearsal=True) == ["older", "rehearsed"]
    assert read_quarantine(context.state, STORAGE).num_rows == 3


def test_restored_file_stays_restored_after_a_rehearsal_quarantines_it(context: RunContext) -> None:
    """In a deferred quarantine the next real run would purge it immediately, because its days had
    passed.
    """
    publish_log(context, log_row("a", "quarantine", "p1", token=1, rehearsal=False, quarantine="deferred"))
    publish_log(context, log_row("a", "restore", "r1", minutes=9, source="p1", token=2, rehearsal=False, quarantine="deferred"))
    publish_log(context, log_row("a", "quarantine", "p2", minutes=-9000, token=3, rehearsal=True, quarantine="deferred"))
    assert visible_copies(context, rehearsal=False) == []


def test_real_restore_also_restores_copies_of_rehearsals(context: RunContext) -> None:
    publish_log(context, log_row("a", "quarantine", "p2", token=1, rehearsal=True))
    publish_log(context, log_row("a", "restore", "r1", source="p2", token=2, rehearsal=False))
    assert visible_copies(context, rehearsal=True) == visible_copies(context, rehearsal=False) == []


def test_files_moved_by_rehearsal_count_as_removed_from_any_inventory() -> None:
    entries = [
        log_row("real", "quarantine", "p1", token=1, rehearsal=False),
        log_row("rehearsed", "quarantine", "p2", token=2, rehearsal=True),
    ]
    later = removed_objects(pa.Table.from_pylist(entries, LOG_ENTRIES), NOW + timedelta(days=1))
    assert later.column("key").to_pylist() == ["rehearsed"]


def walk(entries: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the copies in quarantine with the etag of their entry, by a walk over all entries in
    order.

    An abort is about an upload and not about the file at its key. In deferred quarantine, all records
    of an object end together.
    """
    waiting: dict[tuple[str, str], str] = {}
    objects: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in sorted(
        (row for row in entries if row["phase"] != "abort"), key=lambda row: (row["token"] or 0, row["at"], row["run_id"] or "")
    ):
        is_gone = (entry["phase"], entry["outcome"]) in {("purge", "absent"), ("restore", "absent")}
        if entry["outcome"] == "done" or is_gone or entry["ends_record"]:
            copy = entry["key"], entry["plan_id"] if entry["phase"] == "quarantine" else entry["source_plan_id"]
            waiting.pop(copy, None)
            described = entry["key"], entry["etag"]
            if entry["phase"] == "quarantine":
                waiting[copy] = entry["etag"]
                objects[copy] = described if entry["quarantine"] == "deferred" else ("", "")
            elif entry["quarantine"] == "deferred":
                for same in [other for other in waiting if objects[other] == described]:
                    waiting.pop(same)
    return waiting


def random_entries(choose: random.Random, keys: str, entries: int) -> list[dict[str, Any]]:
    phases = [phase for phase in PHASES if phase != "expire"]
    number = count()
    rows = [
        log_row(
            choose.choice(keys),
            choose.choice(phases),
            choose.choice("pqr"),
            outcome=choose.choice(["done", "done", *VERDICTS]),
            minutes=choose.randrange(3),
            source=choose.choice("pqr"),
            run_id=f"{choose.randrange(2)}-{next(number):04d}",
            etag=f"e{choose.randrange(3)}",
            token=choose.choice([None, 1, 2, 3]),
            quarantine=choose.choice(["trash", "deferred"]),
        )
        for _ in range(entries)
    ]
    for row in rows:
        is_changed = (row["quarantine"], row["outcome"]) == ("deferred", "changed") and row["phase"] in {"purge", "restore"}
        row["ends_record"] = choose.choice([True, False, None]) if is_changed else False
    return rows


def copies(rows: pa.Table) -> dict[tuple[str, str], str]:
    return {(row["key"], row["source_plan_id"]): row["etag"] for row in rows.to_pylist()}


@given(st.randoms(use_true_random=False), st.integers(0, 12))
def test_ledger_matches_plain_loop_over_log_entries(choose: random.Random, size: int) -> None:
    entries = random_entries(choose, "ab", size)
    assert copies(copies_in_quarantine(pa.Table.from_pylist(entries, LOG_ENTRIES))) == walk(entries)


@given(st.randoms(use_true_random=False), st.integers(0, 12))
def test_selected_copies_need_only_log_entries_of_their_keys(choose: random.Random, size: int) -> None:
    entries = pa.Table.from_pylist(random_entries(choose, "ab", size), LOG_ENTRIES)
    for meant in (CopySelection(plan_id="p"), CopySelection(prefix="a"), CopySelection(key="b"), CopySelection(plan_id="q", key="a")):
        own_entries = meant.filter_entries(settled_entries(entries)).select(LOG_ENTRIES.names)
        assert copies(meant.find_copies(own_entries)) == copies(meant.find_copies(entries))


@pytest.mark.spark
def test_spark_and_arrow_select_the_same_copy(spark: SparkSession) -> None:
    rows = copies_in_quarantine(pa.Table.from_pylist(random_entries(random.Random(3), "abcdefghij", 200), LOG_ENTRIES))
    spark_rows = first_of_each_key(spark.createDataFrame(rows), newest_first()).select(*QUARANTINED_COPY.names).toArrow()
    assert copies(spark_rows) == copies(newest_of_each_key(rows))
    assert spark_rows.num_rows == pc.count_distinct(rows.column("key")).as_py() < rows.num_rows


@pytest.mark.spark
def test_spark_and_arrow_find_the_same_copies(spark: SparkSession, context: RunContext) -> None:
    entries = random_entries(random.Random(7), "abcdefghij", 300)
    for start in range(0, 300, 50):
        publish_log(context, *entries[start : start + 50])
    found = quarantine_ledger(spark, context.state, STORAGE).toArrow()
    assert copies(found) == copies(read_quarantine(context.state, STORAGE)) == walk(entries)
    assert found.select(QUARANTINED_COPY.names).num_rows > 5
