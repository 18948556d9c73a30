"""Spans and metrics of stages, read with the exporters of the SDK in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gc_assets.engine import telemetry
from gc_assets.engine.progress import log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.engine.telemetry import DURATION, FAILURES, ROWS, Telemetry, is_requested
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS
from tests.assets.platforms import NOW, platform

Memory = tuple[InMemorySpanExporter, InMemoryMetricReader]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """Record spans and metrics in memory instead of those of the environment."""
    spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    meters = MeterProvider([reader])
    found = Telemetry(tracers.get_tracer("test"), meters.get_meter("test"))
    monkeypatch.setattr(telemetry, "telemetry", lambda: found)
    yield spans, reader
    tracers.shutdown()
    meters.shutdown()


def read_points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """Return attributes and value (of a histogram the count) of each point by metric."""
    data = reader.get_metrics_data()
    found: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for metric in (metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics):
        for point in metric.data.data_points:
            found.setdefault(metric.name, []).append((dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", None))))
    return found


@log_progress(LAKE_REFS)
def inner(context: RunContext, lake: str) -> None:
    run = start_run(context, lake, LAKE_REFS)
    written = write_rows(LAKE_REFS.schema.empty_table(), LAKE_REFS, run, context.state.files)
    publish(context.state, run, written, context.clock, summary={"frozen_at": NOW, "rehearsal": True})


@log_progress(COMMIT_GRAPH)
def outer(context: RunContext, lake: str) -> None:
    inner(context, lake)


@log_progress(COMMIT_GRAPH)
def fail(context: RunContext, lake: str) -> None:
    raise ValueError("s3://secret-bucket/" + lake)


def test_span_of_stage_contains_inner_stage_span(memory: Memory, tmp_path: Path) -> None:
    outer(platform(tmp_path).run_context(NOW.date()), "sales")
    refs, graph = memory[0].get_finished_spans()
    assert (graph.name, refs.name) == ("commit_graph", "lake_refs")
    assert refs.parent is not None
    assert refs.parent.span_id == graph.context.span_id
    assert refs.attributes == {
        "gc_assets.stage": "lake_refs",
        "gc_assets.owner": "sales",
        "gc_assets.run_date": "2026-03-14",
        "gc_assets.rows.lake_refs": 0,
    }


def test_metrics_count_stages_and_rows_without_the_run_date(memory: Memory, tmp_path: Path) -> None:
    context = platform(tmp_path).run_context(NOW.date())
    inner(context, "sales")
    inner(context, "sales")
    found = read_points(memory[1])
    of_stage = {"gc_assets.stage": "lake_refs", "gc_assets.owner": "sales"}
    assert found[DURATION] == [(of_stage, 2)]
    assert found[ROWS] == [({**of_stage, "gc_assets.table": "lake_refs"}, 0)]
    assert FAILURES not in found


def test_error_is_counted_by_its_class_only(memory: Memory, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="secret-bucket"):
        fail(platform(tmp_path).run_context(NOW.date()), "sales")
    (span,) = memory[0].get_finished_spans()
    assert span.status.description == "ValueError"
    assert "secret" not in span.to_json()
    assert read_points(memory[1])[FAILURES] == [
        ({"gc_assets.stage": "commit_graph", "gc_assets.owner": "sales", "error.type": "ValueError"}, 1)
    ]


@pytest.mark.parametrize(
    "environment, requested",
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_SDK_DISABLED": "false"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_telemetry_is_disabled_without_environment_variables(environment: dict[str, str], requested: bool) -> None:
    assert is_requested(environment) is requested


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run([sys.executable, "-c", program], env={**clean, **environment}, capture_output=True, text=True, check=True)


STAGE = "from gc_assets.engine.telemetry import stage_span\nwith stage_span('work', {'gc_assets.stage': 'work'}): pass\n"


def test_process_without_variables_does_not_import_opentelemetry() -> None:
    result = run_python(STAGE + "import sys; print([name for name in sys.modules if name.startswith('opentelemetry')])")
    assert result.stdout == "[]\n"


def test_process_exports_telemetry_set_by_environment_variables() -> None:
    result = run_python(STAGE, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none")
    assert '"name": "work"' in result.stdout
    assert '"service.name": "gc-assets"' in result.stdout
    assert DURATION not in result.stdout


def test_missing_sdk_error_shows_extra_to_install() -> None:
    hide = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name: None if name.startswith('opentelemetry') else real(name)\n"
    )
    result = run_python(hide + STAGE, OTEL_TRACES_EXPORTER="otlp")
    assert "pip install 'gc-assets[otel]'" in result.stderr
