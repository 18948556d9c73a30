"""Plan, apply and restore over Spark Connect, with the same plan as in a classic session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.resources.spark_version import has_local_server
from tests.connect_service import TOKEN, run_service
from tests.depth import full_suite_only
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import document_tree, numbers
from tests.process_kills import CHECKOUT
from tests.stages import lakehouse_process
from tests.stages.lakehouse import Lakehouse, days_ago
from tests.stages.lakehouse_process import start_process

pytest.importorskip("grpc", reason="Spark Connect needs grpcio (pip install 'pyspark[connect]')")
pytestmark = [pytest.mark.spark, pytest.mark.compat, full_suite_only]


@dataclass
class BothModes:
    """One lake, planned in a classic session, then planned, applied and restored over Connect with another state."""

    leftovers: set[str]
    planned: set[str]
    before: dict[str, tuple[str, int]]
    classic: PlanHeader
    classic_live: set[str]
    connect: dict[str, Any]


@contextmanager
def run_local_server(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a client that starts pyspark's local server. Stop that server afterwards."""
    server = {"SPARK_LOCAL_CONNECT_DISCOVERY": str(folder / "connect-local.json")}
    try:
        yield server
    finally:
        stop = [sys.executable, "-m", "gc_assets.resources.connect_server", "--stop"]
        subprocess.run(stop, cwd=CHECKOUT, env={**os.environ, **server}, check=True, capture_output=True)


@contextmanager
def run_remote_server(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a client of a server with a token and TLS, for a pyspark without a local server."""
    folder.mkdir()
    with run_service(folder) as service:
        yield {lakehouse_process.REMOTE: service.remote, lakehouse_process.TOKEN: TOKEN, **service.environment}


@pytest.fixture(scope="module")
def both_modes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> BothModes:
    house = Lakehouse(spark, tmp_path_factory.mktemp("connect"))
    iceberg = LakeBuilder(house.root)
    orders = iceberg.table("db.orders", days_ago(60))
    first = orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.tag(days_ago(19), "audit", first)
    lost = orders.leftovers(days_ago(10))
    lost += document_tree(house.warehouse / "weather", days_ago(40)).builder.abandon_writer("main", days_ago(15), numbers("gone", range(4)))
    house.lakes = [iceberg.config("sales"), house.weather(retention={"default": "10d"})]
    before, header, live, planned = house.files(), house.plan(), house.live(), house.keys("deletion_plan")
    shutil.move(house.root / "state", house.root / "state-classic")
    with (run_local_server if has_local_server() else run_remote_server)(house.root / "server") as server:
        process = start_process(house, "connect", "protocol", **server)
        try:
            output, errors = process.communicate(timeout=500)
        finally:
            process.kill()
    assert process.returncode == 0, errors[-4000:]
    return BothModes({house.key(path) for path in lost}, planned, before, header, live, json.loads(output.splitlines()[-1]))


def test_connect_and_local_mode_create_equal_plans(both_modes: BothModes) -> None:
    assert both_modes.connect["rows_digest"] == both_modes.classic.rows_digest
    assert both_modes.connect["plan_id"] == both_modes.classic.plan_id
    assert set(both_modes.connect["live"]) == both_modes.classic_live


def test_apply_over_connect_moves_exactly_the_planned_files(both_modes: BothModes) -> None:
    assert both_modes.leftovers < both_modes.planned
    edits = sum(both_modes.classic.expiry_actions.values())
    assert both_modes.connect["applied"] == {"expire/done": edits, "quarantine/done": len(both_modes.planned)}
    after = both_modes.connect["after_apply"]
    assert set(both_modes.before) - set(after) == both_modes.planned
    changed = {key for key, value in after.items() if value != list(both_modes.before.get(key, ()))}
    assert changed
    assert all(key.endswith(".metadata.json") for key in changed)


def test_restore_over_connect_restores_all_bytes(both_modes: BothModes) -> None:
    assert both_modes.connect["restored"] == {"done": len(both_modes.planned)}
    assert {key: both_modes.connect["after_restore"][key] for key in both_modes.before} == {
        key: list(value) for key, value in both_modes.before.items()
    }
    assert both_modes.connect["status"] == "restored"
