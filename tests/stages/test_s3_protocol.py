"""The whole protocol on a real S3 server: plan, approve, apply, restore, plan, apply, purge.

It covers lakes of all kinds, each quarantine mode, and the state on S3 and on a disk. In a normal
run `cli/test_secrets.py` plans and applies lakes of all kinds in a bucket, `test_s3_faults.py`
restores an Iceberg lake, and only the store's contract purges.

A story is one sequence of events, and each test continues after the previous one. The age of
objects in a bucket cannot be set, so the clock of the runs is moved ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession

from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.protocol import RESERVED_PREFIX, QuarantineMode
from tests.dates import next_noon
from tests.depth import full_suite_only
from tests.lakes.nessie.server import Server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import BucketLake, lakes_of_all_kinds
from tests.stages.lakehouse import counts, outcomes
from tests.state.s3_location import unused_location
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = [pytest.mark.spark, full_suite_only]

MODES: tuple[QuarantineMode, ...] = ("versioned", "trash", "deferred")
STATES = ("state_on_s3", "state_on_disk")
PAIRS = [(mode, state) for mode in MODES for state in STATES]


@dataclass
class BucketStory:
    house: BucketLakehouse
    lakes: Mapping[str, BucketLake]
    before: dict[str, str]
    header: Any
    planned: set[str]
    # Objects that only an edit would free, which this server cannot make.
    held: set[str]

    @property
    def garbage(self) -> set[str]:
        return {key for lake in self.lakes.values() for key in lake.garbage}

    @property
    def kept(self) -> set[str]:
        return {key for lake in self.lakes.values() for key in lake.kept}

    @property
    def going(self) -> set[str]:
        return self.planned - self.held

    def readable(self) -> None:
        for lake in self.lakes.values():
            lake.readable()


def _rejects_conditional_replace(bench: S3Bench) -> bool:
    """Return whether the server rejects every conditional replace, as Ceph 16 does in a bucket with versions."""
    place = {"Bucket": bench.bucket, "Key": f"{bench.prefix}probe"}
    tag = bench.client.put_object(**place, Body=b"1")["ETag"]
    try:
        bench.client.put_object(**place, Body=b"2", IfMatch=tag)
    except ClientError:
        return True
    finally:
        bench.remove("probe")
    return False


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def story(
    request: pytest.FixtureRequest, spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BucketStory]:
    mode, state = request.param
    with ExitStack() as stack:
        bench = stack.enter_context(open_s3_bench("ceph", versioned=mode == "versioned", prefix="lakes/"))
        now = next_noon(days=30)
        house = BucketLakehouse(spark, tmp_path_factory.mktemp("bucket"), settings={"quarantine": mode}, now=now, bench=bench)
        if state == "state_on_s3":
            house.state, house.s3 = stack.enter_context(unused_location())
        lakes = stack.enter_context(lakes_of_all_kinds(house, nessie_server))
        before, header = house.contents(), house.plan()
        held = house.keys("deletion_plan", lake="weather", after_expiry=True) if _rejects_conditional_replace(bench) else set[str]()
        yield BucketStory(house, lakes, before, header, house.keys("deletion_plan"), held)


def test_plan_contains_unreferenced_objects(story: BucketStory) -> None:
    assert story.header.failed_gates == []
    assert story.garbage <= story.planned
    assert not story.planned & (story.house.live() | story.kept)
    assert set(story.header.expiry_actions) == {"sales", "weather"}
    entries = story.house.summary("manifest_entries", "sales")
    assert entries["requests"]["GET"] >= entries["decoded"] > 0


def test_run_leaves_the_bucket_unchanged(story: BucketStory) -> None:
    """Files that the lakeFS server writes on every request are excluded."""

    def others(contents: dict[str, str]) -> dict[str, str]:
        return {key: digest for key, digest in contents.items() if not key.startswith("ml-data/_lakefs/")}

    assert others(story.house.contents()) == others(story.before)


def test_apply_edits_histories_and_quarantines_planned_objects(story: BucketStory) -> None:
    applied = story.house.approve_and_apply(story.header)
    edits, refused = dict(story.header.expiry_actions), 0
    if story.held:
        refused = edits.pop("weather")
        (edit,) = story.house.rows("expiry_log", "weather")
        assert "this server rejects a conditional replace" in edit["error"]
        assert f"'s3://{story.house.bench.bucket}/" in edit["error"]
        assert "`gc-assets doctor`" in edit["error"]
    outcome_counts = Counter({("expire", "done"): sum(edits.values()), ("expire", "changed"): refused})
    outcome_counts |= {("quarantine", "done"): len(story.going), ("quarantine", "changed"): len(story.held)}
    assert counts(applied.by_outcome) == +outcome_counts
    gone = set(story.before) - set(story.house.contents())
    assert gone == (set[str]() if story.house.settings["quarantine"] == "deferred" else story.going)
    sent = story.house.summary("deletion_log")["requests"]
    assert sent["HEAD"] >= len(story.going)
    assert sent.get("COPY", 0) == (len(story.going) if story.house.settings["quarantine"] == "trash" else 0)
    story.readable()


def test_restore_is_byte_for_byte(story: BucketStory) -> None:
    _, outcome_counts = story.house.restore(story.header.plan_id)
    assert outcome_counts == {"done": len(story.going)}
    after = story.house.contents()
    assert {key: after[key] for key in story.planned} == {key: story.before[key] for key in story.planned}
    assert find_plan(story.house.config, story.header.plan_id).status_at(story.house.now) == "restored"


def test_later_runs_quarantine_and_purge(story: BucketStory) -> None:
    house, expected = story.house, {"done", "changed"} if story.held else {"done"}
    house.now += timedelta(days=5)
    header = house.plan()
    assert house.keys("deletion_plan") >= story.planned
    assert outcomes(house.approve_and_apply(header)) == expected
    house.now += timedelta(days=1)
    purge = house.plan()
    assert story.going <= house.keys("deletion_plan", action="purge")
    assert outcomes(house.approve_and_apply(purge)) == expected
    assert not [key for key in house.bench.everything() if key.startswith(f"{RESERVED_PREFIX}trash/")]
    story.readable()


def test_purge_removes_planned_objects_and_nothing_else(story: BucketStory) -> None:
    listed = story.house.bench.client.list_object_versions(Bucket=story.house.bench.bucket, Prefix=story.house.bench.prefix)
    keys = {item["Key"].removeprefix(story.house.bench.prefix) for kind in ("Versions", "DeleteMarkers") for item in listed.get(kind, [])}
    assert not story.going & keys
    after, live = story.house.contents(), story.before.keys() & story.house.live()
    changed = {key for key in live if after.get(key) != story.before[key]}
    # The single snapshot with an edited parent.
    assert len(changed) == (0 if story.held else 1)
    assert all(key.startswith("weather/snapshots/") for key in changed)
