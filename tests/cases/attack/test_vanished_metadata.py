"""A table whose metadata vanishes after the freeze is unreadable in that run only, and stops no other table.

Writers delete old metadata with `write.metadata.delete-after-commit.enabled`. A drop with purge deletes all of it.

Source: attack A1-F1 of 2026-11-26.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.apply import ApplyResult
from gc_assets.stages.mark import commit_graph
from gc_assets.stages.mark.commit_rows import ReadCommits
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]
KEEP_ALL = {"history.expire.max-snapshot-age-ms": str(10**12)}


@contextmanager
def write_quickly(table: TableBuilder) -> Generator[None]:
    """Commit before each freeze, and replace and delete the metadata after it, before its commits are read."""

    def read_commits(*args: Any) -> ReadCommits:
        frozen = table.path(table.metadata_location)
        table.append(days_ago(1))
        frozen.unlink()
        return ReadCommits(*args)

    table.append(days_ago(1))
    with patch.object(commit_graph, "ReadCommits", read_commits):
        yield


@dataclass
class Story:
    """Runs of two tables with leftovers that appear after the first run.

    Attributes:
        during: Second run, in which the metadata of `db.stream` vanishes.
        repeated: Next run of the date, without the writer.
        planned: Files planned by these runs.
        live: Live files of `db.stream` in the second run.
        applied: Purge of the leftovers. The metadata vanishes in its verification marks.
    """

    leftovers: dict[str, set[str]]
    during: PlanHeader
    repeated: PlanHeader
    planned: list[set[str]]
    live: set[str]
    applied: ApplyResult


@pytest.fixture(scope="module", params=["in process", "on executors"])
def story(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    house = Lakehouse(spark, tmp_path_factory.mktemp("vanished"), settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    tables = [lake.table(name, days_ago(40), properties=KEEP_ALL) for name in ("db.quiet", "db.stream")]
    for table in tables:
        table.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    planned = list[set[str]]()

    def run() -> PlanHeader:
        header = house.plan()
        planned.append(set(house.planned_actions()))
        return header

    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "on executors":
            monkeypatch.setattr(commit_graph, "MAX_IN_PROCESS_SOURCES", -1)
        house.plan()
        house.now += timedelta(days=1)
        leftovers = {table.name: {house.key(path) for path in table.leftovers(days_ago(20), 2)} for table in tables}
        with write_quickly(tables[1]):
            during = run()
        live = {key for key in house.live() if key.startswith("db/stream/")}
        repeated = run()
        house.approve_and_apply(repeated)
        house.now += timedelta(days=1)
        purge = house.plan()
        house.approve(purge)
        with write_quickly(tables[1]):
            applied = house.apply(purge)
    return Story(leftovers, during, repeated, planned, live, applied)


def test_table_is_unreadable_in_the_run_with_missing_metadata(story: Story) -> None:
    [item] = story.during.unreadable
    assert item.table_name == "db.stream"
    assert "was deleted after this run had found it" in item.why
    assert item.good_on is not None


def test_files_from_last_successful_read_stay_live(story: Story) -> None:
    assert len([key for key in story.live if key.startswith("db/stream/data/")]) == 1


def test_garbage_of_other_tables_is_collected(story: Story) -> None:
    assert story.planned[0] == story.leftovers["db.quiet"]


def test_repeated_run_of_the_date_reads_the_table(story: Story) -> None:
    assert not story.repeated.unreadable
    assert story.planned[1] == story.leftovers["db.stream"] | story.leftovers["db.quiet"]


def test_purge_waits_if_the_metadata_vanishes_during_the_apply(story: Story) -> None:
    assert outcomes(story.applied) == {"changed"}
