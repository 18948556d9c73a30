"""Work with Dagster's page in a browser: review a plan, launch a backfill, approve, apply and
restore.

The services are those of compose.yaml, and the lake is one of the demo. `make pictures` updates the
pictures of docs/images.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from playwright.sync_api import FloatRect
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.demo.sample import ensure_demo
from tests.assets.dagster_page import DagsterPage
from tests.browser import chromium_program, open_browser
from tests.compose_services import ComposeServices, run_services
from tests.conftest import TEST_CONF
from tests.dates import now_before_midnight
from tests.depth import full_suite_only
from tests.s3.servers import S3Server

pytestmark = [pytest.mark.spark, full_suite_only]
PICTURES = Path(__file__).parents[2] / "docs" / "images"
# So wide that every asset is drawn with its details, and the part without menus and buttons.
GRAPH, DRAWN = (1900, 860), FloatRect(x=250, y=180, width=1600, height=600)
WINDOW = (1280, 900)
# The middle column of an overview.
OVERVIEW, COLUMN = (1100, 960), FloatRect(x=240, y=112, width=600, height=735)
OWN_ASSET = "ingest/weather"


@dataclass(frozen=True)
class Session:
    """The content of the page, and the files of the lakes before the apply, after it, and at the
    end.
    """

    page: DagsterPage
    config: Path
    past: dict[str, dict[str, str]]
    lineage: dict[str, set[str]]
    check: str
    figures: dict[str, str]
    plan: dict[str, str]
    config_of_choice: str
    ends: dict[str, str]
    applied: dict[str, str]
    status: str
    restored: dict[str, str]
    files: list[set[str]]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lakes.yaml of the demo with all jobs of `page_may` and one lake."""
    chromium_program()  # skips before anything is built
    config = ensure_demo(tmp_path_factory.mktemp("evening") / "demo")
    document = yaml.safe_load(config.read_text())
    document["lakes"] = [lake for lake in document["lakes"] if lake["name"] == "weather"]
    # An asset of another project, which the command line reports on.
    document["lakes"][0]["assets"] = [{"key": OWN_ASSET, "max_garbage_share": 0.1}]
    document["storages"][0]["money"] = {"usd_per_gb_month": 0.023}
    shutil.rmtree(config.parent / "lake" / "shop")
    # The page of a group shows only groups without "/" in their names.
    more = {"page_may": ["approve", "restore"], "dagster": {"group_prefix": "gc_"}, "spark": {"master": "local[2]", "conf": TEST_CONF}}
    config.write_text(yaml.safe_dump({**document, **more}))
    return config


@pytest.fixture(scope="module")
def session(lakes: Path, spark: SparkSession, versity: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """`versity` skips the test if the machine has no such server."""
    pictures = tmp_path_factory.mktemp("pictures")
    today = now_before_midnight(minutes=8).date()
    with run_services(tmp_path_factory.mktemp("services"), {"GC_ASSETS_CONFIG": str(lakes)}) as running:
        cli_run(lakes, running)
        with open_browser() as browser:
            seen = duration(DagsterPage(running.page, browser, pictures), lakes, today)
    for picture in PICTURES.glob("*.png") if os.environ.get("GC_ASSETS_TEST_PICTURES") == "keep" else ():
        shutil.copy(pictures / picture.name, picture)
    return seen


def cli_run(lakes: Path, running: ComposeServices) -> None:
    """A run of the command line that the page shows."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in running.environment.items():
            environment.setenv(name, value)
        result = CliRunner().invoke(cli, ["--config", str(lakes), "run"])
    assert result.exit_code == 0, result.stderr


def duration(page: DagsterPage, lakes: Path, day: date) -> Session:
    today, *dates = ((day - timedelta(days=days)).isoformat() for days in (0, 2, 1))
    files = [stored_files(lakes)]

    page.resize(*GRAPH)
    lineage = {}
    for group, picture in (("weather", "asset-graph"), ("lake", "storage-graph")):
        lineage[group] = page.group(f"gc_{group}")
        page.picture(picture, DRAWN)
    page.resize(*WINDOW)
    page.partition("lake/orphan_files", today, "report")
    page.click("[Show Markdown]", "garbage")
    page.picture("partition-metadata")
    plan = page.partition("lake/deletion_plan", today, "approve_before")
    page.picture("plan")

    page.resize(*OVERVIEW)
    check = page.execute_check(OWN_ASSET, "garbage_share")
    figures = page.overview(OWN_ASSET, "garbage_share")
    page.picture("own-asset", COLUMN)
    page.resize(*WINDOW)

    page.backfill("weather/lake_refs", *dates)
    plan_id = plan["plan_id"]
    config_of_choice = page.choose("approve", f"{plan_id} {today} lake")
    ends = {"approve": page.launch("approve", {"approve_plan": {"config": {"plan_id": plan_id, "by": "ada", "comment": "as agreed"}}})}
    ends["apply"] = page.launch("apply", {"lake__deletion_log": {"config": {"plan_id": plan_id}}}, today)
    files.append(stored_files(lakes))
    applied = page.partition("lake/deletion_log", today, "quarantined_files")
    status = page.partition("lake/deletion_plan", today, "approve_before")["status"]
    page.picture("plan-applied")
    page.choose("restore", f"{plan_id} {today} lake")
    ends["restore"] = page.launch("restore", {"put_files_back": {"config": {"plan_id": plan_id, "history": True}}})
    files.append(stored_files(lakes))
    restored = page.partition("lake/deletion_log", today, "restored_files")
    past = {run_date: page.partition("weather/lake_refs", run_date, "Materialized") for run_date in dates}
    return Session(page, lakes, past, lineage, check, figures, plan, config_of_choice, ends, applied, status, restored, files)


def stored_files(lakes: Path) -> set[str]:
    lake = lakes.parent / "lake"
    return {str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file() and ".gc-assets" not in path.parts}


def test_lineage_connects_lake_and_storage(session: Session) -> None:
    assert {"lake_refs", "commit_graph", "reachable_snapshots", "expiry_plan", "live_files"} <= session.lineage["weather"]
    assert {"storage_inventory", "live_filter", "orphan_files", "deletion_plan", "deletion_log"} <= session.lineage["lake"]


def test_user_asset_shows_garbage_observation_and_check(session: Session) -> None:
    assert session.check == "Failed"
    assert 0.1 < float(session.figures["garbage_share"]) < 1
    assert int(session.figures["garbage_bytes"]) > 0


def test_plan_partition_shows_decision_metadata(session: Session) -> None:
    shown = {name: session.plan[name] for name in ("status", "approved_by", "approvals", "failed_gates")}
    assert shown == {"status": "ready", "approved_by": "not approved", "approvals": "0 of 1", "failed_gates": "none"}


def test_launchpad_approves_applies_and_restores(session: Session) -> None:
    assert session.ends == dict.fromkeys(("approve", "apply", "restore"), "Success")
    before, between, after = session.files
    assert len(before - between) == int(session.applied["quarantined_files"]) > 0
    assert int(session.restored["restored_files"]) == len(before - between)
    assert before <= after
    (plan,) = json.loads(CliRunner().invoke(cli, ["--config", str(session.config), "plans", "--format", "json"]).stdout)
    assert (plan["plan_id"][:12], plan["status"], plan["approved_by"]) == (session.plan["plan_id"], "restored", "ada")


def test_plan_card_is_visible_without_a_click(session: Session) -> None:
    assert session.plan["plan"].startswith(f"Plan {session.plan['plan_id']} of ")


def test_launchpad_offers_waiting_plan_as_partition(session: Session) -> None:
    config = yaml.safe_load(session.config_of_choice)["ops"]["approve_plan"]["config"]
    assert config == {"plan_id": session.plan["plan_id"], "by": "", "comment": "", "override": []}


def test_plan_status_is_applied_after_the_apply(session: Session) -> None:
    assert session.status == "applied"


def test_backfill_of_past_dates_creates_analyses(session: Session) -> None:
    assert len(session.past) == 2
    assert [shown for shown in session.past.values() if "Historical" not in " ".join(shown.values())] == []


def test_page_has_no_errors_and_fits_the_window(session: Session) -> None:
    assert session.page.errors == []
    assert session.page.too_wide == []
