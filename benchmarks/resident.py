"""Measured programs as resident processes: JSON requests and answers, one per line.

Both sides of a comparison use this protocol, so both are measured from the start of the process to
the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent


class Resident:
    """A measured program in its own process. `log` receives its standard error."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._started = perf_counter()
        self._log = log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer, with the seconds since the start of the process
        (`since_start`).

        Raises:
            RuntimeError: If the program ended without an answer. The message ends with its log.
        """
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            output = self._log.read_text(errors="replace").strip()[-2000:]
            raise RuntimeError(f"{' '.join(self._process.args)} failed with exit code {code}: {output}")
        return {**json.loads(line), "since_start": perf_counter() - self._started}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


def answer(respond: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of standard input. Other output of the program goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(respond(json.loads(line))), file=replies, flush=True)
