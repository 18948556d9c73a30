"""Resident process that runs nessie-gc on the same lake: mark and sweep, with deferred deletions.

Its sources are public (projectnessie/nessie, `gc/gc-tool`), but its jar is not in any package
registry. The launcher is a program that forwards its arguments, such as `exec java -Xmx1g -jar
nessie-gc.jar "$@"`.
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

# Mark and sweep each start a JVM, which takes about this long and is not part of the comparison.
START_SECONDS: Final = 2.0
PHASES: Final = ("mark-live", "sweep")


class Peer:
    """One launcher. Each request runs both phases with a new store."""

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher
        self._meter = Meter(os.getpid())

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the usage without the two JVM starts. The number of files is None, because
        nessie-gc does not report it.

        Args:
            request: `uri` and `older_than` select the files.
        """
        with tempfile.TemporaryDirectory(prefix="nessie-gc-") as directory:
            store = ["--jdbc", "--jdbc-url", f"jdbc:h2:file:{directory}/gc"]
            live_set = Path(directory) / "live-set"
            self._launch("create-sql-schema", *store, "--jdbc-schema", "CREATE")
            with self._meter.measure() as usage:
                self._launch(
                    PHASES[0], *store, "--uri", request["uri"], "--default-cutoff", "NONE", "--write-live-set-id-to", str(live_set)
                )
                sweep = ["--read-live-set-id-from", str(live_set), "--defer-deletes", "--max-file-modification", request["older_than"]]
                self._launch(PHASES[1], *store, *sweep)
        usage.wall = max(0.0, usage.wall - START_SECONDS * len(PHASES))
        return {"total": asdict(usage), "cpu_since_start": self._meter.cpu_seconds(), "unreferenced": None}

    def _launch(self, *arguments: str) -> None:
        done = subprocess.run([self._launcher, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            output = (done.stdout + done.stderr).strip()[-2000:]
            raise RuntimeError(f"{self._launcher} {' '.join(arguments)} failed with exit code {done.returncode}: {output}")


def command(launcher: Path) -> Sequence[str]:
    """Return the command of the resident process."""
    return [sys.executable, "-m", "benchmarks.peer_nessie", str(launcher.resolve())]


if __name__ == "__main__":
    answer(Peer(sys.argv[1]).run)
