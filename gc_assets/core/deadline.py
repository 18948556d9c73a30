"""Ends the wait for an answer that never comes.

No call of the system that waits for a dead server can be interrupted from within its process. So
the call is made in a thread of its own, and whoever asked stops waiting. The thread goes on until
the system lets go of it, and what it then brings is dropped.
"""

from __future__ import annotations

import contextvars
import errno
import threading
from collections.abc import Callable
from typing import Final, TypeVar

_Answer = TypeVar("_Answer")
# An object of 1 GiB, the largest that is read whole, at 4 MB/s.
READ_SECONDS: Final = 300.0


def within(seconds: float, what: str, ask: Callable[[], _Answer]) -> _Answer:
    """Returns what `ask` returns, or raises what it raises.

    Raises `TimeoutError`, an `OSError`, naming `what`, where neither has come after so many
    seconds.
    """
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # noqa: BLE001  (raised below, in the thread that asked)
            errors.append(error)

    # A daemon: a thread that never ends must not keep the process from ending.
    asking = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"asking for {what}", daemon=True)
    asking.start()
    asking.join(seconds)
    if errors:
        raise errors[0]
    if answers:
        return answers[0]
    raise TimeoutError(
        errno.ETIMEDOUT, f"no whole answer within {seconds:,.10g} s (`read_timeout`): the server, the network or the mount hangs", what
    )
