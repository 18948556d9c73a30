"""Icechunk 2.x for tests: a process that executes commands on repositories (see `writer.py`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.debian import Unavailable, skip_or_fail
from tests.lakes.icechunk.v2.environment import interpreter

VARIABLE = "GC_ASSETS_TEST_ICECHUNK"
WRITER = Path(__file__).with_name("writer.py")
Target = Path | dict[str, Any]
Step = tuple[str, dict[str, Any]]


class LibraryError(Exception):
    """The library refused a step. The message is its error."""


class Library:
    """Executes commands of `writer.py` in a process with icechunk 2.x.

    Targets are directories, or dictionaries with the arguments of `icechunk.s3_storage`.
    """

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=clean_environment()
        )

    def run(self, target: Target, steps: Sequence[Step]) -> list[Any]:
        """Execute steps in order, and return a result for each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"target": str(target) if isinstance(target, Path) else target, "steps": steps}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise LibraryError(f"the process of icechunk ended with {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise LibraryError(reply["error"])
        return reply["results"]

    def call(self, target: Target, operation: str, **arguments: Any) -> Any:
        """Execute one step and return its result."""
        return self.run(target, [(operation, arguments)])[0]

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that change what an interpreter imports."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@contextmanager
def running() -> Iterator[Library]:
    """Run the library for tests. Skip or fail the test if this machine has no icechunk 2.x."""
    if os.environ.get(VARIABLE) == "none":
        pytest.skip(f"{VARIABLE}=none: icechunk 2 is disabled")
    try:
        python = interpreter()
    except Unavailable as error:
        skip_or_fail(str(error), VARIABLE)
    library = Library(python)
    try:
        yield library
    finally:
        library.stop()
