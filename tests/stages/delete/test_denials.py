"""Later plans leave out files that a store denies permanently or that have no name in the trash.

The plans report both with the reason.
"""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.records.denials import RETRY_AFTER, request_retry
from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.key_limits import KeyLimits
from gc_assets.stores.local.store import LocalStore
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import STORAGE, Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]
DAY = timedelta(days=1)


@pytest.fixture
def house(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    house = Lakehouse(spark, tmp_path_factory.mktemp("denials"), settings={"quarantine_days": 30, "gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(house.root)
    table = builder.table("db.t", days_ago(60))
    table.append(days_ago(40))
    for age in (20, 19):
        table.leftovers(days_ago(age))
    house.lakes = [builder.config("sales")]
    return house


def deny(monkeypatch: pytest.MonkeyPatch, key: str, number: int = errno.EPERM) -> None:
    """Let the file system refuse to move one file."""
    rename = os.rename

    def refuse(name: bytes, *arguments: Any, **keywords: Any) -> None:
        if name.decode() == Path(key).name:
            raise OSError(number, os.strerror(number))
        rename(name, *arguments, **keywords)

    monkeypatch.setattr(os, "rename", refuse)


def left_out(header: PlanHeader) -> tuple[int, str]:
    (item,) = header.left_out
    return item.files, item.reason


def test_file_with_denied_move_is_left_out_of_plans_for_some_days(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    first = house.plan()
    key, *others = sorted(house.leftovers())
    with monkeypatch.context() as patch:
        deny(patch, key)
        by_outcome = counts(house.approve_and_apply(first).by_outcome)
    assert by_outcome == {("quarantine", "denied"): 1, ("quarantine", "done"): len(others)}
    assert find_plan(house.config, first.plan_id).status_at(house.now) == "partially applied"

    house.now += DAY
    second = house.plan()
    assert house.failed_gates(second) == set()
    assert key not in house.keys("deletion_plan")
    files, reason = left_out(second)
    assert (files, "Operation not permitted" in reason) == (1, True)
    assert reason.endswith("planned again 7 days after the denial, or after `gc-assets retry warehouse --by WHO`")

    request_retry(house.config, house.clock, STORAGE, "ada")
    third = house.plan()
    assert (third.left_out, house.leftovers()) == ((), {key})
    assert counts(house.approve_and_apply(third).by_outcome) == {("quarantine", "done"): 1}


def test_file_with_denied_move_is_planned_again_after_days_or_change(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    header = house.plan()
    old, changed, *_ = sorted(house.leftovers())
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only file system")))
        assert {outcome for _, outcome in house.approve_and_apply(header).by_outcome} == {"denied"}
    stamp = days_ago(15).timestamp()
    (house.warehouse / changed).write_bytes(b"another file")
    os.utime(house.warehouse / changed, (stamp, stamp))
    house.now += DAY
    house.plan()
    assert house.leftovers() == {changed}
    house.now += RETRY_AFTER
    house.plan()
    assert {old, changed} <= house.leftovers()


def test_file_with_failed_move_stays_in_plan(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    header = house.plan()
    key = min(house.leftovers())
    with monkeypatch.context() as patch:
        deny(patch, key, errno.EIO)
        assert counts(house.approve_and_apply(header).by_outcome)["quarantine", "failed"] == 1
    assert find_plan(house.config, header.plan_id).finished is None
    assert counts(house.apply(header).by_outcome) == {("quarantine", "done"): header.rows}


def test_file_whose_trash_path_would_be_too_long_is_not_planned(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    house.plan()
    keys = house.leftovers()
    limit = len(min(keys, key=len)) + 4
    long_key = f"db/t/data/{'ä' * limit}.parquet"
    stamp = days_ago(15).timestamp()
    (house.warehouse / long_key).write_bytes(b"x")
    os.utime(house.warehouse / long_key, (stamp, stamp))
    monkeypatch.setattr(LocalStore, "key_limits", lambda *_: KeyLimits(max(map(len, keys))))
    house.now += DAY
    header = house.plan()
    assert house.leftovers() == keys
    files, reason = left_out(header)
    assert (files, "too long" in reason) == (1, True)
    assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "done"): len(keys)}
    assert (house.warehouse / long_key).exists()


def test_retry_requires_existing_storage_or_lake_and_user(house: Lakehouse) -> None:
    with pytest.raises(UsageError, match="unknown storage or lake 'warehous'"):
        request_retry(house.config, house.clock, "warehous", "ada")
    with pytest.raises(UsageError, match="--by WHO"):
        request_retry(house.config, house.clock, STORAGE, " ")
