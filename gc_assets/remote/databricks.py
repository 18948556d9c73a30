"""A job as a run of a Databricks workspace, on a cluster of its own.

Host and login are the SDK's own business: its environment variables and profiles. So no token of a
workspace stands in `lakes.yaml`, whose text goes along with the job.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

import dagster as dg
from dagster_databricks import PipesDatabricksClient
from databricks.sdk import WorkspaceClient
from databricks.sdk.service.jobs import Run, RunLifeCycleState, RunState, SubmitTask

from gc_assets.config.jobs import Databricks
from gc_assets.config.s3 import Places
from gc_assets.core.errors import UsageError
from gc_assets.remote import exchange

NAME: Final = "gc-assets"
# For an answer about a run. The SDK itself asks for five minutes where nobody answers, and once
# where the workspace fails.
TIMEOUT_SECONDS: Final = 600.0
_ENDED: Final = {RunLifeCycleState.TERMINATED, RunLifeCycleState.SKIPPED, RunLifeCycleState.INTERNAL_ERROR}


def run_job(
    settings: Databricks, places: Places, context: dg.AssetExecutionContext | dg.OpExecutionContext, extras: Mapping[str, Any]
) -> Iterator[Any]:
    """Yields what a job reports. Raises `UsageError` where it cannot be asked for, and `GcError` where
    it ended badly, or where nobody can say how it ended.
    """
    task = build_task(settings)
    workspace = _open_workspace(settings)
    exchanged = exchange.Exchange(settings.exchange, places)
    runs = WorkspaceJobs(workspace.jobs, str(workspace.config.host))
    client = PipesDatabricksClient(
        client=_WorkspaceClient(runs),  # pyright: ignore[reportArgumentType]
        context_injector=exchanged.injector,
        message_reader=exchanged.reader,
        poll_interval_seconds=exchange.EXCHANGE_SECONDS,
    )
    # Whoever asks twice, as the SDK does where a connection breaks, gets the same run.
    submit = {"run_name": NAME, "idempotency_token": uuid4().hex}
    return exchanged.reports(partial(client.run, context=context, task=task, submit_args=submit, extras=dict(extras)), runs)


def build_task(settings: Databricks) -> SubmitTask:
    """Returns what a run is to do. Raises `UsageError` for what the SDK does not know: it would leave
    that out without a word.
    """
    asked = {
        "task_key": NAME,
        "new_cluster": settings.cluster,
        "libraries": list(settings.libraries),
        "spark_python_task": {"python_file": settings.entry_point},
    }
    task = SubmitTask.from_dict(asked)
    if lost := list(_ignored_keys(asked, task.as_dict(), "")):
        raise UsageError(f"spark.databricks: the Jobs API, as the databricks-sdk here knows it, takes no {', '.join(lost)}")
    return task


def _ignored_keys(asked: Any, kept: Any, place: str) -> Iterator[str]:
    """Yields the places of a document where another one says something else."""
    if isinstance(asked, dict) and isinstance(kept, dict):
        for key, value in asked.items():
            yield from _ignored_keys(value, kept.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(asked, list) and isinstance(kept, list) and len(asked) == len(kept):
        for number, (value, other) in enumerate(zip(asked, kept, strict=True)):
            yield from _ignored_keys(value, other, f"{place}[{number}]")
    elif asked and asked != kept:  # what is empty is left out, and means the same
        yield place


def _open_workspace(settings: Databricks) -> WorkspaceClient:
    try:
        return WorkspaceClient(host=settings.host)
    except ValueError as error:
        raise UsageError(f"no workspace of Databricks can be asked for a job: {error}") from None


class WorkspaceJobs:
    """What dagster-databricks asks of the Jobs API, and which run it started."""

    def __init__(self, jobs: Any, host: str) -> None:
        self._jobs = jobs
        self._host = host
        self._run_id: int | None = None
        self._page = ""
        self._is_cancelled = False

    def submit(self, **asked: Any) -> Any:
        answer = self._jobs.submit(**asked)
        self._run_id = answer.bind()["run_id"]
        if self._is_cancelled:
            self.cancel()
        return answer

    def get_run(self, run_id: int) -> Run:
        """Returns the run. Where there is no answer it is asked for again: a run goes on when its
        workspace does not say so.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return self._read_run(run_id)
            except OSError:  # the SDK's errors are such too
                if time.monotonic() >= deadline:
                    raise
            time.sleep(exchange.EXCHANGE_SECONDS)

    def _read_run(self, run_id: int) -> Run:
        run: Run = self._jobs.get_run(run_id)
        self._page = run.run_page_url or self._page
        return run

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._run_id is not None:
            self._jobs.cancel_run(self._run_id)

    def describe_end(self, error: BaseException) -> str:
        if self._run_id is None:
            return f"no run was started by {self._host}: {error}"
        name = f"run {self._run_id} of {self._host}"
        try:
            run = self._read_run(self._run_id)
            state = run.state or RunState()
            if state.life_cycle_state in _ENDED:
                ended = state.result_state or state.life_cycle_state
                return f"{name} ended as {ended.value}: {state.state_message or 'no message'}{self._output(run)}; {self._page_hint()}"
            self.cancel()
        except OSError as still:
            return f"{name} could not be watched any longer, and may go on ({still}): cancel it there, then run this again; {self._page_hint()}"
        seen = state.life_cycle_state.value if state.life_cycle_state else "in a state unknown here"
        return f"{name} was {seen} and could not be watched any longer, so it was cancelled ({error}): run this again; {self._page_hint()}"

    def _page_hint(self) -> str:
        return f"look at {self._page or self._host}"

    def _output(self, run: Run) -> str:
        """Returns the error that the job's Python ended with, where there is one."""
        for task in run.tasks or ():
            try:
                said = self._jobs.get_run_output(task.run_id).error
            except OSError:
                continue  # the state stands without it
            if said:
                return f" ({said})"
        return ""


class _WorkspaceClient:
    """What dagster-databricks needs of a workspace."""

    def __init__(self, jobs: WorkspaceJobs) -> None:
        self.jobs = jobs
