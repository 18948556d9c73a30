"""Unfinished multipart uploads from their plan to the log of the apply, on a real S3 server.

The tests depend on each other and run in order. The clock of the runs is days ahead, so that new uploads are old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.cli.run import plan_line
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.core.plan import PlanHeader, Unreadable, seal
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.engine.tables import publish, write_rows
from gc_assets.report.load import load_report
from gc_assets.report.page import render
from gc_assets.stages.delete.foreign_findings import ForeignFindings
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.delete.revalidate import Revalidation
from gc_assets.stages.delete.uploads import UploadExecution, find_old_uploads, planned_uploads, upload_totals
from gc_assets.stages.read.explain import explain
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import find_plan, list_plans
from gc_assets.state.files import Files
from gc_assets.state.schemas import DELETION_PLAN, LAKE_REFS, LIVE_FILES
from gc_assets.state.side_tables import UPLOADS, UPLOADS_SIDE
from gc_assets.state.summaries import DeletionPlanSummary
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import open_log
from tests.dates import next_noon
from tests.depth import in_turn
from tests.s3.proxy import Request, Rule, error_answer, run_proxy
from tests.s3.servers import shared_server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stages.lakehouse import STORAGE, counts
from tests.stores.s3.test_uploads import begin, complete, list_uploads
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

DATA = "iceberg/db/orders/data/"
GARBAGE_NAMES = ("dead", "denied", "finished", "grown", "restarted")
UNREADABLE = Unreadable(lake="sales", table_uuid="t", table_name="db.orders", why="truncated", since=datetime(2026, 1, 2, tzinfo=UTC))
UNOWNED = ("other/unowned", ".gc-assets/trash/plan/ours")


@dataclass
class UploadStory:
    house: BucketLakehouse
    uploads: dict[str, dict[str, str]]
    header: PlanHeader

    def list_keys(self) -> set[str]:
        return {key for key, _ in list_uploads(self.house.bench)}

    def rows(self, header: PlanHeader) -> list[dict[str, Any]]:
        return planned_uploads(self.house.run_context().state, find_plan(self.house.config, header.plan_id).published).to_pylist()

    def find_uploads(self, **options: Any) -> tuple[set[str], int]:
        """Return the uploads that a new plan would contain, and the number left for later plans."""
        context = replace(self.house.run_context(), clock=options.get("clock", self.house.clock))
        cutoff, unreadable = options.get("cutoff", self.header.grace_cutoff), tuple(options.get("unreadable", ()))
        inputs = replace(PlanInputs.of(context, STORAGE), unreadable=unreadable)
        rows, later = find_old_uploads(inputs, cutoff, ForeignFindings(0, ()))
        return {key.removeprefix(DATA) for key in rows.column("key").to_pylist()}, later

    def forge_plan(self, *rows: dict[str, Any], **changes: Any) -> PlanHeader:
        """Publish a valid plan with other uploads, as an attacker with write access to the state can."""
        house, table = self.house, pa.Table.from_pylist(list(rows), UPLOADS)
        state = house.run_context().state
        kept = {name: getattr(self.header, name) for name in PlanHeader.model_fields}
        unsealed = {name: value for name, value in kept.items() if name not in {"plan_id", "keyed", "approve_before", "apply_before"}}
        header = seal(**{**unsealed, "uploads": upload_totals(table, 0), **changes})
        run = state.start(STORAGE, DELETION_PLAN.name, header.run_date, house.clock)
        written = write_rows(DELETION_PLAN.schema.empty_table(), DELETION_PLAN, run, state.files, {UPLOADS_SIDE: table})
        publish(state, run, written, house.clock, summary=DeletionPlanSummary(plan_id=header.plan_id, header=header))
        return header


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UploadStory]:
    def is_denied(request: Request) -> bool:
        return request.method == "DELETE" and "uploadId" in request.query and "/denied?" in request.target

    denied = Rule(is_denied, lambda exchange: exchange.reply(error_answer(403, "AccessDenied")), times=9)
    with open_s3_bench("ceph", prefix="lakes/") as bench, run_proxy(shared_server("ceph"), denied) as proxy:
        root: Path = tmp_path_factory.mktemp("uploads")
        now = next_noon(days=4)
        settings = {"s3": proxy.server.settings.model_dump(mode="json", exclude_none=True)}
        house = BucketLakehouse(spark, root, settings=settings, now=now, bench=bench)
        house.lakes = [Iceberg(house).config]
        uploads = {name: begin(bench, DATA + name, name.encode()) for name in GARBAGE_NAMES}
        uploads |= {key: begin(bench, key, b"x") for key in UNOWNED}
        yield UploadStory(house, uploads, house.plan())


def test_plan_contains_old_unfinished_uploads_in_claimed_prefixes(story: UploadStory) -> None:
    header, rows = story.header, story.rows(story.header)
    assert (header.totals, header.rows, header.has_work, header.failed_gates) == ({}, 0, True, [])
    assert (header.uploads.count, header.uploads.bytes, header.uploads.later) == (len(GARBAGE_NAMES), len("".join(GARBAGE_NAMES)), 0)
    fields = {row["key"]: (row["upload_id"], row["size_bytes"], row["lake"]) for row in rows}
    assert fields == {DATA + name: (story.uploads[name]["UploadId"], len(name), "sales") for name in GARBAGE_NAMES}
    assert all(abs(row["initiated"] - datetime.now(UTC)) < timedelta(minutes=10) for row in rows)
    assert story.list_keys() == {*UNOWNED, *(DATA + name for name in GARBAGE_NAMES)}


def test_young_or_excluded_or_too_many_uploads_are_not_planned(story: UploadStory, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = min(row["initiated"] for row in story.rows(story.header))
    assert story.find_uploads() == (set(GARBAGE_NAMES), 0)
    assert story.find_uploads(cutoff=oldest) == (set(), 0)
    assert story.find_uploads(unreadable=[UNREADABLE]) == (set(), 0)
    assert story.find_uploads(clock=Clock()) == (set(), 0)  # the cut-off is from a clock ahead of the time of the store
    story.house.settings["abort_uploads"] = False
    assert story.find_uploads() == (set(), 0)
    del story.house.settings["abort_uploads"]
    monkeypatch.setattr("gc_assets.stages.delete.uploads.MAX_PLANNED", 2)
    names, later = story.find_uploads()
    assert (len(names), later) == (2, len(GARBAGE_NAMES) - 2)


def test_all_plan_texts_report_that_aborted_uploads_are_permanent(story: UploadStory) -> None:
    header, house = story.header, story.house
    effect = "5 unfinished uploads (32 B) aborted permanently, with the data that their writers sent"
    can, cannot, free = describe_reversibility(header, house.config).lines
    assert (can, cannot) == ("Can be undone: nothing.", f"Cannot be undone: {effect}.")
    assert free == "Becomes free: 32 B immediately, by aborting unfinished uploads."
    line = f"{STORAGE}: plan {header.plan_id[:12]}, gates passed; aborts 5 unfinished uploads (32 B)"
    assert plan_line(header) == mark_rehearsal(line, header.rehearsal)
    (listed,) = list_plans(house.config)
    assert (listed.header.plan_id, listed.header.uploads) == (header.plan_id, header.uploads)
    (explanation,) = explain(house.run_context(), DATA + "dead")
    assert f"Plan {header.plan_id[:12]} aborts 1 unfinished upload to it, permanently." in explanation.sentence
    page = render(load_report(house.run_context()))
    assert effect in page
    assert all(story.uploads[name]["UploadId"] in page for name in GARBAGE_NAMES)


def test_mode_plan_aborts_no_upload(story: UploadStory) -> None:
    story.house.settings["mode"] = "plan"
    with pytest.raises(GateRefused, match="is in plan mode"):
        story.house.approve_and_apply(story.header)
    del story.house.settings["mode"]
    assert len(story.list_keys()) == len(story.uploads)


def test_no_upload_is_aborted_for_unreadable_table_or_outdated_plan(story: UploadStory, tmp_path: Path) -> None:
    context, plan = story.house.run_context(), find_plan(story.house.config, story.header.plan_id)
    refs, live = [context.table(LAKE_REFS, "sales")], [context.table(LIVE_FILES, "sales")]
    revalidation = Revalidation.of(context, story.header, refs, live, timedelta(0))
    nothing = ForeignFindings(0, ())
    cases = [(False, "changed", "cannot be read"), (True, "denied", "out of date")]
    lease = open_store(f"file://{tmp_path}/").acquire(story.header.plan_id, "tester", Clock())
    with hold_lease(lease):
        for is_outdated, outcome, reason in cases:
            log = open_log(Files(str(tmp_path)), outcome, story.header.plan_id, len(GARBAGE_NAMES))
            execution = UploadExecution(context, plan, log, lease, "run")
            rows = execution.end() if is_outdated else execution.abort(revalidation, nothing, [UNREADABLE])
            assert rows.column("outcome").to_pylist() == [outcome] * len(GARBAGE_NAMES)
            assert all(reason in error for error in rows.column("error").to_pylist())
    assert len(story.list_keys()) == len(story.uploads)


def test_plan_with_changed_uploads_is_refused(story: UploadStory) -> None:
    rows = story.rows(story.header)
    header = story.forge_plan(*rows[1:], uploads=story.header.uploads.model_copy(update={"later": 1}))
    with pytest.raises(StateError, match=r"its uploads in .* were changed after the plan was made"):
        story.house.approve_and_apply(header)
    assert len(story.list_keys()) == len(story.uploads)


def test_each_upload_is_revalidated_before_its_abort(story: UploadStory) -> None:
    house, (row, *_) = story.house, story.rows(story.header)
    house.bench.client.upload_part(**story.uploads["grown"], PartNumber=2, Body=b"y")
    complete(house.bench, story.uploads["finished"])
    house.bench.client.abort_multipart_upload(**story.uploads["restarted"])
    restarted = begin(house.bench, DATA + "restarted", b"restarted")
    forged = [{**row, "key": key, "upload_id": story.uploads[key]["UploadId"]} for key in UNOWNED]
    header = story.forge_plan(*story.rows(story.header), *forged)
    before = house.contents()
    applied = house.approve_and_apply(header)
    outcomes = {"done": 1, "changed": 1, "absent": 2, "denied": 3}
    assert counts(applied.by_outcome) == {("abort", outcome): count for outcome, count in outcomes.items()}
    log = {row["key"].removeprefix(DATA): row for row in house.rows("deletion_log")}
    assert {name: row["outcome"] for name, row in log.items()} == {
        "dead": "done",
        "denied": "denied",
        "finished": "absent",
        "grown": "changed",
        "restarted": "absent",
        **dict.fromkeys(UNOWNED, "denied"),
    }
    assert {(row["phase"], row["plan_id"]) for row in log.values()} == {("abort", header.plan_id)}
    assert {name: row["version_id"] for name, row in log.items()} == {name: item["UploadId"] for name, item in story.uploads.items()}
    assert "AccessDenied" in log["denied"]["error"]
    assert "no lake claims this key" in log["other/unowned"]["error"]
    kept = {DATA + name: story.uploads[name]["UploadId"] for name in ("denied", "grown")}
    kept |= {DATA + "restarted": restarted["UploadId"], **{key: story.uploads[key]["UploadId"] for key in UNOWNED}}
    assert dict(list_uploads(house.bench)) == kept
    assert house.contents() == before
    assert house.bench.get(DATA + "finished") == b"finished"
    assert read_quarantine(house.run_context().state, STORAGE).num_rows == 0


def test_second_apply_aborts_no_upload(story: UploadStory) -> None:
    plan_id = next(plan.header.plan_id for plan in list_plans(story.house.config) if plan.record.finished_at is not None)
    again = story.house.apply(find_plan(story.house.config, plan_id).header)
    assert again.nothing_to_do is not None
    assert len(story.list_keys()) == 5
