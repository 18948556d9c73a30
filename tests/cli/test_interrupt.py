"""Ctrl-C ends a command with a sentence, between two steps that are on record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.lakes import small_lake
from tests.depth import some

# A command that is interrupted while it executes a text, as an import does for each dataclass.
BUSY = """
import signal, sys, types
import click
from gc_assets.cli import main
from gc_assets.cli.output import say

@click.command("busy")
def busy_command():
    say("begins")  # so that nothing is imported after the interrupt: a later text would hide what the first one left
    exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")

sys.modules["gc_assets.cli.busy"] = types.SimpleNamespace(busy_command=busy_command)
main.COMMANDS["busy"] = ("busy", "")
main.main()
"""


def test_ctrl_c_within_a_text_that_is_executed_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    there = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "busy", "busy"]
    done = subprocess.run(command, env=os.environ | there, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "gc-assets: interrupted." in done.stderr) == (1, True)


@pytest.mark.spark
@pytest.mark.parametrize(
    "line_said, seconds",
    some(
        [pytest.param("sales/snapshot_history", 0.3, id="while Spark is at work")], [pytest.param("run date", 2, id="while Spark starts")]
    ),
)
def test_ctrl_c_ends_a_night_with_a_sentence_and_no_trace(tmp_path: Path, line_said: str, seconds: float) -> None:
    """What is printed ends only when no process holds it open: no Java stays behind."""
    lake = small_lake(tmp_path)
    command = [sys.executable, "-m", "gc_assets", "run", "--config", str(lake.lakes_yaml)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line_said in line:
                time.sleep(seconds)
                os.killpg(process.pid, signal.SIGINT)
                break
        _, said = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "gc-assets: interrupted. What was done so far is whole and on record" in said
    assert not [word for word in ("Traceback", "py4j", "DagsterExecution") if word in said]
