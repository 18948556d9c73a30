"""How a stage's error ends a Dagster step: refusals and unreadable lakes at once and in their own words, I/O errors after retries."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import dagster as dg
from pyspark.errors import PySparkException

from gc_assets.core import errors
from gc_assets.core.errors import GcError

IO_RETRIES: Final = 3
IO_RETRY_SECONDS: Final = 30.0
# An executor's exception arrives as text: the worker's traceback, whose last line names the exception, then the JVM's.
_RAISED: Final = re.compile(r"gc_assets\.core\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\Z)", re.DOTALL)


@contextmanager
def plain_failures(*, retry_io: bool = True) -> Generator[None]:
    """Errors of the platform become `dg.Failure` without retries, with the error as cause; `OSError` asks for a retry if `retry_io`.

    Nothing else is retried: a refused gate or a truncated manifest is the same a minute later.
    """
    try:
        yield
    except GcError as error:
        raise _failure(error) from error
    except PySparkException as error:
        raised = raised_in_executor(str(error))
        if raised is None:
            raise
        raise _failure(raised) from raised
    except OSError as error:
        if not retry_io:
            raise
        raise dg.RetryRequested(max_retries=IO_RETRIES, seconds_to_wait=IO_RETRY_SECONDS) from error


def raised_in_executor(text: str) -> GcError | None:
    """The platform's own error that Spark reports in `text`; None where the exception is another's."""
    match = _RAISED.search(text)
    kind = getattr(errors, match[1], None) if match is not None else None
    if match is None or not (isinstance(kind, type) and issubclass(kind, GcError)):
        return None
    return kind(match[2].strip())


def _failure(error: GcError) -> dg.Failure:
    return dg.Failure(
        description=str(error), metadata={"error": type(error).__name__, "exit_code": str(error.exit_code)}, allow_retries=False
    )
