"""Signal handling of the command line.

Ctrl-C and SIGTERM become an exception with a defined exit code. While Spark starts, they are
delayed so that no Java process is left behind.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

import click

_SIGNALS: Final[dict[int, object]] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_Handler = Callable[[int, FrameType | None], object] | signal.Handlers
# The signals that `install_handler` handles.
_installed: list[int] = []
# A socket pair. Python writes the number of every signal to it, even if a library has replaced our
# handler.
_numbers: list[socket.socket] = []


class CommandInterrupt(KeyboardInterrupt):
    """Raised in the main thread for Ctrl-C or SIGTERM.

    A subclass is needed because of CPython's `run_eval_code_obj` (3.11). If a plain
    `KeyboardInterrupt` is raised inside `exec`, `python -m` ends by the signal even though the
    exception is caught. Imports can trigger this, since dataclasses use `exec`.
    """


def install_handler() -> None:
    """Raise `CommandInterrupt` on Ctrl-C and SIGTERM, unless the parent process ignores them."""
    for number, default in _SIGNALS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _raise)
            _installed.append(number)
    if _installed and not _numbers:
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
            _numbers.append(end)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)


def was_interrupted() -> bool:
    """Check if this process has received Ctrl-C or SIGTERM."""
    return bool(_list_signals())


def interrupt_code() -> int:
    """Return the conventional exit code of shells: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + [signal.SIGINT, *_list_signals()][-1]


def _list_signals() -> list[int]:
    """Return all signals received so far, including those that Dagster's handlers caught."""
    with suppress(OSError, IndexError):
        return [number for number in _numbers[0].recv(4096, socket.MSG_PEEK) if number in _SIGNALS]
    return []


def exit_at_next_interrupt() -> None:
    """Exit immediately on the next Ctrl-C, since only Spark still has to be stopped."""
    _replace_handlers(dict.fromkeys(_SIGNALS, lambda number, _: os._exit(128 + number)))


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on, because the work of the command is done and recorded.

    All that remains is to print the result and to stop Spark. SIGTERM still ends the process. If
    `install_handler` was not called, nothing changes, so a program that calls the command keeps
    its own handlers.
    """
    _replace_handlers({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL})


def _replace_handlers(handlers: Mapping[int, _Handler]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in _installed:
            signal.signal(number, handlers[number])


def _raise(_: int, __: object) -> NoReturn:
    raise CommandInterrupt


@contextmanager
def restore_interrupts() -> Generator[None]:
    """Convert errors in the block to `CommandInterrupt` if they follow Ctrl-C.

    On Ctrl-C, Spark's own signal handler cancels the running jobs. The interrupted thread may then
    get the error of a cancelled job instead of the interrupt.
    """
    before = len(_list_signals())
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception:
        if len(_list_signals()) > before:
            raise CommandInterrupt from None
        raise


@contextmanager
def defer_interrupts() -> Generator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends.

    Use this for starting Spark, because an interrupted start would leave a Java process behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        pressed.append(number)

    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            spark_handler = signal.getsignal(number)
            signal.signal(number, handler if spark_handler is note else _wrap_handler(spark_handler))
    if pressed:
        raise CommandInterrupt


def _wrap_handler(spark_handler: signal._HANDLER) -> signal._HANDLER:  # pyright: ignore[reportPrivateUsage]  (typeshed has no public name)
    """Wrap Spark's signal handler, which cancels all jobs, so that it raises `CommandInterrupt`."""

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            if callable(spark_handler):
                spark_handler(number, frame)
        except KeyboardInterrupt:
            raise CommandInterrupt from None

    return handle
