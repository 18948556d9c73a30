"""What Ctrl-C does to a command: it ends as `KeyboardInterrupt` does, never in the middle of a
start, and with the command's own exit code.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. Where a plain `KeyboardInterrupt` leaves the text of an `exec`, `python -m` ends by the
    signal later on, though it was caught (CPython 3.11, `run_eval_code_obj`). Each dataclass
    executes such a text when it is made, so an interrupted import would lose the exit code.
    """


def install_handler() -> None:
    """Turns Ctrl-C into `Interrupted`. A process whose caller ignores Ctrl-C goes on ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)


def _raise(*_: object) -> NoReturn:
    raise Interrupted


@contextmanager
def defer_interrupts() -> Generator[None]:
    """Lets Ctrl-C wait for the end of the block, which opens a Spark session. A Java that is
    interrupted while it starts would stay behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        of_spark = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, before if of_spark is note else _wrap_handler(of_spark))
    if pressed:
        raise Interrupted


def _wrap_handler(of_spark: signal._HANDLER) -> signal._HANDLER:  # pyright: ignore[reportPrivateUsage]  (typeshed has no public name)
    """Returns a handler that stops Spark's jobs, as Spark's own does, and raises `Interrupted`."""

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            if callable(of_spark):
                of_spark(number, frame)
        except KeyboardInterrupt:
            raise Interrupted from None

    return handle
