"""CPU seconds and memory of a process and all its descendants, read from /proc (Linux).

Memory is PSS, so pages that forked workers share count once. Reading it stops the process for some 30 ms a gigabyte, which
would slow down what is measured: it is read only where RSS, which costs little, has changed since it was last read, whatever stretches
of work were measured meanwhile. Knows nothing of what the processes do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS: Final = 0.2
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# The change of RSS that is worth a look at PSS.
_RISE: Final = 1.02


@dataclass(slots=True)
class Usage:
    """What a stretch of work took: wall and CPU seconds; the highest sampled memory, all together and by program."""

    wall: float = 0.0
    cpu: float = 0.0
    peak_bytes: int = 0
    peak_driver_bytes: int = 0
    peak_jvm_bytes: int = 0
    peak_resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Memory:
    """PSS in bytes, all together and by program, while RSS was `resident`."""

    resident: int
    total: int
    jvm: int
    driver: int

    def still_holds(self, resident: int) -> bool:
        return self.resident / _RISE < resident < self.resident * _RISE


class Meter:
    """Watches the tree below a process. A thread samples memory five times a second while something is measured."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._memory: _Memory | None = None
        self._turn = threading.Lock()

    @contextmanager
    def measure(self) -> Generator[Usage]:
        """The usage is complete when the block ends."""
        usage, stop = Usage(), threading.Event()
        watcher = threading.Thread(target=self._watch, args=(usage, stop), daemon=True)
        started, cpu = perf_counter(), self.cpu_seconds()
        watcher.start()
        try:
            yield usage
        finally:
            usage.wall = perf_counter() - started
            usage.cpu = self.cpu_seconds() - cpu
            stop.set()
            watcher.join()
            self.sample(usage)  # what ended before the first sample has a figure too

    def cpu_seconds(self) -> float:
        """User and system time of every living process of the tree, and of the dead that one of them has waited for."""
        return sum(sum(int(value) for value in fields[11:15]) for _, fields in self._tree()) / _TICKS

    def _watch(self, usage: Usage, stop: threading.Event) -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            self.sample(usage)

    def sample(self, usage: Usage) -> None:
        """Raises the peaks of `usage` to what is used now."""
        tree = self._tree()
        resident = sum(int(fields[21]) for _, fields in tree) * _PAGE
        if resident < usage.peak_resident_bytes * _RISE:
            return
        usage.peak_resident_bytes = resident
        with self._turn:
            if self._memory is None or not self._memory.still_holds(resident):
                self._memory = self._read(tree, resident)
            memory = self._memory
        usage.peak_bytes = max(usage.peak_bytes, memory.total)
        usage.peak_jvm_bytes = max(usage.peak_jvm_bytes, memory.jvm)
        usage.peak_driver_bytes = max(usage.peak_driver_bytes, memory.driver)

    def _read(self, tree: list[tuple[int, list[str]]], resident: int) -> _Memory:
        used = {pid: _pss_bytes(pid) for pid, _ in tree}
        jvm = sum(size for pid, size in used.items() if pid != self._root and _is_java(pid))
        return _Memory(resident, sum(used.values()), jvm, used.get(self._root, 0))

    def _tree(self) -> list[tuple[int, list[str]]]:
        """(pid, fields of /proc/<pid>/stat from the state on) of the root and its living descendants."""
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  (a path for each costs more than reading it)
        stats = {int(name): stat for name in names if (stat := _stat(name)) is not None}
        children: dict[int, list[int]] = {}
        for pid, fields in stats.items():
            children.setdefault(int(fields[1]), []).append(pid)
        found, pending = [], [self._root]
        while pending:
            pid = pending.pop()
            if pid in stats:
                found.append((pid, stats[pid]))
            pending += children.get(pid, [])
        return found


def _stat(pid: str) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:  # noqa: PTH123  (as above)
            text = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(b")")[2].decode().split()


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended between listing and reading
    return 0
