"""Ctrl-C ends a command with a sentence, between two steps that are on record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.lakes import small_lake

pytestmark = pytest.mark.spark


def test_ctrl_c_ends_a_night_with_a_sentence_and_no_trace(tmp_path: Path) -> None:
    lake = small_lake(tmp_path)
    command = [sys.executable, "-m", "gc_assets", "run", "--config", str(lake.lakes_yaml)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "sales/snapshot_history" in line:  # Spark is at work by now
                os.killpg(process.pid, signal.SIGINT)
                break
        said = process.stderr.read()
    assert process.returncode == 1
    assert "gc-assets: interrupted. What was done so far is whole and on record" in said
    assert not [word for word in ("Traceback", "py4j", "DagsterExecution") if word in said]
