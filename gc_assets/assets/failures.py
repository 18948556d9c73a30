"""Convert stage errors to Dagster step failures, and read the errors back from events.

Errors of gc-assets end a step immediately with their own message. Temporary I/O errors are retried.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Self

import dagster as dg

from gc_assets.assets.page_actions import to_page_message
from gc_assets.config.models import Config
from gc_assets.config.values import Model
from gc_assets.core.errors import GcError

IO_RETRIES: Final = 3
IO_RETRY_SECONDS: Final = 10.0
# Dagster's error for a step with failed blocking checks.
FAILED_CHECKS: Final = "DagsterAssetCheckFailedError"
# These errors are not retried, because a retry would only delay their message.
PERMANENT_ERRORS: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


class StepFailure(Model):
    """Error that ended a step.

    Attributes:
        text: The message.
        error: The class name of the error, if gc-assets raised it.
        exit_code: The exit code of the command line for this error.
        checks: True if failed checks ended the step. They are reported separately.
    """

    text: str
    error: str = ""
    exit_code: str = "1"
    checks: bool = False

    @classmethod
    def from_error(cls, error: GcError) -> Self:
        return cls(text=str(error), error=type(error).__name__, exit_code=str(error.exit_code))


@contextmanager
def translate_errors(*, retry_io: bool = True, page: Config | None = None) -> Generator[None]:
    """Raise errors of gc-assets as `dg.Failure` without retries, and I/O errors as retry requests.

    A `RetryPolicy` is unsuitable because it would also retry refused gates and damaged files.

    Args:
        retry_io: True if an `OSError` requests a retry.
        page: The configuration, if a user launched the step on Dagster's page. Messages then
            suggest jobs instead of commands.
    """
    try:
        with _raise_interrupts():
            yield
    except GcError as error:
        metadata = {"error": type(error).__name__, "exit_code": str(error.exit_code)}
        message = str(error) if page is None else to_page_message(str(error), page)
        raise dg.Failure(message, metadata=metadata, allow_retries=False) from error
    except PERMANENT_ERRORS:
        raise
    except OSError as error:
        if not retry_io:
            raise
        raise dg.RetryRequested(max_retries=IO_RETRIES, seconds_to_wait=IO_RETRY_SECONDS) from error


@contextmanager
def _raise_interrupts() -> Generator[None]:
    """Raise the interrupt instead of an error that followed it.

    SIGTERM to all processes of a run also ends Java, so that closing a session fails.
    """
    try:
        yield
    except Exception as error:
        current: BaseException | None = error
        while (current := current.__context__) is not None:
            if isinstance(current, KeyboardInterrupt | dg.DagsterExecutionInterruptedError):
                raise current from None
        raise


def read_failure(event: dg.DagsterEvent) -> StepFailure:
    """Return the error that ended a step, from its failure event."""
    failure = event.step_failure_data
    data = failure.user_failure_data
    if data is not None and data.description is not None:
        error, exit_code = (str(data.metadata[name].value) if name in data.metadata else "" for name in ("error", "exit_code"))
        return StepFailure(text=data.description, error=error, exit_code=exit_code)
    error = failure.error
    by_checks = error is not None and error.cls_name == FAILED_CHECKS
    while error is not None and error.cause is not None:
        error = error.cause
    text = event.message if error is None else error.message.strip()
    return StepFailure(text=f"{event.node_name.replace('__', '/')} failed: {text}", checks=by_checks)
