"""Execute a request in the process of a remote job, and report each event immediately.

The job executes the same Dagster definitions, but with the Spark session of its own process.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import boto3
import dagster as dg
from dagster_pipes import (
    PipesContext,
    PipesEnvVarParamsLoader,
    PipesS3ContextLoader,
    PipesS3MessageWriter,
    open_dagster_pipes,
)

from gc_assets.assets.failures import StepFailure, read_failure
from gc_assets.core.errors import GcError
from gc_assets.remote.job_request import JobReport, JobRequest
from gc_assets.resources.spark import SparkRuntime

LOGGER: Final = "job"
NOT_STARTED_BY_DAGSTER: Final = "only Dagster can start a job (spark.mode in lakes.yaml). Use gc-assets run to start a run yourself."
EXCHANGE_SECONDS: Final = 5.0


def main(build_definitions: Callable[..., dg.Definitions]) -> None:
    """Execute the request of the Dagster process that started this job.

    If the request fails, the process exits with the exit code of the error.
    """
    params = PipesEnvVarParamsLoader()
    if not params.is_dagster_pipes_process():
        sys.exit(NOT_STARTED_BY_DAGSTER)
    with _open_pipes(params) as pipes:
        try:
            code = _run(pipes, build_definitions)
        except GcError as error:
            _report(pipes, JobReport(failure=StepFailure.from_error(error)))
            code = error.exit_code
    if code:  # on Databricks, any call of sys.exit can count as a failure
        sys.exit(code)


def _open_pipes(params: PipesEnvVarParamsLoader) -> PipesContext:
    """Open the exchange with Dagster, which uses objects in S3 or local files."""
    if "bucket" not in params.load_messages_params():
        return open_dagster_pipes()
    s3 = boto3.client("s3")
    return open_dagster_pipes(context_loader=PipesS3ContextLoader(s3), message_writer=PipesS3MessageWriter(s3, interval=EXCHANGE_SECONDS))


def _run(pipes: PipesContext, build_definitions: Callable[..., dg.Definitions]) -> int:
    request = JobRequest.read(pipes.get_extra("request"))
    platform = request.platform(os.environ)
    runtime = SparkRuntime.from_config(platform.config.spark, submitted=True)
    local_definitions = build_definitions(platform, request.as_of, request.first, runtime=runtime)
    definitions = dg.Definitions.merge(local_definitions, dg.Definitions(loggers={LOGGER: _logger(_ReportHandler(pipes, request.job))}))
    job = definitions.resolve_implicit_global_asset_job_def() if request.job is None else definitions.resolve_job_def(request.job)
    result = job.execute_in_process(
        run_config={"ops": request.ops, "loggers": {LOGGER: {"config": {}}}},
        instance=dg.DagsterInstance.ephemeral(),
        partition_key=request.run_date,
        asset_selection=[dg.AssetKey(list(key)) for key in request.assets] if request.job is None else None,
        raise_on_error=False,
    )
    if not result.success:
        return 1
    _report(pipes, JobReport(done=True))
    return 0


def _logger(reports: _ReportHandler) -> dg.LoggerDefinition:
    @dg.logger
    def job(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger(LOGGER, level=logging.DEBUG)
        logger.addHandler(reports)
        return logger

    return job


class _ReportHandler(logging.Handler):
    """Reports the log records of a job's Dagster run to the process that started the job.

    If the request is for a Dagster job, the output metadata of its op is reported too.
    """

    def __init__(self, pipes: PipesContext, job: str | None) -> None:
        super().__init__()
        self._pipes = pipes
        self._job = job

    def emit(self, record: logging.LogRecord) -> None:
        meta = getattr(record, "dagster_meta", {})
        event: dg.DagsterEvent | None = meta.get("dagster_event")
        if event is None:
            self._pipes.log.log(record.levelno, meta.get("orig_message", record.getMessage()))
        elif event.is_step_failure:
            _report(self._pipes, JobReport(failure=read_failure(event)))
        elif self._job is not None and event.is_successful_output:
            metadata: Any = dict(event.step_output_data.metadata)
            _report(self._pipes, JobReport(metadata=dg.serialize_value(metadata)))
        elif (of_asset := _asset_event(event)) is not None:
            _report(self._pipes, JobReport(event=dg.serialize_value(of_asset)))


def _asset_event(event: dg.DagsterEvent) -> Any:
    """Return the asset event in a Dagster event, or None if it has none."""
    match event.event_type:
        case dg.DagsterEventType.ASSET_MATERIALIZATION:
            return event.step_materialization_data.materialization
        case dg.DagsterEventType.ASSET_OBSERVATION:
            return event.asset_observation_data.asset_observation
        case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return event.asset_check_evaluation_data
        case _:
            return None


def _report(pipes: PipesContext, report: JobReport) -> None:
    pipes.report_custom_message(report.model_dump(mode="json", exclude_defaults=True))
