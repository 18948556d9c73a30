"""Commands on a storage in a cloud, and everything that they write, print, send or record."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gc_assets.cli.main import cli
from gc_assets.engine import telemetry
from gc_assets.state.files import Files
from tests.depth import example_count
from tests.stages.bucket_lakehouse import BucketLakehouse


@dataclass
class Traces:
    """Everything in which a secret could be. `texts` maps a name to a content."""

    home: Path
    spans: InMemorySpanExporter
    texts: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def add_spans(self) -> None:
        found = self.spans.get_finished_spans()
        assert found
        self.texts |= {f"span {number}": span.to_json().encode() for number, span in enumerate(found)}

    def add_files(self, files: Files) -> None:
        self.texts |= {item.name: files.read(item.name) for item in files.list("", recursive=True)}

    def find(self, *secrets: str) -> list[str]:
        """Return the names of contents with a secret."""
        return [name for name, content in self.texts.items() if any(secret.encode() in content for secret in secrets)]


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    """Record spans in memory, and the events of Dagster in a directory."""
    home, spans, tracers, meters = tmp_path / "home", InMemorySpanExporter(), TracerProvider(), MeterProvider()
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    found = telemetry.Telemetry(tracers.get_tracer("test"), meters.get_meter("test"))
    monkeypatch.setattr(telemetry, "telemetry", lambda: found)
    yield Traces(home, spans)
    tracers.shutdown()
    meters.shutdown()


def collect_garbage(
    house: BucketLakehouse, traces: Traces, document: dict[str, Any], garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Run, examine, report, approve, apply and restore by command, and collect what came of it.

    Args:
        house: The lakes.
        traces: Receives all contents.
        document: The `lakes.yaml`.
        garbage: A key that the plan must contain.
        caplog: The log.
    """
    lakes_yaml, date = traces.home.parent / "lakes.yaml", house.now.date().isoformat()
    lakes_yaml.write_text(yaml.safe_dump(document))

    def run_command(*arguments: str) -> str:
        result = CliRunner().invoke(cli, [*arguments, "--config", str(lakes_yaml)])
        traces.texts[" ".join(arguments)] = (result.stdout + result.stderr + repr(result.exception)).encode()
        assert result.exit_code == 0, result.stderr
        return result.stdout

    (plan,) = json.loads(run_command("run", "--run-date", date, "--format", "json"))
    if example_count(0, 1):  # it starts a session of Spark to test it
        assert json.loads(run_command("doctor", "--format", "json"))
    run_command("report", "--run-date", date, "-o", str(traces.home / "report.html"))
    before = house.contents()
    run_command("approve", plan["plan_id"], "--by", "ada")
    run_command("apply", plan["plan_id"])
    gone = before.keys() - house.contents().keys()
    assert (len(gone), garbage in gone) == (plan["files"], True)
    run_command("restore", "--plan", plan["plan_id"])
    assert {key: house.contents()[key] for key in gone} == {key: before[key] for key in gone}

    store = house.bench.store
    sent = [store, store.objects, store.quarantine("trash", plan["plan_id"]), *store.plan_listing(2)]
    traces.texts |= {f"pickle {number}": pickle.dumps(value) for number, value in enumerate(sent)}
    traces.texts |= {str(path): path.read_bytes() for path in traces.home.rglob("*") if path.is_file()}
    own = [key for key in house.bench.everything() if key.startswith(".gc-assets/")]
    traces.texts |= {key: house.bench.get(key) or b"" for key in own}
    traces.texts["log"] = caplog.text.encode()
    traces.add_files(Files(document["state"], house.config.state_settings()))
    traces.add_spans()
    assert any(name.endswith("report.html") for name in traces.texts)
    assert any("/history/" in name and name.endswith(".db") for name in traces.texts), sorted(traces.texts)
    assert len(traces.texts) > 60
