"""A process that answers requests, one JSON document a line; what it answers with is the measured program's business.

Both sides of a comparison run behind this one protocol, so that both are measured from process start to answer.
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
    """A measured program in a process of its own. `log` takes what it says besides its answers."""

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
        """The program's answer. `since_start` is the wall time in seconds from the start of the process to this answer.

        Raises `RuntimeError` with the program's last words where it ends instead.
        """
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            said = self._log.read_text(errors="replace").strip()[-2000:]
            raise RuntimeError(f"{' '.join(self._process.args)} ended with code {code}: {said}")
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
    """Answers every line of standard input. What the program itself prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(respond(json.loads(line))), file=replies, flush=True)
