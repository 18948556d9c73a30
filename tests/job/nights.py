"""A small lake with a `lakes.yaml` of its own, and runs of its Dagster."""

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
from tests.days import now_for
from tests.lakes.iceberg.builder import LakeBuilder

LOG = "warehouse/deletion_log"


def sales(root: Path, conf: Mapping[str, str], **spark: Any) -> Path:
    """Makes a table with expired history, and the four leftovers of a crashed writer. Returns its `lakes.yaml`.

    All that a module of tests tells about it ends on the same day.
    """
    now = now_for(minutes=6)
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
    """The same lake with other settings of Spark, and a state of its own unless one is named."""
    document = json.loads(path.read_text())
    document |= {"state": state or f"{other.parent}/{other.stem}-state", "spark": {**spark, "conf": document["spark"]["conf"]}}
    other.write_text(json.dumps(document))
    return other


@dataclass(frozen=True)
class Ran:
    """A run of Dagster, and the lines of its log."""

    result: dg.ExecuteInProcessResult
    lines: Sequence[str]

    @property
    def failure(self) -> str:
        """What stopped the run, in the words of the page."""
        (event,) = [event for event in self.result.all_events if event.is_step_failure]
        told = event.step_failure_data.user_failure_data
        return str(told.description) if told is not None else event.step_failure_data.error.to_string()

    def tables(self) -> dict[str, dg.AssetMaterialization]:
        events = self.result.get_asset_materialization_events()
        return {event.asset_key.to_user_string(): event.step_materialization_data.materialization for event in events}

    def checks(self) -> dict[tuple[str, str], bool]:
        return {(check.asset_key.to_user_string(), check.check_name): check.passed for check in self.result.get_asset_check_evaluations()}


def run(path: Path, assets: Sequence[str] = (), meanwhile: Callable[[str], None] = lambda _: None, **config: Any) -> Ran:
    return night_of(load_platform(os.environ, str(path)), assets, meanwhile, **config)


def night_of(at: Platform, assets: Sequence[str] = (), meanwhile: Callable[[str], None] = lambda _: None, **config: Any) -> Ran:
    """Runs the night without what deletes, or the assets; `config` is that of the one that deletes. `meanwhile` hears every line."""
    lines = list[str]()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = getattr(record, "dagster_meta", {}).get("orig_message", record.getMessage())
            lines.append(line)
            meanwhile(line)

    @dg.logger
    def heard(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("heard", logging.DEBUG)
        logger.addHandler(Lines())
        return logger

    definitions = dg.Definitions.merge(build_definitions(at), dg.Definitions(loggers={"heard": heard}))
    keys = {key.to_user_string() for key in definitions.resolve_asset_graph().executable_asset_keys} - {LOG}
    ops = {LOG.replace("/", "__"): {"config": config}} if config else {}
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        partition_key=Clock().today().isoformat(),
        asset_selection=[dg.AssetKey(name.split("/")) for name in assets or sorted(keys)],
        run_config={"ops": ops, "loggers": {"heard": {"config": {}}}},
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )
    return Ran(result, lines)
