"""Convert errors of stages to step failures in Dagster, and read them back from events.

An error of gc-assets lets the step fail immediately, with the error's message. Dagster retries a
step only after temporary I/O errors.
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
# Dagster raises this error if a blocking check fails.
FAILED_CHECKS: Final = "DagsterAssetCheckFailedError"
# Retrying after one of these errors would only delay its message.
PERMANENT_ERRORS: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


class StepFailure(Model):
    """The error that made a step fail.

    Attributes:
        text: The error message.
        error: The class name of the error, if gc-assets defines this class.
        exit_code: The exit code of the command line after this error.
        checks: True if the step failed because of its checks, which are reported separately.
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
    """Translate errors in the block to Dagster's exceptions.

    An error of gc-assets becomes a `dg.Failure` without retries, and a temporary I/O error becomes
    a retry request. A `RetryPolicy` could not make this distinction: it would also retry refused
    gates and damaged files.

    Args:
        retry_io: Whether to retry after an `OSError`.
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
    """If an error was caused by an interrupt, raise the interrupt instead.

    For example, a SIGTERM to all processes of a run also ends Spark's Java process. Closing the
    Spark session then fails, and this error would hide the interrupt.
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
    """Extract the error from the event of a failed step."""
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
