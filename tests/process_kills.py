"""Work in processes that are killed for real: before a step on the disk, at a random moment, or with a whole JVM below them.

`python -m tests.process_kills FILE` kills one piece of work again and again, see `kill_at_random`.
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

CHECKOUT = Path(__file__).parents[1]
# Children are forked from a process that has imported their work, so that a start takes milliseconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "tests.process_kills",
        "tests.lakes.icechunk.support",
        "tests.stages.delete.row_execution",
        "tests.stores.builders",
        "tests.stores.s3_bench",
    ]
)


def kill_before(step: int, names: Sequence[str], work: Callable[..., object], *arguments: Any) -> None:
    """Does the work, and dies before its `step`-th call of the functions `names` of `os`. Exits with 0 where it has fewer."""
    numbers = count(1)
    for name in names:
        setattr(os, name, _count_and_kill(getattr(os, name), numbers, step))
    work(*arguments)


def exit_code(target: Callable[..., object], *arguments: Any) -> int | None:
    """How a child ended that did this."""
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
    """Work that is begun and killed `kills` times, after `least` to `most` units, and what is looked at after each kill.

    A unit is a second, or how long `unit` takes: a kill before that comes too early. All pickle, and have imported what they need.
    """

    work: Callable[[], object]
    look: Callable[[], object]
    kills: int
    least: float
    most: float
    unit: Callable[[], object] | None = None
    seed: int = 7


def kill_at_random(rounds: KillRounds, file: Path) -> list[dict[str, Any]]:
    """For each kill, whether it came before the work was through (`killed`), and what was there then (`seen`, as JSON).

    The children are forked from a process without threads that has everything imported: the moment falls into the work.
    """
    file.write_bytes(pickle.dumps(rounds))
    command = [sys.executable, "-m", "tests.process_kills", str(file)]
    told = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(told.stdout)


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
    begun = time.perf_counter()
    os.waitpid(_fork(work), 0)
    return time.perf_counter() - begun


def _kill_after(work: Callable[[], object], after_seconds: float) -> bool:
    child = _fork(work)
    time.sleep(after_seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def kill_session(process: subprocess.Popen[str]) -> None:
    """SIGKILL to everything in the process's session at once, its JVM and Python workers too, until nothing of it is left."""
    while members := [pid for pid in _processes() if _session(pid) == process.pid]:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it went with its parent
        process.poll()
        time.sleep(0.01)
    process.communicate()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _session(pid: int) -> int | None:
    """The session of a running process; null for one that is gone or waits for its parent to take notice."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)


def main(file: str) -> None:
    rounds: KillRounds = pickle.loads(Path(file).read_bytes())  # noqa: S301  (written by `kill_at_random`)
    luck, unit = random.Random(rounds.seed), min(_seconds(rounds.unit) for _ in range(3))
    told = []
    for _ in range(rounds.kills):
        in_time = _kill_after(rounds.work, unit * luck.uniform(rounds.least, rounds.most))
        seen = rounds.look()
        if rounds.unit is not None and told and seen == told[-1]["seen"]:
            unit *= 1.2  # nothing was done by then: it was measured in a quieter moment
        told.append({"killed": in_time, "seen": seen})
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
