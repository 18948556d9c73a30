"""Run a remote job on a new cluster in a Databricks workspace.

The Databricks SDK gets the host and the login from its environment variables and profiles.
Therefore, `lakes.yaml` needs no token, and its text can be sent with the job.
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

from gc_assets.config.connections import Connections
from gc_assets.config.jobs import Databricks
from gc_assets.core.errors import UsageError
from gc_assets.remote import exchange

NAME: Final = "gc-assets"
# How long to wait for the state of a run. The SDK itself retries connections for five minutes, and
# errors of the workspace once.
TIMEOUT_SECONDS: Final = 600.0
_ENDED: Final = {RunLifeCycleState.TERMINATED, RunLifeCycleState.SKIPPED, RunLifeCycleState.INTERNAL_ERROR}


def run_job(
    settings: Databricks, places: Connections, context: dg.AssetExecutionContext | dg.OpExecutionContext, extras: Mapping[str, Any]
) -> Iterator[Any]:
    """Start a Databricks job and yield its reports.

    Raises:
        UsageError: If the job cannot be submitted.
        GcError: If the job failed, or if its result is unknown.
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
    # The SDK repeats a request if the connection breaks. Thanks to the token, only one run starts.
    submit = {"run_name": NAME, "idempotency_token": uuid4().hex}
    return exchanged.reports(partial(client.run, context=context, task=task, submit_args=submit, extras=dict(extras)), runs)


def build_task(settings: Databricks) -> SubmitTask:
    """Build the Databricks task of a run.

    Raises:
        UsageError: If the SDK does not support a configured key, which it would silently omit.
    """
    requested = {
        "task_key": NAME,
        "new_cluster": settings.cluster,
        "libraries": list(settings.libraries),
        "spark_python_task": {"python_file": settings.entry_point},
    }
    task = SubmitTask.from_dict(requested)
    if ignored := list(_ignored_keys(requested, task.as_dict(), "")):
        raise UsageError(
            f"spark.databricks: the installed databricks-sdk does not support {', '.join(ignored)}. Remove it or update the SDK."
        )
    return task


def _ignored_keys(requested: Any, accepted: Any, path: str) -> Iterator[str]:
    """Yield the paths in `requested` that have another value in `accepted`."""
    if isinstance(requested, dict) and isinstance(accepted, dict):
        for key, value in requested.items():
            yield from _ignored_keys(value, accepted.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(requested, list) and isinstance(accepted, list) and len(requested) == len(accepted):
        for number, (value, other) in enumerate(zip(requested, accepted, strict=True)):
            yield from _ignored_keys(value, other, f"{path}[{number}]")
    elif requested and requested != accepted:  # the SDK also omits empty values, which is harmless
        yield path


def _open_workspace(settings: Databricks) -> WorkspaceClient:
    try:
        return WorkspaceClient(host=settings.host)
    except ValueError as error:
        raise UsageError(
            f"Cannot connect to a Databricks workspace: {error}. Set spark.databricks.host or the variables of the SDK."
        ) from None


class WorkspaceJobs:
    """The part of the Databricks Jobs API that dagster-databricks uses. It stores the run's id."""

    def __init__(self, jobs: Any, host: str) -> None:
        self._jobs = jobs
        self._host = host
        self._run_id: int | None = None
        self._page = ""
        self._is_cancelled = False

    def submit(self, **request: Any) -> Any:
        response = self._jobs.submit(**request)
        self._run_id = response.bind()["run_id"]
        if self._is_cancelled:
            self.cancel()
        return response

    def get_run(self, run_id: int) -> Run:
        """Return the current state of a Databricks run.

        Errors are retried, because a run continues even if the workspace does not respond.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return self._read_run(run_id)
            except OSError:  # the SDK's errors are OSErrors too
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
            return f"Cannot start a run on {self._host}: {error}"
        name = f"run {self._run_id} of {self._host}"
        try:
            run = self._read_run(self._run_id)
            state = run.state or RunState()
            if state.life_cycle_state in _ENDED:
                ended = state.result_state or state.life_cycle_state
                return f"{name} ended as {ended.value}: {state.state_message or 'no message'}{self._output(run)}. {self._page_hint()}"
            self.cancel()
        except OSError as current_error:
            return (
                f"lost the connection to {name}, which may still be running ({current_error}). Cancel it in the workspace, then run "
                f"this again. {self._page_hint()}"
            )
        last_state = state.life_cycle_state.value if state.life_cycle_state else "in an unknown state"
        return f"lost the connection to {name}, which was {last_state} and is cancelled now ({error}). Run this again. {self._page_hint()}"

    def _page_hint(self) -> str:
        return f"See {self._page or self._host}."

    def _output(self, run: Run) -> str:
        """Return the error of the job's Python process, or an empty string if it has not failed."""
        for task in run.tasks or ():
            try:
                error = self._jobs.get_run_output(task.run_id).error
            except OSError:
                continue  # the message is complete without the output
            if error:
                return f" ({error})"
        return ""


class _WorkspaceClient:
    """The part of a workspace client that dagster-databricks uses."""

    def __init__(self, jobs: WorkspaceJobs) -> None:
        self.jobs = jobs
