"""Run calls with a timeout.

A system call that waits for a dead server cannot be interrupted from inside its process. It
therefore runs in a separate thread, and the caller stops waiting at the deadline. The thread
continues until the system call returns, and its result is dropped.
"""

from __future__ import annotations

import contextvars
import errno
import threading
from collections.abc import Callable
from typing import Final, TypeVar

_Answer = TypeVar("_Answer")
# This is enough to read 1 GiB, the largest object read in one request, at 4 MB/s.
READ_SECONDS: Final = 300.0
# Threads of exclusive calls that passed their deadline, by subject.
_HANGING: Final = dict[str, threading.Thread]()


def run_with_deadline(seconds: float, subject: str, call: Callable[[], _Answer], *, exclusive: bool = False) -> _Answer:
    """Return the result of `call`, or raise its error.

    Args:
        seconds: Maximum waiting time.
        subject: Name of the object or server for the error message.
        call: Function to run in a separate thread.
        exclusive: Start no call while an earlier one of the subject hangs. A process that repeats
            calls for days would otherwise collect threads.

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
