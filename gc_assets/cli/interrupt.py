"""Handle Ctrl-C and SIGTERM with defined exit codes.

Interrupts are raised between steps, and never while a process starts.
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
# Signals handled by this module.
_installed: list[int] = []
# Python writes every signal's number to this socket, even if a library has replaced the handler.
_numbers: list[socket.socket] = []


class CommandInterrupt(KeyboardInterrupt):
    """Raised for Ctrl-C or SIGTERM.

    After a plain `KeyboardInterrupt` inside `exec`, `python -m` ends by the signal even if the
    exception is caught (CPython 3.11, `run_eval_code_obj`). This can happen in imports, because
    dataclasses use `exec`.
    """


def install_handler() -> None:
    """Convert Ctrl-C and SIGTERM to `CommandInterrupt`, unless the parent process ignores them."""
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
    """Return True if this process received Ctrl-C or SIGTERM."""
    return bool(_list_signals())


def interrupt_code() -> int:
    """Return the exit code of an interrupted command, as in shells: 130, or 143 for SIGTERM."""
    return 128 + [signal.SIGINT, *_list_signals()][-1]


def _list_signals() -> list[int]:
    """Return the numbers of all signals received so far, including by Dagster's handlers."""
    with suppress(OSError, IndexError):
        return [number for number in _numbers[0].recv(4096, socket.MSG_PEEK) if number in _SIGNALS]
    return []


def exit_at_next_interrupt() -> None:
    """End the process at the next Ctrl-C, because the command has only to stop Spark."""
    _replace_handlers(dict.fromkeys(_SIGNALS, lambda number, _: os._exit(128 + number)))


def ignore_interrupts() -> None:
    """Ignore Ctrl-C until the process ends, because the command's work is done and recorded.

    The command has only to print the result and stop Spark. SIGTERM still ends the process. Without
    `install_handler` this has no effect, so that a program that calls the command keeps its own
    handlers.
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
    """Convert errors after Ctrl-C to `CommandInterrupt`, unless a command has already handled it.

    This is necessary because Spark's handler cancels its jobs, so that the interrupted thread may
    receive a job's error instead.
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
    """Delay Ctrl-C and SIGTERM until the end of the block.

    The block starts Spark, and an interrupted start would leave a Java process.
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
