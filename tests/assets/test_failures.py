"""Errors of stages as results of Dagster steps."""

import dagster as dg
import pytest

from gc_assets.assets import failures
from gc_assets.assets.failures import translate_errors
from gc_assets.core.errors import GateRefused, GcError, LakeUnreadable, UsageError


def attempts(raised: list[Exception], *, retry_io: bool = True) -> tuple[int, dg.ExecuteInProcessResult]:
    """Materialize an asset whose stage raises the given errors in order. Return the number of
    attempts and the result.
    """
    ran: list[int] = []

    @dg.asset
    def step() -> None:
        ran.append(1)
        with translate_errors(retry_io=retry_io):
            if len(ran) <= len(raised):
                raise raised[len(ran) - 1]

    result = dg.materialize([step], instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)
    return len(ran), result


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "IO_RETRY_SECONDS", 0)


@pytest.mark.parametrize("kind", [GateRefused, LakeUnreadable, UsageError])
def test_gc_assets_error_is_reported_without_retry(kind: type[GcError]) -> None:
    ran, result = attempts([kind("tag v1 cannot be read")])
    failure = result.failure_data_for_node("step").user_failure_data
    assert ran == 1
    assert failure.description == "tag v1 cannot be read"
    assert failure.metadata["error"].value == kind.__name__
    assert failure.metadata["exit_code"].value == str(kind.exit_code)


def test_io_error_succeeds_after_retry() -> None:
    ran, result = attempts([TimeoutError("the store did not answer"), ConnectionResetError("it hung up")])
    assert (ran, result.success) == (3, True)


def test_io_error_fails_after_last_retry() -> None:
    ran, result = attempts([TimeoutError("the store did not answer")] * 9)
    assert (ran, result.success) == (1 + failures.IO_RETRIES, False)


@pytest.mark.parametrize("kind", [PermissionError, FileNotFoundError])
def test_permanent_error_is_not_retried(kind: type[OSError]) -> None:
    assert attempts([kind("no")])[0] == 1


def test_error_during_interrupt_handling_is_reported_as_interrupt() -> None:
    """SIGTERM to all processes also ends Java, so that closing a session fails."""

    def close_after_interrupt() -> None:
        try:
            raise dg.DagsterExecutionInterruptedError
        finally:
            raise ConnectionRefusedError("no Java")

    with pytest.raises(dg.DagsterExecutionInterruptedError), translate_errors():
        close_after_interrupt()


def test_deletion_step_is_not_retried() -> None:
    assert attempts([TimeoutError("the store did not answer")], retry_io=False)[0] == 1


def test_programming_error_is_not_retried() -> None:
    assert attempts([KeyError("x")])[0] == 1
