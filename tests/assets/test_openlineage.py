"""Events that dagster-openlineage makes of the assets: runs, column lineage and observations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from gc_assets.definitions import build_definitions
from tests.assets.platforms import platform

TODAY = "2026-03-14"


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Materialize the policy of a lake in an instance whose event log emits to a file."""
    log, home = tmp_path / "events.jsonl", tmp_path / "home"
    home.mkdir()
    instance = {
        "event_log_storage": {
            "module": "dagster_openlineage",
            "class": "OpenLineageEventLogStorage",
            "config": {
                "wrapped": {
                    "module": "dagster._core.storage.event_log",
                    "class": "SqliteEventLogStorage",
                    "config": {"base_dir": str(home / "events")},
                },
                "namespace": "lakes",
            },
        },
        "telemetry": {"enabled": False},
    }
    (home / "dagster.yaml").write_text(yaml.safe_dump(instance))
    transport = tmp_path / "openlineage.yml"
    transport.write_text(yaml.safe_dump({"transport": {"type": "file", "log_file_path": str(log), "append": True}}))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(transport))
    monkeypatch.delenv("OPENLINEAGE_URL", raising=False)
    job = build_definitions(platform(tmp_path)).resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey(["sales", name]) for name in ("policy_table", "current_rules")]
    with dg.DagsterInstance.from_config(str(home)) as opened:
        assert job.execute_in_process(instance=opened, partition_key=TODAY, asset_selection=keys).success
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_run_and_column_lineage_are_emitted(events: list[dict[str, Any]]) -> None:
    written = {event["job"]["name"]: event for event in events if event["eventType"] == "COMPLETE" and event.get("outputs")}
    assert {"sales/policy_table", "sales/current_rules"} <= written.keys()
    rules = written["sales/current_rules"]
    (output,) = rules["outputs"]
    assert (output["namespace"], output["name"]) == ("lakes", "sales/current_rules")
    (origin,) = output["facets"]["columnLineage"]["fields"]["rule_id"]["inputFields"]
    assert (origin["namespace"], origin["name"], origin["field"]) == ("lakes", "sales/policy_table", "rule_id")
    assert rules["run"]["runId"] == written["sales/policy_table"]["run"]["runId"]
    assert rules["run"]["facets"]["nominalTime"]["nominalStartTime"].startswith(TODAY)


def test_every_run_that_starts_also_completes(events: list[dict[str, Any]]) -> None:
    kinds = {(event["eventType"], event["job"]["name"]) for event in events}
    assert {("START", "sales/policy_table"), ("COMPLETE", "sales/policy_table")} <= kinds
    assert not [kind for kind, _ in kinds if kind in {"FAIL", "ABORT"}]
