"""A few programs of `python -m tests.programs`, the same ones on each run. Its random histories are
tests of their kinds.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.depth import example_count
from tests.lakes import toy
from tests.programs.lakehouse_programs import play, use_lying_store
from tests.stages.lakehouse import NOW, Lakehouse, days_ago
from tests.stores.faulty_store import Faults

pytestmark = pytest.mark.spark


def test_random_programs_on_a_faulty_store_lose_no_live_file(spark: SparkSession, tmp_path: Path) -> None:
    events = play(spark, tmp_path, range(example_count(3, 10)), days=1)
    assert min(events[name] for name in ("runs", "applies", "files of a quarantine")) > 0, events


def test_key_listed_twice_is_planned_at_most_once(spark: SparkSession, tmp_path: Path) -> None:
    """New garbage waits for a listing that contains it once. Quarantined files have one row in the
    plan.
    """
    candidates = (Faults("again", number, frozenset({"page again"}), NOW) for number in count())
    lies, truth = next(each for each in candidates if each.has("page again", 0)), Faults("truth", 0, frozenset(), NOW)
    house = Lakehouse(spark, tmp_path, settings={"quarantine": "deferred", "gates": {"max_delete_share": 1.0}})
    lake = house.warehouse / "lake"
    toy.write(lake, "head", None, days_ago(300), {"needed": b"needed"}, "main")
    toy.put(lake / "data" / "first", b"garbage", days_ago(300))
    house.lakes = [toy.ToyConfig.model_validate({"name": "lake", "kind": "toy", "location": f"file://{lake}"})]
    with use_lying_store(lambda: lies):
        house.plan()
        assert house.rows("deletion_plan") == []
        assert house.summary("orphan_files")["named_twice"] == 2
    with use_lying_store(lambda: truth):
        house.now += timedelta(days=1)
        house.approve_and_apply(house.plan())
    with use_lying_store(lambda: lies):
        house.now += timedelta(days=1)
        house.plan()
        assert [(row["action"], row["key"]) for row in house.rows("deletion_plan")] == [("purge", "lake/data/first")]
