"""gc-assets as a library, on the state of two nights that release 0.2.0 wrote (tests/data/state-0.2.0/README.md says what happened)."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import gc_assets
from gc_assets.core.errors import StateError, UsageError
from gc_assets.lakes.kinds import all_tables
from gc_assets.library import PublishedRun, PublishedRuns
from tests.archives import unpack
from tests.assets.platforms import platform

ARCHIVE = Path(__file__).parent / "data" / "state-0.2.0" / "state.tar.xz"
FIRST, SECOND = date(2026, 11, 20), date(2026, 11, 21)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> PublishedRuns:
    folder = tmp_path_factory.mktemp("library")
    unpack(ARCHIVE, folder)
    return gc_assets.open(folder / "gc-assets-state-0.2.0" / "lakes.yaml")


def test_the_newest_night_is_the_one_without_a_date(nights: PublishedRuns) -> None:
    assert nights.dates() == [FIRST, SECOND]
    assert nights.night().run_date == nights.night("2026-11-21").run_date == nights.night(SECOND).run_date == SECOND


def test_every_table_has_a_method_of_its_name_and_says_what_it_holds() -> None:
    for table in all_tables().values():
        method = getattr(PublishedRun, table.name)
        assert (method.__name__, method.__doc__.startswith(table.doc)) == (table.name, True)


def test_a_table_is_an_arrow_table_with_the_columns_of_its_schema(nights: PublishedRuns) -> None:
    orphans = nights.night("2026-11-20").orphan_files()
    assert isinstance(orphans, pa.Table)
    assert orphans.schema.equals(all_tables()["orphan_files"].schema)
    assert orphans.num_rows == pc.count_distinct(orphans.column("key")).as_py() > 0
    assert orphans.equals(nights.night(FIRST).table("orphan_files", "lake"))


def test_only_the_columns_that_are_asked_for_are_read(nights: PublishedRuns) -> None:
    chosen = nights.night(FIRST).orphan_files(columns=["size_bytes", "key"])
    assert chosen.schema.names == ["size_bytes", "key"]
    assert chosen.equals(nights.night(FIRST).orphan_files().select(["size_bytes", "key"]))


def test_what_a_plan_did_is_the_log_of_its_date_whoever_wrote_it(nights: PublishedRuns) -> None:
    log = nights.night(FIRST).deletion_log()
    assert pc.value_counts(log.column("phase")).to_pylist() == [{"values": "quarantine", "counts": 17}, {"values": "restore", "counts": 1}]
    assert nights.night(FIRST).expiry_log("shop").num_rows == 3


def test_the_plan_of_a_night_is_its_header_with_what_people_said_of_it(nights: PublishedRuns) -> None:
    plan = nights.night(SECOND).plan()
    assert {action: amount.files for action, amount in plan.header.totals.items()} == {"purge": 16, "quarantine": 4}
    assert plan.verdict.approved_by == "ada"
    assert plan.header == nights.plan(plan.header.plan_id[:12]).header
    assert [listed.header.plan_id for listed in nights.plans("lake")] == [plan.header.plan_id, nights.night(FIRST).plan().header.plan_id]


def test_the_books_tell_what_is_in_quarantine(nights: PublishedRuns) -> None:
    held = nights.quarantined()
    assert held.num_rows == 16
    assert set(held.column("source_plan_id").to_pylist()) == {nights.night(FIRST).plan().header.plan_id}


def test_a_file_is_explained_as_the_command_line_does(nights: PublishedRuns) -> None:
    night = nights.night(SECOND)
    live = night.live_files("shop", columns=["key"]).column("key")[0].as_py()
    (found,) = night.explain(live)
    assert (found.verdict, found.storage, found.chain[-1].name) == ("live", "lake", live)
    (gone,) = night.explain(nights.quarantined().column("key")[0].as_py())
    assert gone.verdict == "quarantined"


@pytest.mark.spark
def test_a_frame_of_ones_own_spark_session_has_the_same_rows(nights: PublishedRuns, spark: SparkSession) -> None:
    night, columns = nights.night(SECOND), ["lake", "key"]
    frame = night.frame(spark, "live_files", "weather", columns)
    assert frame.columns == columns
    assert sorted(map(tuple, frame.collect())) == sorted(
        zip(*(night.live_files("weather", columns).column(name).to_pylist() for name in columns), strict=True)
    )


@pytest.mark.parametrize(
    "asked, said",
    [
        (lambda nights: nights.night("yesterday"), "run date 'yesterday': expected a date"),
        (lambda nights: nights.night("1997-12-31"), "outside 1998-01-01"),
        (lambda nights: nights.night().table("orphans"), "there is no table 'orphans'; there are policy_table"),
        (lambda nights: nights.night().live_files(), "live_files: say which lake; the configuration has shop, weather"),
        (lambda nights: nights.night().live_files("lake"), "there is no lake 'lake' with this table; the configuration has shop, weather"),
        (lambda nights: nights.night().snapshot_history("weather"), "the configuration has shop"),
        (lambda nights: nights.night().live_contents(), "the configuration has none"),
        (lambda nights: nights.night().orphan_files(columns=["size"]), "orphan_files has no column size; it has key"),
        (lambda nights: nights.plans("warehouse"), "no storage is named 'warehouse'"),
    ],
)
def test_a_wrong_question_is_answered_with_what_there_is(nights: PublishedRuns, asked: object, said: str) -> None:
    assert callable(asked)
    with pytest.raises(UsageError, match=said):
        asked(nights)


def test_a_night_that_was_not_run_is_no_empty_table(nights: PublishedRuns, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="run `gc-assets run --run-date 2026-11-19"):
        nights.night("2026-11-19").orphan_files()
    with pytest.raises(StateError, match=r"no night of .* was run yet; run `gc-assets run`"):
        PublishedRuns(platform(tmp_path)).night()
