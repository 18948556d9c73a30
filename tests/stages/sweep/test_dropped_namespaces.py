"""A plan reports namespaces that are completely dropped, because a catalog may only hide them.

The tables of `dev` are dropped with their namespace, as by a tool that drops the schema of a pull
request. `db.a` is dropped alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.assets.plan_card import plan_card
from gc_assets.core.dropped_tables import DroppedTable, FormerFiles, GoneNamespace, LakeTables, RememberedTable, find_gone_namespaces
from gc_assets.report.load import load_report
from gc_assets.report.page import render
from gc_assets.stages.records.dead_tables import accept_dead_table
from gc_assets.stages.records.plans import find_plan
from tests.stages.lakehouse import NOW, days_ago, outcomes
from tests.stages.sweep.test_dropped_tables import Shop

WARNING = (
    "1 namespace is missing entirely: dev of lake sales (2 tables). Before you approve, check that the account of gc-assets "
    "can still see it."
)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path, "ab")


@pytest.mark.spark
def test_plan_reports_namespace_if_all_its_tables_are_dropped(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "abcdef")
    catalog = shop.lake.catalog
    catalog.create_namespace("dev")
    for name in "cd":
        catalog.rename_table(f"db.{name}", f"dev.{name}")
    shop.run(1)
    shop.drop("a")
    for name in "cd":
        catalog.drop_table(f"dev.{name}")
    catalog.drop_namespace("dev")
    assert shop.run(2).warnings == ()
    header = shop.run(10)
    assert shop.list_planned() == {"db/a", "db/c", "db/d"}
    assert header.warnings == (WARNING,)
    context, config = shop.house.run_context(), shop.house.config
    assert WARNING in render(load_report(context))
    card = plan_card(find_plan(config, header.plan_id), config, context.clock.now(), ())
    assert WARNING in " ".join(card.replace("\\\n", " ").split())


@pytest.mark.spark
def test_approved_plan_is_stopped_if_acceptance_is_withdrawn(shop: Shop) -> None:
    uuid, location = shop.tables["a"].uuid, f"file://{shop.house.warehouse}/db/a/"
    shop.drop("a")
    shop.run(1)
    shop.house.now += NOW - days_ago(1)
    accept_dead_table(shop.house.config, shop.house.clock, uuid, location, "ada")
    header = shop.run(3)
    assert shop.list_planned() == {"db/a"}
    shop.house.approve(header)
    accept_dead_table(shop.house.config, shop.house.clock, uuid, location, "ada", withdraw=True)
    assert outcomes(shop.house.apply(header)) == {"changed"}


def make_dropped(name: str, lake: str = "sales", **values: object) -> DroppedTable:
    table = RememberedTable(lake, name, name, "catalog", (f"{name}/",), NOW, gone_since=NOW)
    return DroppedTable(table, **{"former_files": FormerFiles(1, 1), **values})  # pyright: ignore[reportArgumentType]  # fields of the table


def test_namespace_counts_as_dropped_only_without_listed_tables() -> None:
    tables = [
        make_dropped("dev.x"),
        make_dropped("dev.y"),
        make_dropped("dev.z", waits_for="its waiting time"),
        make_dropped("db.a"),
        make_dropped("eu.shop.a"),
        make_dropped("eu.`a.b`"),
        make_dropped("old.a", former_files=FormerFiles()),
        make_dropped("accepted.a", accepted_at=NOW),
        make_dropped("unreadable.a"),
        make_dropped("a"),
        make_dropped("db.a", "other"),
    ]
    lakes = [
        LakeTables("sales", "catalog", NOW, names={"db.b": "b", "eu.shop.deeper.c": "c"}, unreadable_names=frozenset({"unreadable.b"})),
        LakeTables("other", "catalog", NOW),
    ]
    assert find_gone_namespaces(tables, lakes) == [
        GoneNamespace("other", "db", 1),
        GoneNamespace("sales", "dev", 2),
        GoneNamespace("sales", "eu", 1),
        GoneNamespace("sales", "eu.shop", 1),
    ]
