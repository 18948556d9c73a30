"""Stop waiting for a call that does not return.

A system call that waits for a dead server cannot be interrupted from inside its process. The call
therefore runs in a separate thread, and the caller stops waiting. The thread continues until the
system call returns, and its result is dropped.
"""

from __future__ import annotations

import contextvars
import errno
import threading
from collections.abc import Callable
from typing import Final, TypeVar

_Answer = TypeVar("_Answer")
# The time to read an object of 1 GiB, the largest that is read in one request, at 4 MB/s.
READ_SECONDS: Final = 300.0


def run_with_deadline(seconds: float, subject: str, call: Callable[[], _Answer]) -> _Answer:
    """Return the result of `call`, or raise its error.

    Args:
        seconds: Maximum time to wait.
        subject: Name of the object or server, for the message.
        call: Runs in a thread of its own.

    Raises:
        TimeoutError: If the call has not returned in time. It is an `OSError`.
    """
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001  (raised below, in the calling thread)
            errors.append(error)

    # A daemon thread does not keep the process from exiting.
    worker = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"waiting for {subject}", daemon=True)
    worker.start()
    worker.join(seconds)
    if errors:
        raise errors[0]
    if answers:
        return answers[0]
    raise TimeoutError(
        errno.ETIMEDOUT, f"no complete answer in {seconds:,.10g} s (`read_timeout`): the server, the network or the mount hangs", subject
    )
