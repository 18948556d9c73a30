"""Run a remote job on EMR Serverless, as a job run of an application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import boto3
import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from dagster_aws.pipes import PipesEMRServerlessClient

from gc_assets.config.connections import Connections
from gc_assets.config.jobs import EmrServerless
from gc_assets.remote import exchange

_FINAL_STATES: Final = frozenset({"SUCCESS", "FAILED", "CANCELLING", "CANCELLED"})


def run_job(
    settings: EmrServerless, places: Connections, context: dg.AssetExecutionContext | dg.OpExecutionContext, extras: Mapping[str, Any]
) -> Iterator[Any]:
    """Start a job on EMR Serverless and yield its reports.

    Raises:
        GcError: If the job failed.
    """
    exchanged = exchange.Exchange(settings.exchange, places)
    emr = EmrJob(boto3.client("emr-serverless", region_name=settings.region), settings.application_id)
    client = _Client(
        client=emr,  # pyright: ignore[reportArgumentType]
        context_injector=exchanged.injector,
        message_reader=exchanged.reader,
        poll_interval=exchange.EXCHANGE_SECONDS,
    )
    params: Any = {
        "applicationId": settings.application_id,
        "executionRoleArn": settings.execution_role_arn,
        "name": "gc-assets",
        "jobDriver": {"sparkSubmit": {"entryPoint": settings.entry_point, "sparkSubmitParameters": settings.parameters}},
    }
    return exchanged.reports(partial(client.run, context=context, start_job_run_params=params, extras=dict(extras)), emr)


class EmrJob:
    """The part of the EMR Serverless API that dagster-aws uses. It stores the job run's id."""

    def __init__(self, emr: Any, application_id: str) -> None:
        self._emr = emr
        self._application_id = application_id
        self._run: dict[str, str] | None = None
        self._is_cancelled = False

    def start_job_run(self, **request: Any) -> Any:
        response = self._emr.start_job_run(**request)
        self._run = {"applicationId": response["applicationId"], "jobRunId": response["jobRunId"]}
        if self._is_cancelled:
            self.cancel()
        return response

    def get_job_run(self, **request: Any) -> Any:
        return self._emr.get_job_run(**request)

    def get_dashboard_for_job_run(self, **_: Any) -> str:
        """Hide the dashboard's address, which contains a login, because dagster-aws would log it."""
        return "see EMR Studio"

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._run is not None:
            self._emr.cancel_job_run(**self._run)

    def describe_end(self, error: BaseException) -> str:
        if self._run is None:
            return f"Cannot start a job run of application {self._application_id}: {error}"
        name = f"job run {self._run['jobRunId']} of {self._run['applicationId']}"
        try:
            run = self._emr.get_job_run(**self._run)["jobRun"]
            if run["state"] in _FINAL_STATES:
                return f"{name} ended as {run['state']}: {run.get('stateDetails') or 'no details'}"
            self.cancel()
        except (BotoCoreError, ClientError) as current_error:
            return (
                f"lost the connection to {name}, which may still be running ({current_error}). Cancel it in EMR Studio, then run "
                "this again."
            )
        return f"lost the connection to {name}, which was {run['state']} and is cancelled now ({error}). Run this again."


class _Client(PipesEMRServerlessClient):
    def _read_messages(self, context: Any, session: Any, response: Any) -> None:
        """Do nothing.

        Otherwise dagster-aws reads CloudWatch after the job and warns about other readers.
        """
