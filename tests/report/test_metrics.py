"""The Prometheus metrics of the last runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gc_assets import __version__
from gc_assets.core.clock import Clock
from gc_assets.engine.tables import publish, write_rows
from gc_assets.report.metrics import RENAMED, RunMetrics
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.state.journal import State
from gc_assets.state.schemas import LAKE_REFS
from tests.assets.platforms import NOW, platform, stored_plan

Samples = dict[tuple[str, str], float]


def read(text: str) -> Samples:
    """Return every sample by name without prefix and labels, parsed by prometheus_client."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation.endswith(".")
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            assert (sample.name, labels) not in found
            found[sample.name.removeprefix("gc_assets_"), labels] = sample.value
    return found


def metrics(at: Platform) -> Samples:
    return read(RunMetrics(at.config, at.clock).text())


def publish_refs(at: Platform, run_date: date, frozen_at: datetime) -> None:
    state = State.of(at.config)
    run = state.start("sales", LAKE_REFS.name, run_date, at.clock)
    written = write_rows(LAKE_REFS.schema.empty_table(), LAKE_REFS, run, state.files)
    publish(state, run, written, at.clock, summary={"frozen_at": frozen_at, "rehearsal": True})


def test_only_info_exists_before_the_first_run(tmp_path: Path) -> None:
    assert metrics(platform(tmp_path)) == {("info", f"version={__version__}"): 1}


def test_plan_metrics_equal_the_plan_header(tmp_path: Path) -> None:
    at = platform(tmp_path)
    header = header_of(stored_plan(at, frozen_at=NOW - timedelta(minutes=2), expiry_actions={"sales": 3}, max_delete_bytes=1))
    found = metrics(at)
    old_names = {old for old, _, _ in RENAMED}
    of_storage = {name: value for (name, labels), value in found.items() if labels == "storage=warehouse" and name not in old_names}
    assert of_storage == {
        "run_timestamp_seconds": NOW.timestamp(),
        "run_duration_seconds": 120,
        "live_files": 7,
        "live_bytes": 700,
        "quarantined_files": 0,
        "quarantined_bytes": 0,
        "plan_approve_before_timestamp_seconds": header.approve_before.timestamp(),
        "plan_apply_before_timestamp_seconds": header.apply_before.timestamp(),
        "unfinished_applies": 0,
    }
    assert found["planned_files", "action=quarantine,storage=warehouse"] == 2
    assert found["planned_bytes", "action=quarantine,storage=warehouse"] == 200
    assert found["planned_edits", "lake=sales,storage=warehouse"] == 3
    assert found["gate_failed", "gate=delete_bytes,storage=warehouse"] == 1
    assert found["plan_status", "status=refused,storage=warehouse"] == 1


def test_historical_run_does_not_count_as_last_run(tmp_path: Path) -> None:
    at = platform(tmp_path)
    stored_plan(at, files=3, run_date="2026-03-12")
    stored_plan(at, files=5, run_date="2026-03-13", historical=True)
    assert metrics(at)["planned_files", "action=quarantine,storage=warehouse"] == 3


def test_historical_run_does_not_count_as_last_run_of_the_lake(tmp_path: Path) -> None:
    at = platform(tmp_path)
    publish_refs(at, date(2026, 3, 10), NOW - timedelta(days=4))
    publish_refs(at, date(2026, 3, 12), NOW - timedelta(days=1))
    found = metrics(at)
    assert found["lake_run_timestamp_seconds", "lake=sales"] == (NOW - timedelta(days=4)).timestamp()
    assert found["lake_refs", "lake=sales"] == 0
    assert "sales" not in str(metrics(replace(at, clock=Clock())))


def test_lake_names_in_labels_are_escaped(tmp_path: Path) -> None:
    at = platform(tmp_path)
    name = 'sa"l\\es\n# HELP x'
    stored_plan(at, expiry_actions={name: 1})
    assert metrics(at)["planned_edits", f"lake={name},storage=warehouse"] == 1


def test_renamed_metrics_are_emitted_under_old_and_new_names(tmp_path: Path) -> None:
    at = platform(tmp_path)
    stored_plan(at)
    publish_refs(at, date(2026, 3, 12), NOW)
    found = metrics(at)
    renamed = [(old, new) for old, _, new in RENAMED if any(name == new for name, _ in found)]
    assert len(renamed) >= 2
    for old, new in renamed:
        assert {labels: value for (name, labels), value in found.items() if name == old} == {
            labels: value for (name, labels), value in found.items() if name == new
        }
