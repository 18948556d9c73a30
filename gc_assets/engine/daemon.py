"""A replacement for pyspark's daemon process, from which Spark forks its Python workers.

The daemon imports modules in advance. Otherwise, each worker would spend a second on imports, which
is as long as a small stage takes. Only modules that can be forked safely are preloaded. Workers
import DataFusion when they need it, for example, because it starts threads.

For a session of a Connect server, the daemon ends itself if it has had no workers for a while. The
server would not stop it before the server itself ends (SPARK-54055). If the session needs its
daemon again, Spark starts another one.
"""

import gc
import os
import select
import sys
from collections.abc import Callable, Mapping
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

# Spark ends idle workers after 60 to 70 seconds. Starting a new daemon takes a second or two.
IDLE_SECONDS: Final = 60.0


class IdlePoll:
    """A `select.poll` that ends the daemon if there were no requests and no workers for a while.

    This is safe because pyspark's daemon has no open connection while it polls. A connection that
    arrives while the daemon ends is reset, and Spark starts another daemon.
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
        """Wait for requests. If the process has been idle for too long, end it."""
        found = self._poll.poll(milliseconds)
        if found or self._is_busy():
            self._last_used = monotonic()
        elif monotonic() - self._last_used >= self._idle_seconds:
            sys.exit(0)
        return found


def has_workers() -> bool:
    """Check if this process has child processes.

    Children that have exited are reaped here, because the daemon ignores SIGCHLD.
    """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def is_kept_by_server(environment: Mapping[str, str]) -> bool:
    """Check whether a Connect server started this daemon, for one of its sessions.

    Other sessions stop their daemon when they end, so it should not end before. Another process may
    get its port, and then all tasks of the session fail with "Authentication failed".

    Args:
        environment: The daemon's environment, to which Spark adds the id of a Connect session.
    """
    return environment.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"


def end_if_idle(idle_seconds: float = IDLE_SECONDS) -> None:
    """Make pyspark's daemon end after `idle_seconds` without requests and workers."""
    daemon.select = SimpleNamespace(**{**vars(select), "poll": partial(IdlePoll, idle_seconds)})  # pyright: ignore[reportPrivateImportUsage]


if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    from gc_assets.stores.store import SCHEMES  # fails here, not in a worker, if a library is missing

    for name in (name for kind in SCHEMES.values() for name in kind.preloaded):
        import_module(name)
    # Workers run Python's garbage collector after every task. Frozen modules are not scanned, which
    # saves 50 ms each time.
    gc.freeze()
    if is_kept_by_server(os.environ):
        end_if_idle()
    daemon.manager()
