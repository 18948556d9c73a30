"""A few of the programs that `python -m tests.programs` plays, the same ones on each run. Its random histories are tests of their kinds."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.depth import example_count
from tests.lakes import toy
from tests.programs.nights import over_a_lying_store, play
from tests.stages.lakehouse import NOW, Lakehouse, days_ago
from tests.stores.lying import Lies

pytestmark = pytest.mark.spark


def test_no_program_over_a_store_that_lies_loses_a_file(spark: SparkSession, tmp_path: Path) -> None:
    events = play(spark, tmp_path, range(example_count(3, 10)), days=1)
    assert min(events[name] for name in ("nights", "applies", "files of a quarantine")) > 0, events


def test_what_a_listing_names_twice_is_planned_once_at_most(spark: SparkSession, tmp_path: Path) -> None:
    """New garbage waits for a listing that names it once. What is in quarantine already stands in the plan once."""
    tells = (Lies("again", number, frozenset({"page again"}), NOW) for number in count())
    lies, truth = next(each for each in tells if each.tells("page again", 0)), Lies("truth", 0, frozenset(), NOW)
    house = Lakehouse(spark, tmp_path, settings={"quarantine": "deferred", "gates": {"max_delete_share": 1.0}})
    lake = house.warehouse / "lake"
    toy.write(lake, "head", None, days_ago(300), {"needed": b"needed"}, "main")
    toy.put(lake / "data" / "first", b"garbage", days_ago(300))
    house.lakes = [toy.ToyConfig.model_validate({"name": "lake", "kind": "toy", "location": f"file://{lake}"})]
    with over_a_lying_store(lambda: lies):
        house.plan()
        assert house.rows("deletion_plan") == []
        assert house.summary("orphan_files")["named_twice"] == 2
    with over_a_lying_store(lambda: truth):
        house.now += timedelta(days=1)
        house.approve_and_apply(house.plan())
    with over_a_lying_store(lambda: lies):
        house.now += timedelta(days=1)
        house.plan()
        assert [(row["action"], row["key"]) for row in house.rows("deletion_plan")] == [("purge", "lake/data/first")]
