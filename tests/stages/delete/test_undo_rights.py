"""An apply quarantines nothing if the store could not undo it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.phases import DENIED, FAILED
from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.local.store import LocalStore
from gc_assets.stores.protocol import QuarantineMode, Result
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]


@pytest.fixture
def house(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    house = Lakehouse(spark, tmp_path_factory.mktemp("undo"), settings={"gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(house.root)
    table = builder.table("db.t", days_ago(60))
    table.append(days_ago(40))
    table.leftovers(days_ago(20))
    house.lakes = [builder.config("sales")]
    return house


def answer(monkeypatch: pytest.MonkeyPatch, result: Result | None) -> list[QuarantineMode]:
    """Let the store give this answer, and record for which modes it was asked."""
    modes = list[QuarantineMode]()

    def check_undo(_: LocalStore, mode: QuarantineMode) -> Result | None:
        modes.append(mode)
        return result

    monkeypatch.setattr(LocalStore, "check_undo", check_undo)
    return modes


def test_nothing_is_quarantined_without_the_right_to_undo(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = answer(monkeypatch, Result(DENIED, "the role may not write objects", replan=True))
    first = house.plan()
    assert modes == []  # a plan does not write to the storage
    keys = house.leftovers()
    assert counts(house.approve_and_apply(first).by_outcome) == {("quarantine", "denied"): len(keys)}
    assert modes == [first.quarantine]
    assert all((house.warehouse / key).exists() for key in keys)
    assert {row["error"] for row in house.rows("deletion_log")} == {"the role may not write objects"}

    answer(monkeypatch, None)
    house.now += timedelta(days=1)
    second = house.plan()
    assert house.leftovers() == keys  # a new plan contains the files again
    assert counts(house.approve_and_apply(second).by_outcome) == {("quarantine", "done"): len(keys)}


def test_plan_can_be_applied_again_if_the_right_to_undo_is_unknown(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Result(FAILED, "503"))
    header = house.plan()
    assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "failed"): header.rows}
    assert find_plan(house.config, header.plan_id).finished is None
    answer(monkeypatch, None)
    assert counts(house.apply(header).by_outcome) == {("quarantine", "done"): header.rows}
