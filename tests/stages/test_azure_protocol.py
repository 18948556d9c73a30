"""The whole protocol on Azurite: plan, approve, apply, restore, plan, apply, purge.

It covers lakes of all kinds, the state in a container and on a disk, and every quarantine mode that
Azurite can do. It keeps no versions. A story is one sequence of events, and each test continues after
the previous one. The age of blobs cannot be set, so the clock of the runs is moved ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.protocol import RESERVED_PREFIX, QuarantineMode
from tests.dates import next_noon
from tests.depth import full_suite_only
from tests.lakes.nessie.server import Server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import BucketLake, lakes_of_all_kinds
from tests.stages.lakehouse import counts, outcomes
from tests.stores.azure_bench import location_of, open_azure_bench

pytestmark = [pytest.mark.spark, full_suite_only]

MODES: tuple[QuarantineMode, ...] = ("trash", "deferred")
PAIRS = [(mode, state) for mode in MODES for state in ("state_on_azure", "state_on_disk")]


@dataclass
class AzureStory:
    house: BucketLakehouse
    lakes: Mapping[str, BucketLake]
    before: dict[str, str]
    header: Any
    planned: set[str]

    def readable(self) -> None:
        for lake in self.lakes.values():
            lake.readable()


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def story(
    request: pytest.FixtureRequest, spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AzureStory]:
    mode, state = request.param
    with ExitStack() as stack:
        bench = stack.enter_context(open_azure_bench(prefix="lakes/"))
        house = BucketLakehouse(spark, tmp_path_factory.mktemp("azure"), settings={"quarantine": mode}, now=next_noon(days=30), bench=bench)
        if state == "state_on_azure":
            house.state = location_of(bench.server.container(), "state/")
        lakes = stack.enter_context(lakes_of_all_kinds(house, nessie_server))
        before, header = house.contents(), house.plan()
        yield AzureStory(house, lakes, before, header, house.keys("deletion_plan"))


def test_plan_contains_unreferenced_objects(story: AzureStory) -> None:
    assert story.header.failed_gates == []
    assert {key for lake in story.lakes.values() for key in lake.garbage} <= story.planned
    assert not story.planned & (story.house.live() | {key for lake in story.lakes.values() for key in lake.kept})
    assert set(story.header.expiry_actions) == {"sales", "weather"}


def test_run_leaves_the_container_unchanged(story: AzureStory) -> None:
    """Files that the lakeFS server writes on every request are excluded."""

    def others(contents: dict[str, str]) -> dict[str, str]:
        return {key: digest for key, digest in contents.items() if not key.startswith("ml-data/_lakefs/")}

    assert others(story.house.contents()) == others(story.before)


def test_apply_edits_histories_and_quarantines_planned_objects(story: AzureStory) -> None:
    applied, edits = story.house.approve_and_apply(story.header), sum(story.header.expiry_actions.values())
    assert counts(applied.by_outcome) == Counter({("expire", "done"): edits, ("quarantine", "done"): len(story.planned)})
    is_trash = story.house.settings["quarantine"] == "trash"
    assert set(story.before) - set(story.house.contents()) == (story.planned if is_trash else set())
    sent = story.house.summary("deletion_log")["requests"]
    assert sent["HEAD"] >= len(story.planned)
    assert sent.get("COPY", 0) == (len(story.planned) if is_trash else 0)
    story.readable()


def test_restore_is_byte_for_byte(story: AzureStory) -> None:
    _, outcome_counts = story.house.restore(story.header.plan_id)
    assert outcome_counts == {"done": len(story.planned)}
    after = story.house.contents()
    assert {key: after[key] for key in story.planned} == {key: story.before[key] for key in story.planned}
    assert find_plan(story.house.config, story.header.plan_id).status_at(story.house.now) == "restored"


def test_later_runs_quarantine_and_purge(story: AzureStory) -> None:
    house = story.house
    house.now += timedelta(days=5)
    header = house.plan()
    assert house.keys("deletion_plan") >= story.planned
    assert outcomes(house.approve_and_apply(header)) == {"done"}
    house.now += timedelta(days=1)
    purge = house.plan()
    assert story.planned <= house.keys("deletion_plan", action="purge")
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert not [key for key in house.bench.everything() if key.startswith(f"{RESERVED_PREFIX}trash/")]
    story.readable()


def test_purge_removes_planned_objects_and_nothing_else(story: AzureStory) -> None:
    after = story.house.contents()
    assert not story.planned & after.keys()
    changed = {key for key in story.before.keys() & story.house.live() if after.get(key) != story.before[key]}
    assert len(changed) == 1  # the single snapshot with an edited parent
    assert all(key.startswith("weather/snapshots/") for key in changed)
