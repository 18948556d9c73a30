"""Complete runs on a real Nessie server: plan, apply, restore, purge, and the following incremental runs.

The tests of this module run in order, and each depends on the previous ones.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from gc_assets.engine import tasks
from gc_assets.stages.read.scenarios import Scenario
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.nessie.builder import LONG_AGO, NessieBuilder, open_table
from tests.lakes.nessie.server import Server
from tests.stages.forecasts import Forecast, difference, forecast_orphans, orphan_sizes, orphans_under_policy
from tests.stages.lakehouse import Lakehouse, Story, counts, outcomes

pytestmark = [pytest.mark.spark, pytest.mark.compat, in_turn]

START = next_noon(days=1)


@pytest.fixture(scope="module")
def story(spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Story[NessieBuilder]:
    nessie_server.reset()
    house = Lakehouse(spark, tmp_path_factory.mktemp("nessie_run"), now=START)
    nessie = NessieBuilder(nessie_server.uri, house.warehouse)
    main = nessie.on()
    main.new("db.orders")
    nessie.tag("v1")
    at_tag = main.files()
    main.append("db.orders")
    # The next commit still uses the data file and manifest of the append, but not its metadata file and manifest list.
    superseded = {path for path in main.files() - at_tag if path.name.endswith(".metadata.json") or path.name.startswith("snap-")}
    main.append("db.orders")
    main.new("db.dropped")
    dropped = {path for path in main.files() if "/db/dropped" in str(path)}
    main.drop("db.dropped")
    leftover_files = set(main.existing("db.orders").leftovers(LONG_AGO))
    created = {path for path in at_tag if path.name.startswith("00000-") and path.name.endswith(".metadata.json")}
    house.lakes = [nessie.config(retention={"default": "1"})]
    # Treat the history as too long for this process: executors read it from the state and not from the server.
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tasks, "MAX_TRIAL_ROWS", -1)
        story = Story.start(house, nessie, {house.key(path) for path in superseded | dropped | leftover_files | created})
    assert not [path for path in (house.root / "state").rglob("*") if "_passed_on" in path.parts and path.is_file()]
    return story


def check_readable(story: Story[NessieBuilder]) -> None:
    for row in story.house.rows("live_contents", "shop"):
        assert open_table(row["metadata_location"]).scan().to_arrow().num_rows > 0


def test_plan_contains_expired_and_dropped_files(story: Story[NessieBuilder]) -> None:
    assert story.header.failed_gates == []
    assert story.house.keys("deletion_plan") == story.garbage
    check_readable(story)


def test_each_file_is_either_live_or_planned(story: Story[NessieBuilder]) -> None:
    assert set(story.before) - story.house.live() == story.garbage


def test_what_if_forecast_equals_run_with_policy(story: Story[NessieBuilder]) -> None:
    house, everything = story.house, Scenario("everything", ("shop",), retention="forever")
    (predicted,), current = forecast_orphans(house, [everything]), orphan_sizes(house)
    real = orphans_under_policy(house, [lake.with_retention("forever") for lake in house.lakes])
    assert predicted == Forecast(real, *difference(current, real))
    assert predicted.kept.files > 0


def test_second_run_decodes_no_container(story: Story[NessieBuilder]) -> None:
    assert story.house.plan().plan_id == story.header.plan_id
    first, *later = story.house.decoded_counts("shop")
    assert first > 0
    assert later == [0]


def test_apply_quarantines_the_plan_and_restore_undoes_it(story: Story[NessieBuilder]) -> None:
    house = story.house
    assert counts(house.approve_and_apply(story.header).by_outcome) == {("quarantine", "done"): len(story.garbage)}
    assert house.files() == story.without_garbage()
    check_readable(story)
    house.restore(story.header.plan_id)
    assert house.files() == story.before


def test_later_runs_quarantine_again_and_purge(story: Story[NessieBuilder]) -> None:
    house = story.house
    house.now = START + timedelta(days=1)
    header = house.plan()
    assert house.keys("deletion_plan") == story.garbage
    house.approve_and_apply(header)
    house.now = START + timedelta(days=2)
    purge = house.plan()
    assert house.keys("deletion_plan", action="purge") == story.garbage
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert house.files() == story.without_garbage()
    check_readable(story)


def test_run_after_purge_has_empty_plan_and_decodes_nothing(story: Story[NessieBuilder]) -> None:
    house = story.house
    house.now = START + timedelta(days=3)
    header = house.plan()
    assert header.totals == {}
    assert house.keys("deletion_plan") == set()
    summary = house.summary("manifest_entries", "shop")
    assert (summary["decoded"], summary["unreadable"]) == (0, 0)


def test_longer_cutoff_accepts_history_that_was_already_collected(story: Story[NessieBuilder]) -> None:
    house = story.house
    house.now = START + timedelta(days=4)
    house.lakes = [story.builder.config(retention={"default": "none"})]
    header = house.plan()
    assert header.failed_gates == []
    assert any("are missing" in note for note in house.summary("live_files", "shop")["notes"])
    readable_now = {row["metadata_location"] for row in house.rows("live_contents", "shop") if row["at_head"]}
    assert all(open_table(address).scan().to_arrow().num_rows > 0 for address in readable_now)
