"""Changes of a bucket between a plan and its apply, and between runs.

No object is lost, the outcomes add up, and messages name the object and an action.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.stores.protocol import QuarantineMode
from tests.dates import next_noon
from tests.depth import in_turn
from tests.s3.proxy import Exchange, Request, Rule, error_answer, lists, run_proxy
from tests.s3.servers import shared_server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stages.lakehouse import STORAGE, counts
from tests.stores.s3.bucket_actions import set_versioning
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

DATA_PREFIX = "iceberg/db/orders/data/"
LOST = ("gone", "kept", "resized", "same_bytes", "same_size")


@contextmanager
def open_house(spark: SparkSession, root: Path, mode: QuarantineMode, *rules: Rule) -> Iterator[BucketLakehouse]:
    """A table with retained snapshots only, and five lost files in it. Requests go through a proxy."""
    with (
        open_s3_bench("ceph", versioned=mode == "versioned", prefix="lakes/", own=True) as bench,
        run_proxy(shared_server("ceph"), *rules) as proxy,
    ):
        now = next_noon(days=4)
        settings = {"quarantine": mode, "s3": proxy.server.settings.model_dump(mode="json", exclude_none=True)}
        house = BucketLakehouse(spark, root, settings=settings, now=now, bench=bench)
        house.lakes = [Iceberg(house).config.with_retention("30d")]
        for name in LOST:
            bench.put(f"{DATA_PREFIX}{name}", name.encode())
        yield house


def read_outcomes(house: BucketLakehouse) -> dict[str, tuple[str, str]]:
    """Return outcome and error of each lost file by name."""
    rows = (row for row in house.rows("deletion_log") if row["key"].startswith(DATA_PREFIX))
    return {row["key"].removeprefix(DATA_PREFIX): (row["outcome"], row["error"] or "") for row in rows}


@pytest.mark.parametrize("mode", ["trash", "versioned"])
def test_only_planned_objects_are_quarantined(mode: QuarantineMode, spark: SparkSession, tmp_path: Path) -> None:
    def fails(request: Request) -> bool:
        return request.method == "PUT" and request.target.endswith("/kept")

    # The copy of one object fails, and botocore does not retry it.
    rule = Rule(fails, lambda exchange: exchange.reply(error_answer(400, "BadDigest")))
    with open_house(spark, tmp_path, mode, rule) as house:
        header = house.plan()
        assert house.planned_actions(DATA_PREFIX) == dict.fromkeys(LOST, "quarantine")
        time.sleep(1.1)  # without versions only the time identifies an object, in whole seconds
        now = {"same_size": b"SAME_SIZE", "same_bytes": b"same_bytes", "resized": b"longer than before"}
        for name, content in now.items():
            house.bench.put(f"{DATA_PREFIX}{name}", content)
        house.bench.client.delete_object(
            Bucket=house.bench.bucket, Key=f"{house.bench.prefix}{DATA_PREFIX}gone"
        )  # creates a delete marker in a bucket with versions
        applied = house.approve_and_apply(header)
        outcomes = read_outcomes(house)
        expected = {**dict.fromkeys(now, "changed"), "gone": "absent", "kept": "failed"}
        if mode == "versioned":  # the delete marker hides the planned version, and nothing is copied
            expected |= {"gone": "done", "kept": "done"}
        assert {name: outcome for name, (outcome, _) in outcomes.items()} == expected
        assert all(f"{DATA_PREFIX}{name}" in error for name, (outcome, error) in outcomes.items() if outcome != "done")
        assert sum(counts(applied.by_outcome).values()) == len(LOST)
        if mode == "trash":
            assert house.bench.get(f"{DATA_PREFIX}kept") == b"kept"
            house.apply(header)
            assert read_outcomes(house) == outcomes | {"kept": ("done", "")}
        house.restore(header.plan_id)
        assert {name: house.bench.get(f"{DATA_PREFIX}{name}") for name in now} == now
        assert house.bench.get(f"{DATA_PREFIX}kept") == b"kept"


def test_apply_waits_for_suspended_versioning(spark: SparkSession, tmp_path: Path) -> None:
    with open_house(spark, tmp_path, "versioned") as house:
        before, header = house.contents(), house.plan()
        set_versioning(house.bench, "Suspended")
        assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "denied"): len(LOST)}
        assert house.contents() == before
        for name, (_, error) in read_outcomes(house).items():
            assert f"'{DATA_PREFIX}{name}': bucket {house.bench.bucket} no longer keeps versions" in error
            assert "enable versioning" in error
        set_versioning(house.bench, "Enabled")
        house.now += timedelta(days=1)
        again = house.plan()
        assert counts(house.approve_and_apply(again).by_outcome) == {("quarantine", "done"): len(LOST)}
        assert house.restore(again.plan_id)[1] == {"done": len(LOST)}
        assert house.contents() == before


def test_trash_is_emptied_if_versioning_is_enabled_between_runs(spark: SparkSession, tmp_path: Path) -> None:
    with open_house(spark, tmp_path, "trash") as house:
        before, header = house.contents(), house.plan()
        assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "done"): len(LOST)}
        set_versioning(house.bench, "Enabled")
        house.bench.put(f"{DATA_PREFIX}later", b"later")
        house.settings["quarantine_days"] = 30
        house.now += timedelta(days=1)
        next_header = house.plan()
        assert house.planned_actions(DATA_PREFIX) == {"later": "quarantine"}
        assert counts(house.approve_and_apply(next_header).by_outcome) == {("quarantine", "denied"): 1}
        (_, error) = read_outcomes(house)["later"]
        assert f"bucket {house.bench.bucket} keeps versions" in error
        assert "use `quarantine: versioned`" in error
        assert house.restore(header.plan_id)[1] == {"done": len(LOST)}
        assert before.items() <= house.contents().items()


def test_failed_listing_publishes_no_inventory(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.s3.pages.PAGE_KEYS", 4)
    answers: dict[str, Any] = {
        "AccessDenied": (403, "the policy does not allow this; docs/s3-reference.md lists the permissions of each role"),
        "ExpiredToken": (400, "the session token has expired; log in again"),
    }
    faults: list[tuple[int, str]] = []

    def in_the_middle(request: Request) -> bool:
        return bool(faults) and lists(request) and "start-after" in request.query

    def refuse(exchange: Exchange) -> None:
        exchange.reply(error_answer(*faults[0]))

    with open_house(spark, tmp_path, "trash", Rule(in_the_middle, refuse, times=10**9)) as house:
        house.mark()
        for code, (status, way_out) in answers.items():
            faults[:] = [(status, code)]
            with pytest.raises(StoreError) as raised:
                storage_inventory(spark, house.run_context(), STORAGE)
            assert "so no plan can be made: iceberg/" in str(raised.value)
            assert way_out in str(raised.value)
            assert house.run_context().state.current(STORAGE, "storage_inventory", house.clock.today()) is None
