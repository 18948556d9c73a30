"""How a stage's error ends a Dagster step, and how to read from a step what ended it. The platform's
own errors end it at once and in their own words, a passing I/O error after retries.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Self

import dagster as dg

from gc_assets.config.values import Model
from gc_assets.core.errors import GcError

IO_RETRIES: Final = 3
IO_RETRY_SECONDS: Final = 10.0
# What Dagster ends a step with whose blocking checks failed.
FAILED_CHECKS: Final = "DagsterAssetCheckFailedError"
# These errors are the same a moment later, so asking again only delays the message.
PERMANENT_ERRORS: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


class StepFailure(Model):
    """What stopped a step of a job: the platform's own error by its name, or another one. `checks` is
    true where failed checks did, which are reported themselves.
    """

    text: str
    error: str = ""
    exit_code: str = "1"
    checks: bool = False

    @classmethod
    def from_error(cls, error: GcError) -> Self:
        return cls(text=str(error), error=type(error).__name__, exit_code=str(error.exit_code))


@contextmanager
def translate_errors(*, retry_io: bool = True) -> Generator[None]:
    """Turns errors of the platform into `dg.Failure` without retries, with the error as cause. An
    `OSError` asks for a retry if `retry_io`.

    A `RetryPolicy` would retry everything else too: a refused gate or a truncated manifest is the
    same a minute later.
    """
    try:
        yield
    except GcError as error:
        metadata = {"error": type(error).__name__, "exit_code": str(error.exit_code)}
        raise dg.Failure(str(error), metadata=metadata, allow_retries=False) from error
    except PERMANENT_ERRORS:
        raise
    except OSError as error:
        if not retry_io:
            raise
        raise dg.RetryRequested(max_retries=IO_RETRIES, seconds_to_wait=IO_RETRY_SECONDS) from error


def read_failure(event: dg.DagsterEvent) -> StepFailure:
    """Returns what ended a step, by the event of its failure."""
    failure = event.step_failure_data
    told = failure.user_failure_data
    if told is not None and told.description is not None:
        error, exit_code = (str(told.metadata[name].value) if name in told.metadata else "" for name in ("error", "exit_code"))
        return StepFailure(text=told.description, error=error, exit_code=exit_code)
    error = failure.error
    by_checks = error is not None and error.cls_name == FAILED_CHECKS
    while error is not None and error.cause is not None:
        error = error.cause
    text = event.message if error is None else error.message.strip()
    return StepFailure(text=f"{event.node_name.replace('__', '/')} failed: {text}", checks=by_checks)
