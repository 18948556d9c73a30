"""No process outlives a command."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.lakes import small_lake
from tests.depth import full_suite_only

# Java ends when the pipe to its parent closes.
SECONDS = 10.0


def live_processes(session: int) -> list[str]:
    """Return the names of the processes of a session that have not ended."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process ended
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            state, _, _, of_session, *_ = rest.split()
            if int(of_session) == session and state not in "ZX":
                found.append(name)
    return found


@pytest.mark.spark
@full_suite_only
@pytest.mark.parametrize("command", ["doctor", "run", "scan"])
def test_command_leaves_no_process_running(command: str, tmp_path: Path) -> None:
    lake = small_lake(tmp_path)
    arguments = [str(lake.root / "warehouse")] if command == "scan" else ["--config", str(lake.lakes_yaml)]
    program = [sys.executable, "-m", "gc_assets", command, *arguments]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    ) as process:
        _, messages = process.communicate(timeout=300)
    assert process.returncode == 0, messages
    end = time.monotonic() + SECONDS
    while (left := live_processes(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
