"""CPU seconds and memory of a process and all its descendants, read from /proc (Linux).

Memory is PSS, so pages that forked workers share count once. Reading PSS stops the process for
about 30 ms per gigabyte, which would slow down the measured work. PSS is therefore read only if
RSS, which is cheap to read, has changed since the last reading.
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
# PSS is read again if RSS has changed by more than this ratio.
_RISE: Final = 1.02


@dataclass(slots=True)
class Usage:
    """Wall and CPU seconds of a block, and its highest sampled memory, in total and by program."""

    wall: float = 0.0
    cpu: float = 0.0
    peak_bytes: int = 0
    peak_driver_bytes: int = 0
    peak_jvm_bytes: int = 0
    peak_resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Memory:
    """PSS in bytes, in total and by program, at the time when RSS was `resident`."""

    resident: int
    total: int
    jvm: int
    driver: int

    def is_current(self, resident: int) -> bool:
        return self.resident / _RISE < resident < self.resident * _RISE


class Meter:
    """Measures a process and its descendants. A thread samples memory five times per second during
    a block.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._memory: _Memory | None = None
        self._lock = threading.Lock()

    @contextmanager
    def measure(self) -> Generator[Usage]:
        """Measure a block. The usage is complete when the block ends."""
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
            self.sample(usage)  # a block that is shorter than the sample interval also has a peak

    def cpu_seconds(self) -> float:
        """Return user and system time of all living processes, and of the dead ones that were
        waited for.
        """
        return sum(sum(int(value) for value in fields[11:15]) for _, fields in self._tree()) / _TICKS

    def count_processes(self) -> int:
        """Return the number of living processes, with the root."""
        return len(self._tree())

    def _watch(self, usage: Usage, stop: threading.Event) -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            self.sample(usage)

    def sample(self, usage: Usage) -> None:
        """Raise the peaks of `usage` to the current memory."""
        tree = self._tree()
        resident = sum(int(fields[21]) for _, fields in tree) * _PAGE
        if resident < usage.peak_resident_bytes * _RISE:
            return
        usage.peak_resident_bytes = resident
        with self._lock:
            if self._memory is None or not self._memory.is_current(resident):
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
        """Return pid and fields of /proc/<pid>/stat, from the state on, of the root and its living
        descendants.
        """
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  (creating a Path costs more than reading the file)
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
        return 0  # the process ended after it was listed
    return 0
