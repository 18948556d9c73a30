"""Handle Ctrl-C: raise an interrupt between steps, never while a process starts, with a defined
exit code.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class CommandInterrupt(KeyboardInterrupt):
    """Ctrl-C.

    After a plain `KeyboardInterrupt` inside `exec`, `python -m` ends by the signal even if the
    exception is caught (CPython 3.11, `run_eval_code_obj`). Dataclasses use `exec`, so an import
    can be affected.
    """


def install_handler() -> None:
    """Turn Ctrl-C into `CommandInterrupt`, unless the parent process ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)


def _raise(*_: object) -> NoReturn:
    raise CommandInterrupt


@contextmanager
def defer_interrupts() -> Generator[None]:
    """Delay Ctrl-C until the end of the block, which starts Spark. An interrupted start would leave
    a Java process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        pressed.append(number)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        spark_handler = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, previous if spark_handler is note else _wrap_handler(spark_handler))
    if pressed:
        raise CommandInterrupt


def _wrap_handler(spark_handler: signal._HANDLER) -> signal._HANDLER:  # pyright: ignore[reportPrivateUsage]  (typeshed has no public name)
    """Return a handler that calls Spark's handler, which cancels its jobs, and raises
    `CommandInterrupt`.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            if callable(spark_handler):
                spark_handler(number, frame)
        except KeyboardInterrupt:
            raise CommandInterrupt from None

    return handle
