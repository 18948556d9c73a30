"""Run function calls with a timeout.

A process cannot interrupt its own system call that waits for an unresponsive server. The function
therefore runs in a separate thread, and the caller stops waiting at the deadline. The thread keeps
running until the system call returns, and the result is discarded.
"""

from __future__ import annotations

import contextvars
import errno
import threading
from collections.abc import Callable
from typing import Final, TypeVar

_Answer = TypeVar("_Answer")
# At 4 MB/s, this is enough for 1 GiB, which is the most that is read in one request.
READ_SECONDS: Final = 300.0
# Threads of exclusive calls that were still running at their deadline, by subject.
_HANGING: Final = dict[str, threading.Thread]()


def run_with_deadline(seconds: float, subject: str, call: Callable[[], _Answer], *, exclusive: bool = False) -> _Answer:
    """Run `call` in a separate thread and return its result or raise its error.

    Args:
        seconds: How long to wait for the result.
        subject: Name of the object or server, for the error message.
        call: The function to run.
        exclusive: If True, do not start a call while an earlier one with the same subject is still
            running, because a process that retries for days would accumulate threads.

    Raises:
        TimeoutError: If the call does not return in time. Note that this is an `OSError`.
    """
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001  (raised below, in the calling thread)
            errors.append(error)

    if exclusive and (earlier := _HANGING.get(subject)) is not None and earlier.is_alive():
        raise TimeoutError(errno.ETIMEDOUT, "an earlier call still waits: the server, the network or the mount hangs", subject)
    # Daemon threads do not block process exit.
    worker = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"waiting for {subject}", daemon=True)
    worker.start()
    worker.join(seconds)
    if errors:
        raise errors[0]
    if answers:
        return answers[0]
    if exclusive:
        _HANGING[subject] = worker
    raise TimeoutError(
        errno.ETIMEDOUT, f"no complete answer in {seconds:,.10g} s (`read_timeout`): the server, the network or the mount hangs", subject
    )
