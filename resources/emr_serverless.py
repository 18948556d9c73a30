"""A job as a job run of EMR Serverless."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Final

import boto3
import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from dagster_aws.pipes import PipesEMRServerlessClient, PipesS3ContextInjector, PipesS3MessageReader

from gc_assets.config.jobs import EmrServerless
from gc_assets.config.s3 import Places
from gc_assets.core.errors import GcError
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3.client import client_of

EXCHANGE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_OVER: Final = frozenset({"SUCCESS", "FAILED", "CANCELLING", "CANCELLED"})


def job_run(
    settings: EmrServerless, places: Places, context: dg.AssetExecutionContext | dg.OpExecutionContext, extras: Mapping[str, Any]
) -> Iterator[Any]:
    """Yields what a job reports. Raises `GcError` where it ended badly."""
    bucket, prefix = bucket_and_key(f"{settings.exchange.rstrip('/')}/")
    s3 = client_of(places.s3_of(settings.exchange), "read")
    emr = _Application(boto3.client("emr-serverless", region_name=settings.region))
    reader = _Reader(s3, bucket, prefix)
    client = _Client(
        client=emr,  # pyright: ignore[reportArgumentType]
        context_injector=_Request(bucket=bucket, client=s3, key_prefix=prefix),
        message_reader=reader,
        poll_interval=EXCHANGE_SECONDS,
    )
    params: Any = {
        "applicationId": settings.application_id,
        "executionRoleArn": settings.execution_role_arn,
        "name": "gc-assets",
        "jobDriver": {"sparkSubmit": {"entryPoint": settings.entry_point, "sparkSubmitParameters": settings.parameters}},
    }
    heard = 0
    # The client waits until the end. Beside it the reports are handed on as they come.
    with ThreadPoolExecutor(1) as beside:
        run = beside.submit(client.run, context=context, start_job_run_params=params, extras=dict(extras))
        try:
            while not run.done():
                wait([run], _LOOK_SECONDS)
                said = reader.said()
                yield from said[heard:]
                heard = len(said)
        except BaseException:
            emr.cancel()
            raise
    yield from reader.said()[heard:]
    if (error := run.exception()) is not None:
        raise GcError(emr.ending(error) or f"no job run of {settings.application_id} was started: {error}")


class _Application:
    """What dagster-aws asks of EMR Serverless, and which job run it started."""

    def __init__(self, emr: Any) -> None:
        self._emr = emr
        self._run: dict[str, str] | None = None
        self._is_cancelled = False

    def start_job_run(self, **asked: Any) -> Any:
        answer = self._emr.start_job_run(**asked)
        self._run = {"applicationId": answer["applicationId"], "jobRunId": answer["jobRunId"]}
        if self._is_cancelled:
            self.cancel()
        return answer

    def get_job_run(self, **asked: Any) -> Any:
        return self._emr.get_job_run(**asked)

    def get_dashboard_for_job_run(self, **_: Any) -> str:
        """The page's address logs in whoever knows it, and dagster-aws would write it to the log."""
        return "see EMR Studio"

    def cancel(self) -> None:
        """Cancels the job run, at once or as soon as it was started."""
        self._is_cancelled = True
        if self._run is not None:
            self._emr.cancel_job_run(**self._run)

    def ending(self, error: BaseException) -> str:
        """Returns how the job run ended; empty where none was started. `error` ended the watch over
        it. A job run that goes on is cancelled: nobody would hear of what it does.
        """
        if self._run is None:
            return ""
        name = f"job run {self._run['jobRunId']} of {self._run['applicationId']}"
        try:
            run = self._emr.get_job_run(**self._run)["jobRun"]
            if run["state"] in _OVER:
                return f"{name} ended as {run['state']}: {run.get('stateDetails') or 'no details'}"
            self.cancel()
        except (BotoCoreError, ClientError) as still:
            return f"{name} could not be watched any longer, and may go on ({still}): cancel it in EMR Studio, then run this again"
        return f"{name} was {run['state']} and could not be watched any longer, so it was cancelled ({error}): run this again"


class _Request(PipesS3ContextInjector):
    """Puts what is asked for below a prefix, and takes it away however the job run ends. dagster-aws
    leaves that of a job run that failed: whoever cloned it in EMR Studio would ask for it again.
    """

    @contextmanager
    def inject_context(self, context: Any) -> Generator[Any]:
        with super().inject_context(context) as place:
            try:
                yield place
            finally:
                self.client.delete_object(Bucket=place["bucket"], Key=place["key"])


class _Client(PipesEMRServerlessClient):
    def _read_messages(self, context: Any, session: Any, response: Any) -> None:
        """Nothing: dagster-aws reads CloudWatch here, when all is over, and warns of other readers."""


class _Reader(PipesS3MessageReader):
    """Reads the reports below a prefix, and shows them before the job ends."""

    def __init__(self, s3: Any, bucket: str, prefix: str) -> None:
        super().__init__(interval=EXCHANGE_SECONDS, bucket=bucket, client=s3)
        self._prefix = prefix
        self._handler: Any = None

    def said(self) -> Sequence[Any]:
        return () if self._handler is None else self._handler.get_custom_messages()

    def read_messages(self, handler: Any) -> Any:
        self._handler = handler
        return super().read_messages(handler)

    @contextmanager
    def get_params(self) -> Generator[dict[str, Any]]:
        with super().get_params() as params:
            yield {**params, "key_prefix": f"{self._prefix}{params['key_prefix']}"}
