"""nessie-gc on the same lake, by a launcher that somebody has: mark and sweep with its deletions deferred. Runs as a resident process.

Its sources are public (projectnessie/nessie, `gc/gc-tool`) and its jar is on no registry. The launcher is a program that passes its
arguments on, such as a script `exec java -Xmx1g -jar nessie-gc.jar "$@"`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.meter import Meter
from benchmarks.resident import answer

# Mark and sweep are a process each; about as long takes its JVM to start (research of its runs), which is no part of the comparison.
START_SECONDS: Final = 2.0
PHASES: Final = ("mark-live", "sweep")


class Peer:
    """One launcher; every request is both phases over a store of their own."""

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher
        self._meter = Meter(os.getpid())

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """`uri` and `older_than` say what to look at. The seconds of the two starts are taken off `total`; how many files it found is
        in no machine's words, so null.
        """
        with tempfile.TemporaryDirectory(prefix="nessie-gc-") as directory:
            store = ["--jdbc", "--jdbc-url", f"jdbc:h2:file:{directory}/gc"]
            live_set = Path(directory) / "live-set"
            self._launch("create-sql-schema", *store, "--jdbc-schema", "CREATE")
            with self._meter.measure() as whole:
                self._launch(
                    PHASES[0], *store, "--uri", request["uri"], "--default-cutoff", "NONE", "--write-live-set-id-to", str(live_set)
                )
                sweep = ["--read-live-set-id-from", str(live_set), "--defer-deletes", "--max-file-modification", request["older_than"]]
                self._launch(PHASES[1], *store, *sweep)
        whole.wall = max(0.0, whole.wall - START_SECONDS * len(PHASES))
        return {"total": asdict(whole), "cpu_since_start": self._meter.cpu_seconds(), "unreferenced": None}

    def _launch(self, *arguments: str) -> None:
        done = subprocess.run([self._launcher, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-2000:]
            raise RuntimeError(f"{self._launcher} {' '.join(arguments)} ended with code {done.returncode}: {said}")


def command(launcher: Path) -> Sequence[str]:
    """Of the resident process."""
    return [sys.executable, "-m", "benchmarks.peer_nessie", str(launcher.resolve())]


if __name__ == "__main__":
    answer(Peer(sys.argv[1]).run)
