"""Run work in processes and kill them: before a file operation, at a random time, or together with their JVM.

`python -m tests.process_kills FILE` runs and kills work repeatedly, see `kill_at_random`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from gc_assets.stores.local.safe_paths import Entry

CHECKOUT = Path(__file__).parents[1]
# Children are forked from a process that has imported their work, so that they start in milliseconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "tests.process_kills",
        "tests.lakes.icechunk.icechunk_lakes",
        "tests.stages.delete.row_execution",
        "tests.stores.builders",
        "tests.stores.azure_bench",
        "tests.stores.s3_bench",
        "tests.stores.gcs_bench",
    ]
)


def kill_before(step: int, names: Sequence[str], work: Callable[..., object], *arguments: Any) -> None:
    """Run the work, and kill the process before its `step`-th call of the functions `names` of `os` or of a local entry."""
    numbers = count(1)
    for name in names:
        owner = os if hasattr(os, name) else Entry
        setattr(owner, name, _count_and_kill(getattr(owner, name), numbers, step))
    work(*arguments)


def exit_code(target: Callable[..., object], *arguments: Any) -> int | None:
    """Run a function in a child process and return its exit code."""
    child = PROCESSES.Process(target=target, args=arguments)
    child.start()
    child.join(60)
    return child.exitcode


def _count_and_kill(real: Callable[..., Any], numbers: count[int], step: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    return call


@dataclass(frozen=True)
class KillRounds:
    """Work that is killed `kills` times, after `least` to `most` units, and a function that reads the state after each kill.

    A unit is a second, or the duration of `unit`. The functions must be picklable and have imported all modules.
    """

    work: Callable[[], object]
    look: Callable[[], object]
    kills: int
    least: float
    most: float
    unit: Callable[[], object] | None = None
    seed: int = 7


def kill_at_random(rounds: KillRounds, file: Path) -> list[dict[str, Any]]:
    """Return for each kill whether it interrupted the work (`killed`), and the state after it (`seen`, as JSON).

    The children are forked from a process without threads that has imported all modules, so that the kill interrupts the work itself.
    """
    file.write_bytes(pickle.dumps(rounds))
    command = [sys.executable, "-m", "tests.process_kills", str(file)]
    results = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(results.stdout)


def _fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def _seconds(work: Callable[[], object] | None) -> float:
    if work is None:
        return 1.0
    started = time.perf_counter()
    os.waitpid(_fork(work), 0)
    return time.perf_counter() - started


def _kill_after(work: Callable[[], object], after_seconds: float) -> bool:
    child = _fork(work)
    time.sleep(after_seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def kill_session(process: subprocess.Popen[str]) -> None:
    """Kill all processes in the session of a process, with its JVM and Python workers, until none is left."""
    while members := [pid for pid in _processes() if _session(pid) == process.pid]:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended with its parent
        process.poll()
        time.sleep(0.01)
    process.communicate()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _session(pid: int) -> int | None:
    """Return the session of a running process, or None if the process has ended."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)


def main(file: str) -> None:
    rounds: KillRounds = pickle.loads(Path(file).read_bytes())  # noqa: S301  (written by `kill_at_random`)
    rng, unit = random.Random(rounds.seed), min(_seconds(rounds.unit) for _ in range(3))
    results = []
    for _ in range(rounds.kills):
        in_time = _kill_after(rounds.work, unit * rng.uniform(rounds.least, rounds.most))
        state = rounds.look()
        if rounds.unit is not None and results and state == results[-1]["seen"]:
            unit *= 1.2  # the unit was measured under less load
        results.append({"killed": in_time, "seen": state})
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
