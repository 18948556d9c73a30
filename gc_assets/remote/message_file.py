"""Read the messages of a job from a file to which the job appends them.

Dagster's own readers of files fail if they read a line while it is being written (Dagster 1.13,
`tail_file`). A long line takes several writes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import dagster as dg
from dagster_pipes import PipesDefaultMessageWriter

_POLL_SECONDS: Final = 0.01
_BLOCK: Final = 1 << 20


class MessageFileReader(dg.PipesMessageReader):
    """Reads the messages of a job from a new file, without waiting for the end of the job."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def read_messages(self, handler: Any) -> Generator[dict[str, str]]:
        self._path.touch()
        closed = Event()
        thread = Thread(target=self._read, args=(handler, closed.is_set), daemon=True)
        thread.start()
        try:
            yield {PipesDefaultMessageWriter.FILE_PATH_KEY: str(self._path)}
        finally:
            closed.set()
            thread.join()

    def no_messages_debug_text(self) -> str:
        return f"Attempted to read messages from file {self._path}."

    def _read(self, handler: Any, is_closed: Callable[[], bool]) -> None:
        try:
            for line in read_lines(self._path, is_closed):
                handler.handle_message(json.loads(line))
        except Exception:  # noqa: BLE001 - reported in the log of the step, which then fails without its last report
            handler.report_pipes_framework_exception("the messages of the job", sys.exc_info())


def read_lines(path: Path, is_closed: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the complete lines of a growing file until nothing is appended any more.

    Args:
        is_closed: Returns True if no process writes to the file any more.
    """
    rest = b""
    with path.open("rb") as file:
        while True:
            is_last = is_closed()  # before the read, which then finds everything that was written
            block = file.read(_BLOCK)
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            if not block:
                if is_last:
                    return
                time.sleep(_POLL_SECONDS)
