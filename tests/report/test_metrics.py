"""The last nights as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gc_assets import __version__
from gc_assets.core.clock import Clock
from gc_assets.engine.tables import publish, write_rows
from gc_assets.report.metrics import RunMetrics
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.state.journal import State
from gc_assets.state.schemas import LAKE_REFS
from tests.assets.platforms import NOW, platform, stored_plan

Samples = dict[tuple[str, str], float]


def read(text: str) -> Samples:
    """Every sample by its name without the prefix and its labels, as Prometheus' own parser reads them."""
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


def frozen(at: Platform, run_date: date, frozen_at: datetime) -> None:
    state = State.of(at.config)
    run = state.start("sales", LAKE_REFS.name, run_date, at.clock)
    written = write_rows(LAKE_REFS.schema.empty_table(), LAKE_REFS, run, state.files)
    publish(state, run, written, at.clock, summary={"frozen_at": frozen_at, "rehearsal": True})


def test_before_the_first_night_there_is_the_release_and_nothing_else(tmp_path: Path) -> None:
    assert metrics(platform(tmp_path)) == {("info", f"version={__version__}"): 1}


def test_a_plan_is_told_with_its_files_gates_and_times(tmp_path: Path) -> None:
    at = platform(tmp_path)
    header = header_of(stored_plan(at, frozen_at=NOW - timedelta(minutes=2), expiry_actions={"sales": 3}, max_delete_bytes=1))
    found = metrics(at)
    of_storage = {name: value for (name, labels), value in found.items() if labels == "storage=warehouse"}
    assert of_storage == {
        "night_timestamp_seconds": NOW.timestamp(),
        "night_duration_seconds": 120,
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


def test_the_last_night_counts_and_no_analysis(tmp_path: Path) -> None:
    at = platform(tmp_path)
    stored_plan(at, files=3, run_date="2026-03-12")
    stored_plan(at, files=5, run_date="2026-03-13", historical=True)
    assert metrics(at)["planned_files", "action=quarantine,storage=warehouse"] == 3


def test_the_last_freeze_of_a_lake_counts_and_no_analysis(tmp_path: Path) -> None:
    at = platform(tmp_path)
    frozen(at, date(2026, 3, 10), NOW - timedelta(days=4))
    frozen(at, date(2026, 3, 12), NOW - timedelta(days=1))
    found = metrics(at)
    assert found["lake_night_timestamp_seconds", "lake=sales"] == (NOW - timedelta(days=4)).timestamp()
    assert found["lake_refs", "lake=sales"] == 0
    assert "sales" not in str(metrics(replace(at, clock=Clock())))


def test_what_a_name_holds_breaks_no_line(tmp_path: Path) -> None:
    at = platform(tmp_path)
    name = 'sa"l\\es\n# HELP x'
    stored_plan(at, expiry_actions={name: 1})
    assert metrics(at)["planned_edits", f"lake={name},storage=warehouse"] == 1
