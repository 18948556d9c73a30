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

import click

_pressed: list[int] = []
# Signals whose handlers are those of this module.
_installed: list[int] = []


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
        _installed.append(signal.SIGINT)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C until the process ends, because the work of the command is done and recorded.

    The rest is to print the result, and to stop Spark. Has no effect without `install_handler`, so
    a program that calls the command keeps its own handler.
    """
    if _installed and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _raise(number: int, _: object) -> NoReturn:
    _pressed.append(number)
    raise CommandInterrupt


@contextmanager
def restore_interrupts() -> Generator[None]:
    """Raise `CommandInterrupt` for an error after Ctrl-C, unless a command has already handled it.

    Spark's handler cancels its jobs, so that the interrupted thread may receive the error of a job.
    """
    before = len(_pressed)
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception:
        if len(_pressed) > before:
            raise CommandInterrupt from None
        raise


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
        _pressed.append(number)
        try:
            if callable(spark_handler):
                spark_handler(number, frame)
        except KeyboardInterrupt:
            raise CommandInterrupt from None

    return handle
