"""Run the whole protocol on many random repositories of spec version 2 in one house. The library that wrote them is the oracle."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.v2.builder import microseconds, set_flushed_at
from tests.lakes.icechunk.v2.expiries import assert_library_goes_on, names_in, repo_of
from tests.lakes.icechunk.v2.histories import History, write_data_files
from tests.lakes.icechunk.v2.library import Library
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

HISTORIES, STEPS = example_count(4, 60), 15
# Other histories than those of the tests without Spark.
FIRST_SEED = 100_000
AGE_OF_FILES = 40
POLICY = {"retention": {"default": "10d", "dangling": "1d"}, "expiry": {"semantics": "icechunk"}}


@dataclass
class Story:
    """Repositories in a house, the copies that the library collected, and the plan.

    Attributes:
        collected: The copies.
    """

    house: Lakehouse
    histories: list[History]
    collected: list[Path]
    header: PlanHeader


def spread_over_weeks(history: History) -> None:
    """Give the listed snapshots times from 20 to 2 days ago, in their order, and make all files and other snapshots old."""
    listed = sorted(repo_of(history.path).snapshots.values(), key=lambda entry: entry.flushed_us)
    step = timedelta(days=18) / len(listed)
    others = {path.name: days_ago(AGE_OF_FILES) for path in (history.path / "snapshots").iterdir()}
    set_flushed_at(history.path, {**others, **{entry.snapshot_id: days_ago(20) + n * step for n, entry in enumerate(listed)}})
    at = days_ago(AGE_OF_FILES).timestamp()
    for path in history.path.rglob("*"):
        os.utime(path, (at, at))


@pytest.fixture(scope="module")
def story(spark: SparkSession, icechunk2: Library, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("histories")
    house = Lakehouse(spark, root, settings={"gates": {"max_delete_share": 1}})
    write_data_files(root / "data")
    histories, copies = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
        history = History(icechunk2, house.warehouse / f"r{seed}", root / "data", seed)
        history.play(STEPS)
        spread_over_weeks(history)
        copy = Path(shutil.copytree(history.path, root / "copies" / f"r{seed}"))
        icechunk2.run(copy, [("expire", {"older_than": microseconds(days_ago(10))}), ("garbage_collect", {})])
        histories.append(history)
        copies.append(copy)
    house.lakes = [
        IcechunkLakeConfig.model_validate({"name": f"r{item.seed}", "kind": "icechunk", "location": f"file://{item.path}", **POLICY})
        for item in histories
    ]
    return Story(house, histories, copies, house.plan())


def test_plan_contains_garbage_that_icechunk_collects(story: Story) -> None:
    assert story.header.failed_gates == []
    expected = {
        f"{history.path.name}/{name}"
        for history, copy in zip(story.histories, story.collected, strict=True)
        for name in names_in(history.path) - names_in(copy)
    }
    planned = story.house.keys("deletion_plan")
    assert {key for key in planned if "/overwritten/" not in key} == expected
    assert len(expected) > HISTORIES


def test_reason_of_garbage_is_expired_if_a_listed_snapshot_needs_it(story: Story, icechunk2: Library, tmp_path: Path) -> None:
    """The library's collection keeps the files of tagged snapshots, and here all listed snapshots get a tag."""
    expected = dict[str, str]()
    for history, collected in zip(story.histories, story.collected, strict=True):
        tagged = Path(shutil.copytree(history.path, tmp_path / history.path.name))
        tags = [("create_tag", {"name": f"keeps-{snapshot}", "snapshot": snapshot}) for snapshot in repo_of(tagged).snapshots]
        icechunk2.run(tagged, [*tags, ("garbage_collect", {})])
        needed = names_in(tagged)
        garbage = names_in(history.path) - names_in(collected)
        expected |= {f"{history.path.name}/{name}": "expired" if name in needed else "unreferenced" for name in garbage}
    assert {key: reason for key, reason in story.house.orphans().items() if "/overwritten/" not in key} == expected
    assert set(expected.values()) == {"expired", "unreferenced"}


def test_apply_leaves_the_same_repository_as_icechunk(story: Story) -> None:
    applied = story.house.approve_and_apply(story.header)
    assert {outcome for _, outcome in applied.by_outcome} == {"done"}
    for history, copy in zip(story.histories, story.collected, strict=True):
        assert names_in(history.path) == names_in(copy), history.seed
        assert repo_of(history.path).snapshots == repo_of(copy).snapshots, history.seed


def test_icechunk_can_use_repository_after_apply(story: Story) -> None:
    for history in story.histories:
        assert_library_goes_on(history)
