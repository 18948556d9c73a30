"""Play random histories of `lake_histories`, and compare each run with brute force."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import DANGLING_SIDE, EXPIRED_SIDE, EXTERNAL_SIDE, LIFECYCLE_SIDE, STATES, STATES_SIDE
from tests.stages.mark.lake_histories import (
    LAKE,
    LAKES,
    NOW,
    Row,
    World,
    build_context,
    count_by,
    expected_rows,
    read_rows_by_route,
    write,
)
from tests.stages.mark.live_set_oracle import LiveSetOracle


def play(spark: SparkSession, root: Path, kind: str, histories: int, runs: int, *, seed: int = 0, with_spark: bool = False) -> Counter[str]:
    """Play histories in one lake, and assert that each run publishes the live files that brute force finds.

    `LiveSetOracle` finds the files and their routes, and `expected_rows` the columns that result from the published states.

    Args:
        with_spark: Read the live files with Spark.

    Returns:
        The number of events and situations, and of rows by route.
    """
    chance = random.Random(f"{kind} {seed}")
    world, lake, events = World(chance), LAKES[kind], Counter(histories=histories)
    oracle, changes = LiveSetOracle(world, kind), list[int]()
    for number in range(histories):
        for _ in range(2):
            world.commit(f"t{number:03}")
    for number in range(runs):
        if (number + seed) % 3 == 1:  # at least every third run reads everything
            world.damage(kind, 1 + histories // 10)
        run_context = build_context(root, lake, NOW + timedelta(days=number))
        write(world, run_context)
        published = live_files(spark, run_context, LAKE)
        found = read_rows_by_route(spark, LiveSet(run_context, published), with_spark=with_spark)
        states = read_parts(run_context.state.files, published.paths(STATES_SIDE), STATES).to_pylist()
        summary, story = published.receipt.summary, f"{kind}, seed {seed}, run {number}"
        has_rules = lake.has_lifecycle and not summary["unreadable"]
        released = {at for at, deduplicated in world.released.items() if not deduplicated} if has_rules else set[Any]()
        routes, situations = oracle.expect(released)
        assert {route: {(row["storage"], row["key"]) for row in rows} for route, rows in found.items()} == routes, story
        assert {item["table_uuid"] for item in summary["unreadable"]} - {None} == oracle.unreadable, story
        assert found == expected_rows(world, states, released=released), story
        assert_counted(found, summary, story)
        world.end_run()
        events += Counter(runs=1, unreadable=bool(summary["unreadable"]), **{route or "live": len(rows) for route, rows in found.items()})
        events += situations
        # Some days change little or nothing, and some change every history.
        changes = changes or chance.sample((0, 1, 5, histories, 3 * histories), 5)
        events += world.pass_a_day(changes.pop())
    return events


def assert_counted(found: dict[str, list[Row]], summary: dict[str, Any], story: str) -> None:
    counts = {"files": "", "expired_files": EXPIRED_SIDE, "dangling_files": DANGLING_SIDE, "lifecycle_files": LIFECYCLE_SIDE}
    counts["external_files"] = EXTERNAL_SIDE
    assert {name: summary[name] for name in counts} == {name: len(found[route]) for name, route in counts.items()}, story
    live = found[""]
    assert (summary["by_storage"], summary["by_kind"]) == (count_by(live, "storage"), count_by(live, "kind")), story
    possible = [row for row in live if row["kind"] == Kind.POSSIBLE_OBJECT]
    assert summary["possible_by_storage"] == count_by(possible, "storage"), story
    assert summary["live_bytes"] == sum(row["size_bytes"] or 0 for row in live), story
