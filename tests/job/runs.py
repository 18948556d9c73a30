"""A small lake with its `lakes.yaml`, and Dagster runs on it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from gc_assets.core.clock import Clock
from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import Platform, load_platform
from tests.conftest import TEST_CONF
from tests.dates import now_before_midnight
from tests.lakes.iceberg.builder import LakeBuilder

LOG = "warehouse/deletion_log"


def sales(root: Path, conf: Mapping[str, str], **spark: Any) -> Path:
    """Create a table with expired history and four files of a failed writer. Return its
    `lakes.yaml`.

    All dates of a test module are on one day.
    """
    now = now_before_midnight(minutes=6)
    lake = LakeBuilder(root)
    table = lake.table("sales.orders", now - timedelta(days=60), properties={"history.expire.max-snapshot-age-ms": str(10 * 86_400_000)})
    for days in (50, 6):
        table.append(now - timedelta(days=days))
    table.leftovers(now - timedelta(days=20), 3)
    document = {
        "state": f"{root}/state",
        "storages": [{"name": "warehouse", "location": f"file://{lake.warehouse}/", "mode": "apply"}],
        "lakes": [{"name": "sales", "kind": "iceberg", "catalog": lake.properties}],
        "spark": {"conf": {**TEST_CONF, **conf}, **spark},
    }
    (root / "lakes.yaml").write_text(json.dumps(document))
    return root / "lakes.yaml"


def with_spark(path: Path, other: Path, state: str | None = None, **spark: Any) -> Path:
    """Return the configuration with other settings of Spark, and by default a new state."""
    document = json.loads(path.read_text())
    document |= {"state": state or f"{other.parent}/{other.stem}-state", "spark": {**spark, "conf": document["spark"]["conf"]}}
    other.write_text(json.dumps(document))
    return other


@dataclass(frozen=True)
class RunResult:
    """A Dagster run, with the lines of its log."""

    result: dg.ExecuteInProcessResult
    lines: Sequence[str]

    @property
    def failure(self) -> str:
        """The error message of the run."""
        (event,) = [event for event in self.result.all_events if event.is_step_failure]
        records = event.step_failure_data.user_failure_data
        return str(records.description) if records is not None else event.step_failure_data.error.to_string()

    def tables(self) -> dict[str, dg.AssetMaterialization]:
        events = self.result.get_asset_materialization_events()
        return {event.asset_key.to_user_string(): event.step_materialization_data.materialization for event in events}

    def checks(self) -> dict[tuple[str, str], bool]:
        return {(check.asset_key.to_user_string(), check.check_name): check.passed for check in self.result.get_asset_check_evaluations()}


def run(path: Path, assets: Sequence[str] = (), meanwhile: Callable[[str], None] = lambda _: None, **config: Any) -> RunResult:
    return run_assets(load_platform(os.environ, str(path)), assets, meanwhile, **config)


def run_assets(at: Platform, assets: Sequence[str] = (), meanwhile: Callable[[str], None] = lambda _: None, **config: Any) -> RunResult:
    """Run the planning assets, or the given assets. `config` configures `deletion_log`, and
    `meanwhile` receives every log line.
    """
    lines = list[str]()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = getattr(record, "dagster_meta", {}).get("orig_message", record.getMessage())
            lines.append(line)
            meanwhile(line)

    @dg.logger
    def recorder(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("heard", logging.DEBUG)
        logger.addHandler(Lines())
        return logger

    definitions = dg.Definitions.merge(build_definitions(at), dg.Definitions(loggers={"heard": recorder}))
    keys = {key.to_user_string() for key in definitions.resolve_asset_graph().executable_asset_keys} - {LOG}
    ops = {LOG.replace("/", "__"): {"config": config}} if config else {}
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        partition_key=Clock().today().isoformat(),
        asset_selection=[dg.AssetKey(name.split("/")) for name in assets or sorted(keys)],
        run_config={"ops": ops, "loggers": {"heard": {"config": {}}}},
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )
    return RunResult(result, lines)
