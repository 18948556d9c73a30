"""Asset checks on valid and invalid published tables."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.assets import checks
from gc_assets.assets.checks import Check, CheckResult
from gc_assets.core.errors import StateError
from gc_assets.core.filter import Filter, FilterSpec
from gc_assets.core.hashing import xxhash64
from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import WrittenParts, publish, write_rows
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import PartWriter
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import (
    COMMIT_GRAPH,
    DELETION_LOG,
    LAKE_REFS,
    LIVE_FILES,
    LIVE_FILTER,
    MANIFEST_ENTRIES,
    ORPHAN_FILES,
    REACHABLE_SNAPSHOTS,
    Table,
)
from gc_assets.state.side_tables import STATES_SIDE
from tests.assets.platforms import NOW, platform, stored_plan
from tests.records import EMPTY_LIVE_SET, EMPTY_SWEEP
from tests.stages.live_sets import publish_live_set


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return platform(tmp_path).run_context(NOW.date())


COUNTS = ("decoded", "entries", "external", "container_bytes", "levels", "segments")


def publish_table(context: RunContext, group: str, table: Table, rows: list[dict[str, Any]], **summary: Any) -> PublishedTable:
    run = context.state.start(group, table.name, context.run_date, context.clock)
    written = write_rows(pa.Table.from_pylist(rows, schema=table.schema), table, run, context.state.files)
    return publish(
        context.state, run, written, context.clock, balances=[Balance(name="rows", expected=len(rows), found=len(rows))], summary=summary
    )


def verdict(check: Check, context: RunContext, table: PublishedTable) -> CheckResult:
    return check.evaluate(context, table)


def live(context: RunContext, lake: str, keys: list[str]) -> PublishedTable:
    hashes = xxhash64(pa.array(keys, pa.string()))
    rows = [{"storage": "warehouse", "key": key, "key_hash": int(value)} for key, value in zip(keys, hashes, strict=True)]
    return publish_table(context, lake, LIVE_FILES, rows, **{**EMPTY_LIVE_SET, "files": len(rows)})


def test_receipt_check_fails_for_changed_part_file(context: RunContext, tmp_path: Path) -> None:
    table = publish_table(context, "sales", LAKE_REFS, [{"ref_name": "main", "ref_type": "branch", "head_commit_id": "1"}])
    assert verdict(checks.RECEIPT, context, table).passed
    part = tmp_path / "state" / table.paths()[0]
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    found = verdict(checks.RECEIPT, context, table)
    assert (found.passed, found.numbers["parts_changed"]) == (False, 1)


def test_complete_check_reports_unbalanced_counts(context: RunContext) -> None:
    table = publish_table(context, "sales", LAKE_REFS, [])
    assert verdict(checks.COMPLETE, context, table).passed
    receipt = table.receipt.model_copy(update={"balances": (Balance(name="commits", expected=15, found=14),)})
    found = verdict(checks.COMPLETE, context, PublishedTable(table.path, receipt))
    assert not found.passed
    assert "commits: expected 15, found 14" in (found.description or "")


def test_empty_live_set_with_heads_fails(context: RunContext) -> None:
    publish_table(context, "sales", LAKE_REFS, [{"ref_name": "main", "ref_type": "branch", "head_commit_id": "1"}])
    assert not verdict(checks.LIVE_WHILE_REFS, context, live(context, "sales", [])).passed
    assert verdict(checks.LIVE_WHILE_REFS, context, live(context, "sales", ["a"])).passed


def test_empty_live_set_without_snapshots_passes(context: RunContext) -> None:
    publish_table(context, "sales", LAKE_REFS, [{"ref_name": "main", "ref_type": "branch", "head_commit_id": None}])
    assert verdict(checks.LIVE_WHILE_REFS, context, live(context, "sales", [])).passed


def test_empty_live_set_of_empty_commits_passes(context: RunContext) -> None:
    publish_table(context, "sales", LAKE_REFS, [{"ref_name": "main", "ref_type": "branch", "head_commit_id": "2"}])
    root = {"address": "file:///m", "kind": "metarange", "is_container": True, "must_exist": True}
    old = {"commit_id": "1", "parents": [], "committed_at": context.as_of, "content_roots": [root], "summary": []}
    publish_table(context, "sales", COMMIT_GRAPH, [old, {**old, "commit_id": "2", "parents": ["1"], "content_roots": []}])
    judged = {"refs": ["main"], "refs_count": 1, "reason": "r"}
    for state, passed in [("expired", True), ("retained", False)]:
        rows = [{**judged, "commit_id": "1", "state": state}, {**judged, "commit_id": "2", "state": "retained"}]
        publish_table(context, "sales", REACHABLE_SNAPSHOTS, rows)
        assert verdict(checks.LIVE_WHILE_REFS, context, live(context, "sales", [])).passed == passed


def test_unreadable_tables_only_warn(context: RunContext) -> None:
    unreadable = Unreadable(lake="sales", table_name="db.t", table_uuid="u", why="torn", since=context.as_of, good_on=context.run_date)
    table = publish_table(context, "sales", LIVE_FILES, [], **EMPTY_LIVE_SET, unreadable=[unreadable.model_dump(mode="json")])
    found = verdict(checks.ALL_READABLE, context, table)
    assert (found.passed, checks.ALL_READABLE.blocking) == (False, False)
    assert "table db.t of lake sales has been unreadable since" in (found.description or "")


def test_metadata_missing_only_from_the_listing_warns(context: RunContext) -> None:
    unreadable = Unreadable(lake="sales", table_name="db.t", table_uuid="u", why="m.avro is missing from the listing", since=context.as_of)
    swept = publish_table(context, "warehouse", ORPHAN_FILES, [], **EMPTY_SWEEP)
    assert verdict(checks.ALL_LISTED, context, swept).passed
    swept = publish_table(context, "warehouse", ORPHAN_FILES, [], **{**EMPTY_SWEEP, "unreadable": [unreadable.model_dump(mode="json")]})
    found = verdict(checks.ALL_LISTED, context, swept)
    assert (found.passed, checks.ALL_LISTED.blocking, found.numbers) == (False, False, {"unreadable": 1})
    assert "m.avro is missing from the listing" in (found.description or "")


def publish_filter(context: RunContext, keys: list[str]) -> PublishedTable:
    bloom = Filter.empty(FilterSpec.for_keys(keys=max(1, len(keys)), seed=7))
    bloom.add(xxhash64(pa.array(keys, pa.string())))
    run = context.state.start("warehouse", LIVE_FILTER.name, context.run_date, context.clock)
    writer = PartWriter(context.state.files, run.path, LIVE_FILTER.schema)
    rows = [{"slice": 0, "slices": 1, "keys": len(keys), "filter": bloom.to_bytes()}]
    writer.write(pa.RecordBatch.from_pylist(rows, schema=LIVE_FILTER.schema))
    return publish(context.state, run, WrittenParts(tuple(writer.close()), 0), context.clock)


def test_filter_check_probes_live_keys_of_all_lakes(context: RunContext) -> None:
    live(context, "sales", ["a", "b"])
    live(context, "weather", ["c"])
    assert verdict(checks.HOLDS_LIVE_KEYS, context, publish_filter(context, ["a", "b", "c"])).numbers == {
        "keys_probed": 3,
        "keys_missed": 0,
    }


def test_filter_check_reads_key_hashes_of_live_metadata_files(context: RunContext) -> None:
    publish_live_set(context, "sales", {"warehouse": ["a", "b"]})
    publish_live_set(context, "weather", {"warehouse": ["c"]})
    assert verdict(checks.HOLDS_LIVE_KEYS, context, publish_filter(context, ["a", "b", "c"])).passed
    assert verdict(checks.HOLDS_LIVE_KEYS, context, publish_filter(context, ["a", "c"])).numbers == {"keys_probed": 3, "keys_missed": 1}


def test_receipt_check_fails_for_changed_file_without_rows(context: RunContext, tmp_path: Path) -> None:
    table = publish_live_set(context, "sales", {"warehouse": ["a"]})
    assert verdict(checks.RECEIPT, context, table).passed
    (tmp_path / "state" / table.paths(STATES_SIDE)[0]).write_bytes(b"other bytes")
    assert not verdict(checks.RECEIPT, context, table).passed


def test_filter_that_misses_a_live_key_fails(context: RunContext) -> None:
    live(context, "sales", ["a", "b"])
    live(context, "weather", ["c"])
    found = verdict(checks.HOLDS_LIVE_KEYS, context, publish_filter(context, ["a", "b"]))
    assert (found.passed, found.numbers["keys_missed"]) == (False, 1)


def test_live_file_among_candidates_fails(context: RunContext) -> None:
    clean = publish_table(context, "warehouse", ORPHAN_FILES, [], **EMPTY_SWEEP)
    assert verdict(checks.NO_LIVE_CANDIDATE, context, clean).passed
    one_hit = {"false_negatives": 1, "stopped_samples": ["false_negatives: a.parquet"]}
    dirty = publish_table(context, "warehouse", ORPHAN_FILES, [], **{**EMPTY_SWEEP, **one_hit})
    found = verdict(checks.NO_LIVE_CANDIDATE, context, dirty)
    assert not found.passed
    assert "a.parquet" in (found.description or "")


def test_unreadable_containers_only_warn(context: RunContext) -> None:
    table = publish_table(context, "sales", MANIFEST_ENTRIES, [], **dict.fromkeys(COUNTS, 0), unreadable=2)
    assert not verdict(checks.EVERYTHING_DECODED, context, table).passed
    assert not checks.EVERYTHING_DECODED.blocking


def test_failed_gate_fails_the_check(tmp_path: Path, context: RunContext) -> None:
    at = platform(tmp_path)
    assert verdict(checks.GATES, context, stored_plan(at)).passed
    found = verdict(checks.GATES, context, stored_plan(at, max_delete_bytes=199))
    assert not found.passed
    assert "200 B planned, max_delete_bytes allows 199 B" in (found.description or "")


def test_plan_intact_check_fails_for_an_edited_plan(tmp_path: Path, context: RunContext) -> None:
    table = stored_plan(platform(tmp_path))
    assert verdict(checks.PLAN_INTACT, context, table).passed
    header = {**table.receipt.summary["header"], "live_files": 8}
    edited = table.receipt.model_copy(update={"summary": {**table.receipt.summary, "header": header}})
    assert not verdict(checks.PLAN_INTACT, context, PublishedTable(table.path, edited)).passed


def test_failed_keys_are_summed_over_phases(context: RunContext) -> None:
    one, three = {"files": 1, "bytes": 1}, {"files": 3, "bytes": 3}
    by_outcome = {"quarantine/done": three, "quarantine/failed": one, "purge/failed": one}
    assert verdict(
        checks.NO_FAILED_KEY, context, publish_table(context, "warehouse", DELETION_LOG, [], plan_id="p", by_outcome=by_outcome)
    ).numbers == {"failed_files": 2}


def test_table_with_missing_part_cannot_be_read(context: RunContext, tmp_path: Path) -> None:
    table = publish_table(context, "sales", LAKE_REFS, [{"ref_name": "main", "ref_type": "branch"}])
    (tmp_path / "state" / table.paths()[0]).unlink()
    with pytest.raises(StateError, match="is missing"):
        context.state.require("sales", LAKE_REFS.name, context.run_date)
