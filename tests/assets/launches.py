"""Launch the jobs that decide on plans."""

from __future__ import annotations

from typing import Any

import dagster as dg

from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import Platform

OPS = {"approve": "approve_plan", "reject": "reject_plan", "restore": "put_files_back"}


def launch(at: Platform, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    definitions = build_definitions(at)
    return definitions.resolve_job_def(job).execute_in_process(
        run_config={"ops": {OPS[job]: {"config": config}}}, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False
    )


def output_metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success
    (event,) = (event for event in result.all_events if event.is_successful_output)
    return {name: value.value for name, value in event.step_output_data.metadata.items()}
