"""Server processes that always end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

STARTED_WITHIN_SECONDS = 240
# The leader of the process group. Its input ends with our process, even if we are killed. A
# parent-death signal would not suffice: it is sent when the starting thread ends.
KEEPER = "cat >/dev/null; kill -KILL 0"


@dataclass
class Daemons:
    """The processes of one server, in their own process group. `log` has one output file per
    program.
    """

    log: Path
    environment: Mapping[str, str]
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _staying: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log.mkdir(parents=True, exist_ok=True)
        self._keeper = subprocess.Popen(["sh", "-c", KEEPER], stdin=subprocess.PIPE, process_group=0)

    def run(self, *command: str) -> None:
        """Run a command to its end. Raises `RuntimeError` with its output if it fails or hangs."""
        step = self._start_process(command)
        with suppress(subprocess.TimeoutExpired):
            step.wait(STARTED_WITHIN_SECONDS)
        if step.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed, or still runs after {STARTED_WITHIN_SECONDS} s:\n{self._read_logs()}")

    def start(self, *command: str) -> None:
        """Start a process that keeps running."""
        self._staying.append(self._start_process(command))

    def wait(self, is_up: Callable[[], bool], failures: Mapping[str, str] | None = None) -> None:
        """Wait until the server is up. Raises `RuntimeError` if a process ends or the time is over.

        Args:
            is_up: Returns True if the server answers.
            failures: Programs that keep running after a failure, with the message of that failure.
        """
        deadline = time.monotonic() + STARTED_WITHIN_SECONDS
        up = False
        while not up:
            up = is_up()
            ended: list[object] = [process.args for process in self._staying if process.poll() is not None]
            ended += [program for program, message in (failures or {}).items() if message in self._read_log(program)]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"not up after {STARTED_WITHIN_SECONDS} s, or ended early: {ended}\n{self._read_logs()}")
            time.sleep(0 if up else 0.05)

    def pids(self) -> list[int]:
        """Return the processes that keep running, in the order of their start."""
        return [process.pid for process in self._staying]

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._keeper.pid, signal.SIGKILL)
        for process in [*self._processes, self._keeper]:
            process.wait(10)
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()

    def _start_process(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        env = {**os.environ, **self.environment}
        with (self.log / f"{Path(command[0]).name}.out").open("ab") as out:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=self._keeper.pid)
        self._processes.append(process)
        return process

    def _read_log(self, program: str) -> str:
        path = self.log / f"{program}.out"
        return path.read_text(errors="replace") if path.is_file() else ""

    def _read_logs(self) -> str:
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-1000:]}" for path in sorted(self.log.glob("*.out")))


@contextmanager
def daemons(log: Path, environment: Mapping[str, str]) -> Iterator[Daemons]:
    started = Daemons(log, environment)
    try:
        yield started
    finally:
        started.stop()
