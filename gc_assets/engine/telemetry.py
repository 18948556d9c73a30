"""Record OpenTelemetry spans and metrics of stages.

Telemetry is off unless an `OTEL_*` variable is set and the `otel` extra is installed. A provider
that the surrounding program has already started is used. Otherwise, the exporters in
`OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` are started, which can be `otlp` (over HTTP),
`console` or `none`.

Attributes contain names and counts, but never addresses or error messages.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from gc_assets._version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

NAME: Final = "gc_assets"
DURATION: Final = "gc_assets.stage.duration"
ROWS: Final = "gc_assets.stage.rows"
REQUESTS: Final = "gc_assets.stage.requests"
FAILURES: Final = "gc_assets.stage.failures"
_DISABLED: Final = "OTEL_SDK_DISABLED"
# Only these attributes are used for metrics. With the run date, every run would be a new series.
_METRIC_ATTRIBUTES: Final = frozenset({"gc_assets.stage", "gc_assets.owner"})
_log: Final = logging.getLogger(__name__)


class StageRecord:
    """The numbers of rows published and of requests sent by a stage."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.requests: Mapping[str, int] = {}


class Telemetry:
    """The tracer and the metrics of this process."""

    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        self._duration = meter.create_histogram(DURATION, "s", "Duration of a stage.")
        self._rows = meter.create_counter(ROWS, "{row}", "Rows of the published tables.")
        self._requests = meter.create_counter(REQUESTS, "{request}", "Requests to object stores.")
        self._failures = meter.create_counter(FAILURES, "{failure}", "Stages that ended with an error.")

    @contextmanager
    def stage(self, name: str, attributes: Mapping[str, str]) -> Generator[StageRecord]:
        """Record a block of code as a span, and update the metrics at its end.

        Args:
            name: The name of the span, such as `live_files`.
            attributes: The attributes of the span. Some of them are also used for the metrics
                (`_METRIC_ATTRIBUTES`).
        """
        from opentelemetry.trace import Status, StatusCode

        record, began = StageRecord(), time.monotonic()
        of_metric = {key: value for key, value in attributes.items() if key in _METRIC_ATTRIBUTES}
        with self._tracer.start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield record
            except BaseException as error:
                kind = type(error).__name__
                span.set_status(Status(StatusCode.ERROR, kind))
                span.set_attribute("error.type", kind)
                self._failures.add(1, {**of_metric, "error.type": kind})
                raise
            finally:
                for table, rows in record.rows.items():
                    span.set_attribute(f"gc_assets.rows.{table}", rows)
                    self._rows.add(rows, {**of_metric, "gc_assets.table": table})
                for kind, count in record.requests.items():
                    span.set_attribute(f"gc_assets.requests.{kind}", count)
                    self._requests.add(count, {**of_metric, "gc_assets.request": kind})
                self._duration.record(time.monotonic() - began, of_metric)


@contextmanager
def stage_span(name: str, attributes: Mapping[str, str]) -> Generator[StageRecord]:
    """Record a block of code as a stage if telemetry is on (see `Telemetry.stage`)."""
    found = telemetry()
    with found.stage(name, attributes) if found is not None else nullcontext(StageRecord()) as record:
        yield record


@cache
def telemetry() -> Telemetry | None:
    """Set up telemetry once for this process, or return None if it is off."""
    if not is_requested(os.environ):
        return None
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        _log.warning("OTEL_* is set, but the OpenTelemetry SDK is not installed. Run pip install 'gc-assets[otel]'.")
        return None
    from opentelemetry import metrics, trace

    _start_providers(os.environ)
    return Telemetry(trace.get_tracer(NAME, __version__), metrics.get_meter(NAME, __version__))


def is_requested(environment: Mapping[str, str]) -> bool:
    """Check if an `OTEL_*` variable is set, and OpenTelemetry is not disabled."""
    if environment.get(_DISABLED, "").lower() == "true":
        return False
    return any(name.startswith("OTEL_") and value for name, value in environment.items() if name != _DISABLED)


def _start_providers(environment: Mapping[str, str]) -> None:
    """Start a tracer and a meter provider, unless the surrounding program has done so."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    named = "OTEL_SERVICE_NAME" in environment or "service.name" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "gc-assets", "service.version": __version__})
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        exporter = _open_exporter(environment, "OTEL_TRACES_EXPORTER", ConsoleSpanExporter, "trace_exporter", "OTLPSpanExporter")
        if exporter is not None:
            tracers = TracerProvider(resource=resource)
            tracers.add_span_processor(BatchSpanProcessor(exporter))
            trace.set_tracer_provider(tracers)
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        exporter = _open_exporter(environment, "OTEL_METRICS_EXPORTER", ConsoleMetricExporter, "metric_exporter", "OTLPMetricExporter")
        if exporter is not None:
            metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)], resource=resource))


def _open_exporter(environment: Mapping[str, str], variable: str, console: Callable[[], Any], module: str, otlp: str) -> Any:
    """Create the exporter that a variable selects, or return None if it selects none."""
    name = environment.get(variable) or "otlp"
    if name == "console":
        return console()
    if name != "otlp":
        if name != "none":
            _log.warning("%s=%s is not supported and is ignored. Use otlp, console or none.", variable, name)
        return None
    try:
        return getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.http.{module}"), otlp)()
    except ImportError:
        _log.warning("The OTLP exporter of OpenTelemetry is not installed. Run pip install 'gc-assets[otel]'.")
        return None
