"""Fork Spark's Python workers from a process with preloaded modules.

Otherwise each worker would spend a second on imports, as long as a small stage takes. Only
fork-safe modules are preloaded. DataFusion starts threads, so workers import it on demand.

Spark starts one daemon for each session of a Connect server and stops it only when the server ends
(SPARK-54055). A daemon without workers therefore ends itself. Spark starts another one when the
session needs it.
"""

import gc
import os
import select
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from time import monotonic
from types import SimpleNamespace
from typing import Final

from pyspark import daemon

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "gc_assets.stages.mark.commit_graph",
    "gc_assets.stages.delete.apply",
    "gc_assets.stages.sweep.orphan_files",
    "gc_assets.stages.mark.reachable_snapshots",
    "gc_assets.stores.listing",
    "gc_assets.stores.inventories.lister",
    "gc_assets.stores.inventories.readers",
)

# Spark ends idle workers after 60 to 70 seconds. Starting another daemon takes one or two seconds.
IDLE_SECONDS: Final = 60.0


class IdlePoll:
    """A `select.poll` that ends the process when it has had no requests and workers for a while.

    pyspark's daemon polls once per second. At that point it holds no accepted connection. A
    connection that arrives while the process ends is reset, and Spark then starts another daemon.
    """

    def __init__(self, idle_seconds: float, is_busy: Callable[[], bool] | None = None) -> None:
        self._poll = select.poll()
        self._idle_seconds = idle_seconds
        self._is_busy = is_busy or has_workers
        self._last_used = monotonic()

    def register(self, descriptor: int, events: int) -> None:
        self._poll.register(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Wait for requests, and end the process if it is idle."""
        found = self._poll.poll(milliseconds)
        if found or self._is_busy():
            self._last_used = monotonic()
        elif monotonic() - self._last_used >= self._idle_seconds:
            sys.exit(0)
        return found


def has_workers() -> bool:
    """Check if this process has running child processes.

    Exited children are reaped without blocking, because the daemon ignores SIGCHLD.
    """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def end_if_idle(idle_seconds: float = IDLE_SECONDS) -> None:
    """Make pyspark's daemon in this process end after `idle_seconds` without workers."""
    daemon.select = SimpleNamespace(**{**vars(select), "poll": partial(IdlePoll, idle_seconds)})  # pyright: ignore[reportPrivateImportUsage]


if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    from gc_assets.stores.store import SCHEMES  # fails here if this Python does not have one of our libraries

    for name in (name for kind in SCHEMES.values() for name in kind.preloaded):
        import_module(name)
    # Workers run Python's garbage collector after every task. Scanning the imported modules takes
    # 50 ms, so they are frozen.
    gc.freeze()
    end_if_idle()
    daemon.manager()
