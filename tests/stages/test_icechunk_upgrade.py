"""Upgrade an Icechunk repository to spec version 2 between the steps of the protocol."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.depth import in_turn
from tests.lakes.icechunk.v2.builder import DocumentTree, document_tree, numbers, set_value
from tests.lakes.icechunk.v2.library import Library
from tests.stages.lakehouse import NOW, Lakehouse, counts, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]

NOTHING = {"snapshots": 0, "manifests": 0, "chunks": 0, "transaction_logs": 0}


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    house = Lakehouse(spark, tmp_path)
    house.lakes = [house.weather(retention={"default": "10d"})]
    return house


@pytest.fixture
def tree(icechunk2: Library, house: Lakehouse) -> DocumentTree:
    """Build the tree with spec version 1, and the leftovers of a writer."""
    tree = document_tree(icechunk2, house.warehouse / "weather", days_ago(18), spec_version=1)
    tree.builder.abandon_writer("main", days_ago(15), numbers("gone", range(4)))
    return tree


def read_all(tree: DocumentTree) -> dict[str, Any]:
    """Return the values of all refs, as the library reads them."""
    return tree.builder.call("contents")


def unread(house: Lakehouse) -> list[Any]:
    return house.summary("live_files", "weather")["unreadable"]


def test_upgrade_after_quarantine_does_not_change_it(house: Lakehouse, tree: DocumentTree):
    header = house.plan()
    house.approve_and_apply(header)
    quarantined = house.trash(header)
    assert {key.split("/")[1] for key in quarantined} == {"snapshots", "manifests", "transactions", "chunks"}
    before = read_all(tree)
    tree.builder.call("upgrade")
    house.now = NOW + timedelta(days=1)
    purge = house.plan()
    assert unread(house) == []
    assert house.planned_actions() == dict.fromkeys(quarantined, "purge")
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert read_all(tree) == before
    assert tree.builder.call("garbage_collect", older_than=None, dry_run=True) == NOTHING


def test_plan_made_before_icechunk_upgrade_makes_no_edit(house: Lakehouse, tree: DocumentTree):
    header = house.plan()
    edits, after_expiry = sum(header.expiry_actions.values()), len(house.keys("deletion_plan", after_expiry=True))
    assert min(edits, after_expiry) > 0
    before = read_all(tree)
    tree.builder.call("upgrade")
    applied = house.approve_and_apply(header)
    assert counts(applied.by_outcome) == {("expire", "changed"): edits, ("quarantine", "done"): 4, ("quarantine", "changed"): after_expiry}
    assert read_all(tree) == before
    house.now = NOW + timedelta(days=1)
    again = house.plan()
    assert house.keys("deletion_plan", after_expiry=True) >= house.keys("orphan_files", reason="expired")
    assert outcomes(house.approve_and_apply(again)) == {"done"}
    assert tree.builder.call("garbage_collect", older_than=None, dry_run=True) == NOTHING


def test_second_run_of_day_accepts_upgraded_repository(house: Lakehouse, tree: DocumentTree):
    house.plan()
    first = house.live()
    tree.builder.call("upgrade")
    added = tree.builder.commit("main", days_ago(1), set_value("values", 0, 77))
    house.plan()
    assert unread(house) == []
    assert f"weather/snapshots/{added}" in house.live()
    assert house.live() >= {key for key in first if "/refs/" not in key and "config.yaml" not in key}


def test_commit_of_version_1_writer_after_upgrade_is_kept(house: Lakehouse, tree: DocumentTree):
    """The library accepts this commit, and no reader finds it (icechunk issue 1521)."""
    builder = tree.builder
    snapshot = builder.library.run(
        builder.path,
        [
            ("start_session", {"branch": "main", "name": "early"}),
            ("write", {"name": "early", "writes": [set_value("values", 1, 5)]}),
            ("upgrade", {"delete_v1_files": False}),
            ("finish", {"name": "early"}),
        ],
    )[-1]
    house.plan()
    assert snapshot not in house.commits("expired") | house.commits("dangling")
    assert f"weather/snapshots/{snapshot}" in house.live()
    notes = " ".join(house.summary("lake_refs", "weather")["notes"])
    assert "objects in refs/ next to `repo`" in notes
