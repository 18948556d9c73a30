"""The Python API, on a state of two runs of release 0.2.0 (tests/data/state-0.2.0/README.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import BaseModel
from pyspark.sql import SparkSession

import gc_assets
from gc_assets import library
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.plan import Unreadable
from gc_assets.lakes.kinds import all_tables
from gc_assets.library import PublishedRun, PublishedRuns
from gc_assets.stages.read.explain import Explanation
from gc_assets.state.index import Part
from tests.archives import unpack
from tests.assets.platforms import platform

ARCHIVE = Path(__file__).parent / "data" / "state-0.2.0" / "state.tar.xz"
FIRST, SECOND = date(2026, 11, 20), date(2026, 11, 21)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> PublishedRuns:
    folder = tmp_path_factory.mktemp("library")
    unpack(ARCHIVE, folder)
    return gc_assets.open(folder / "gc-assets-state-0.2.0" / "lakes.yaml")


def test_newest_run_is_the_default(runs: PublishedRuns) -> None:
    assert runs.dates() == [FIRST, SECOND]
    assert runs.run().run_date == runs.run("2026-11-21").run_date == runs.run(SECOND).run_date == SECOND


def test_every_table_has_a_documented_read_method() -> None:
    for table in all_tables().values():
        method = getattr(PublishedRun, table.name)
        assert (method.__name__, method.__doc__.startswith(table.doc)) == (table.name, True)


def test_table_is_read_as_arrow_with_the_published_schema(runs: PublishedRuns) -> None:
    orphans = runs.run("2026-11-20").orphan_files()
    assert isinstance(orphans, pa.Table)
    assert orphans.schema.equals(all_tables()["orphan_files"].schema)
    assert orphans.num_rows == pc.count_distinct(orphans.column("key")).as_py() > 0
    assert orphans.equals(runs.run(FIRST).table("orphan_files", "lake"))


def test_only_selected_columns_are_read(runs: PublishedRuns) -> None:
    chosen = runs.run(FIRST).orphan_files(columns=["size_bytes", "key"])
    assert chosen.schema.names == ["size_bytes", "key"]
    assert chosen.equals(runs.run(FIRST).orphan_files().select(["size_bytes", "key"]))


def test_deletion_log_contains_all_executions(runs: PublishedRuns) -> None:
    log = runs.run(FIRST).deletion_log()
    assert pc.value_counts(log.column("phase")).to_pylist() == [{"values": "quarantine", "counts": 17}, {"values": "restore", "counts": 1}]
    assert runs.run(FIRST).expiry_log("shop").num_rows == 3


def test_plan_has_header_and_decisions(runs: PublishedRuns) -> None:
    plan = runs.run(SECOND).plan()
    assert {action: amount.files for action, amount in plan.header.totals.items()} == {"purge": 16, "quarantine": 4}
    assert plan.verdict.approved_by == "ada"
    assert plan.header == runs.plan(plan.header.plan_id[:12]).header
    assert [listed.header.plan_id for listed in runs.plans("lake")] == [plan.header.plan_id, runs.run(FIRST).plan().header.plan_id]


def test_read_quarantine_lists_quarantined_files(runs: PublishedRuns) -> None:
    held = runs.read_quarantine()
    assert held.num_rows == 16
    assert set(held.column("source_plan_id").to_pylist()) == {runs.run(FIRST).plan().header.plan_id}


def test_explain_live_and_quarantined_files(runs: PublishedRuns) -> None:
    run = runs.run(SECOND)
    live = run.live_files("shop", columns=["key"]).column("key")[0].as_py()
    (found,) = run.explain(live)
    assert (found.verdict, found.storage, found.chain[-1].name) == ("live", "lake", live)
    (gone,) = run.explain(runs.read_quarantine().column("key")[0].as_py())
    assert gone.verdict == "quarantined"


@pytest.mark.spark
def test_spark_frame_has_the_rows_of_the_table(runs: PublishedRuns, spark: SparkSession) -> None:
    run, columns = runs.run(SECOND), ["lake", "key"]
    frame = run.frame(spark, "live_files", "weather", columns)
    assert frame.columns == columns
    assert sorted(map(tuple, frame.collect())) == sorted(
        zip(*(run.live_files("weather", columns).column(name).to_pylist() for name in columns), strict=True)
    )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda runs: runs.run("yesterday"), "run date 'yesterday': expected a date"),
        (lambda runs: runs.run("1997-12-31"), "outside 1998-01-01"),
        (lambda runs: runs.run().table("orphans"), "unknown table 'orphans'; available: policy_table"),
        (lambda runs: runs.run().live_files(), "live_files: pass the lake; configured: shop, weather"),
        (lambda runs: runs.run().live_files("lake"), "no lake 'lake' with this table; configured: shop, weather"),
        (lambda runs: runs.run().snapshot_history("weather"), "configured: shop"),
        (lambda runs: runs.run().live_contents(), "configured: none"),
        (lambda runs: runs.run().orphan_files(columns=["size"]), "orphan_files has no column size; its columns are key"),
        (lambda runs: runs.plans("warehouse"), "unknown storage 'warehouse'"),
    ],
)
def test_usage_error_lists_valid_names(runs: PublishedRuns, call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(UsageError, match=message):
        call(runs)


def test_missing_run_raises_an_error(runs: PublishedRuns, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="run `gc-assets run --run-date 2026-11-19"):
        runs.run("2026-11-19").orphan_files()
    with pytest.raises(StateError, match=r"has no run yet\. Run gc-assets run\."):
        PublishedRuns(platform(tmp_path)).run()


def test_renamed_methods_work_with_a_deprecation_warning(runs: PublishedRuns) -> None:
    with pytest.warns(DeprecationWarning, match="was renamed to `run`; the old name is removed in gc-assets 0.5.0"):
        run = runs.night(FIRST)
    assert run == runs.run(FIRST)
    with pytest.warns(DeprecationWarning, match="to `read_quarantine`"):
        assert runs.quarantined().equals(runs.read_quarantine())
    with pytest.warns(DeprecationWarning, match="to `context`"):
        assert run.night == run.context
    with pytest.warns(DeprecationWarning, match="to `PublishedRuns`"):
        assert library.Nights is PublishedRuns


RENAMED_ATTRIBUTES: list[tuple[Callable[[PublishedRuns], Any], str, str]] = [
    (lambda runs: runs.platform, "night", "run_context"),
    (lambda runs: runs.platform.config, "first_night", "first_run_date"),
    (lambda runs: runs.platform.config.storages[0].gates, "max_sick", "max_unreadable"),
    (lambda runs: runs.run().context, "recheck", "verification_id"),
    (lambda runs: runs.run().plan().header, "sick", "unreadable"),
    (lambda runs: runs.run().plan().verdict, "words", "events"),
    (lambda runs: runs.run().plan().verdict, "once_begun", "without_late_rejections"),
    (lambda runs: runs.run().plan().verdict.events[0], "said", "decision"),
    (lambda runs: runs.run().plan().published, "facts", "summary"),
    (lambda runs: runs.run().plan().published.receipt, "facts", "summary"),
    (lambda runs: runs.plans()[0].record, "words", "approval_events"),
    (lambda runs: runs.plans()[0].run, "headline", "summary"),
    (lambda runs: runs.plans()[0].run.entry, "facts", "summary"),
    (lambda runs: runs.plans()[0].run.entry, "is_there", "is_published"),
    (lambda _: Part(name="a", rows=1), "lies_in", "belongs_to"),
    (lambda _: Unreadable(lake="shop", why="torn", since=datetime(2026, 11, 20, tzinfo=UTC)), "told", "message"),
    (lambda _: Explanation("lake", "a", "live", "", summary={"plan": None}), "facts", "summary"),
]


@pytest.mark.parametrize("read, old, new", RENAMED_ATTRIBUTES)
def test_renamed_attribute_returns_the_value_of_the_new_attribute(
    runs: PublishedRuns, read: Callable[[PublishedRuns], Any], old: str, new: str
) -> None:
    value = read(runs)
    message = rf"`{type(value).__name__}\.{old}` was renamed to `{new}`; the old name is removed in gc-assets 0\.5\.0"
    with pytest.warns(DeprecationWarning, match=message) as warned:
        assert getattr(value, old) == getattr(value, new)
    assert [item.filename for item in warned] == [__file__]
    stored = (
        type(value).model_fields.keys() | value.model_dump().keys()
        if isinstance(value, BaseModel)
        else {item.name for item in fields(value)}
    )
    assert old not in stored


def test_explanation_events_keep_the_deprecated_key() -> None:
    explained = Explanation("lake", "a", "planned", "", approval_events=({"by": "ada", "decision": "approved"},))
    with pytest.warns(DeprecationWarning, match="`Explanation.words` was renamed to `approval_events`") as warned:
        assert explained.words == ({"by": "ada", "decision": "approved", "said": "approved"},)
    assert [item.filename for item in warned] == [__file__]
    assert not {"facts", "words"} & asdict(explained).keys()


@pytest.mark.spark
def test_snapshot_views_show_the_history(runs: PublishedRuns, spark: SparkSession) -> None:
    run = runs.run(SECOND)
    run.snapshot_views(spark, "shop")
    history = run.snapshot_history("shop")
    table = history.column("table_name")[0].as_py()
    expired = spark.sql("SELECT count(*) FROM expired_snapshots(:table)", args={"table": table}).collect()[0][0]
    counts = spark.sql(
        "SELECT count(*) AS n, count_if(expired) AS expired FROM all_snapshots WHERE table_name = :table", args={"table": table}
    )
    (row,) = counts.collect()
    assert spark.table("snapshot_history").count() == history.num_rows
    assert row["n"] >= row["expired"] == expired
    with pytest.raises(UsageError, match="configured: shop"):
        run.snapshot_views(spark, "weather")
