"""A restore that is killed before its log is published can be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.delete import restore as restore_module
from gc_assets.stages.records.plans import find_plan
from tests.depth import in_turn
from tests.stages.delete.test_repeated_quarantine import disk_house, plan_at, planned_actions

pytestmark = [pytest.mark.spark, in_turn]


class Kill(BaseException):
    """The process ends here."""


def test_plan_does_not_count_as_restored_before_the_log_is_published(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, key = disk_house(spark, tmp_path)
    header = house.plan()
    house.approve_and_apply(header)

    def kill(*_: object, **__: object) -> None:
        raise Kill

    with monkeypatch.context() as patched:
        patched.setattr(restore_module, "publish", kill)
        with pytest.raises(Kill):
            house.restore(header.plan_id)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "applied"
    house.restore(header.plan_id)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "restored"
    plan_at(house, 2.5)
    assert planned_actions(house, key) == ["quarantine"]
