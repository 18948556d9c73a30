"""Ctrl-C during commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from gc_assets.cli.interrupt import CommandInterrupt, install_handler, restore_interrupts
from tests.cli.lakes import small_lake
from tests.depth import select_cases

# A command that is interrupted inside exec, as in the import of a dataclass.
BUSY = """
import signal, sys, types
import click
from gc_assets.cli import main
from gc_assets.cli.output import print_message

@click.command("busy")
def busy_command():
    print_message("begins")  # imports everything before the interrupt, because a later exec would hide the effect
    exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")

sys.modules["gc_assets.cli.busy"] = types.SimpleNamespace(busy_command=busy_command)
main.COMMANDS["busy"] = ("busy", "")
main.main()
"""


def test_interrupt_inside_exec_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    module = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "busy", "busy"]
    done = subprocess.run(command, env=os.environ | module, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "gc-assets: interrupted." in done.stderr) == (1, True)


@pytest.mark.spark
@pytest.mark.parametrize(
    "has_line, seconds",
    select_cases(
        [pytest.param("sales/snapshot_history", 0.3, id="while Spark is at work")], [pytest.param("run date", 2, id="while Spark starts")]
    ),
)
def test_interrupted_run_prints_a_message_without_traceback(tmp_path: Path, has_line: str, seconds: float) -> None:
    """The output ends only when no process keeps it open, so no Java process remains."""
    lake = small_lake(tmp_path)
    command = [sys.executable, "-m", "gc_assets", "run", "--config", str(lake.lakes_yaml)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if has_line in line:
                time.sleep(seconds)
                os.killpg(process.pid, signal.SIGINT)
                break
        _, output = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "gc-assets: interrupted. All steps so far are complete and recorded" in output
    assert not [word for word in ("Traceback", "py4j", "DagsterExecution") if word in output]


def fail_after_ctrl_c(error: Exception) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise error from None


def test_error_of_a_job_after_ctrl_c_is_an_interruption() -> None:
    """Spark cancels its jobs on Ctrl-C, and their error may arrive instead of the interrupt."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        install_handler()
        with pytest.raises(CommandInterrupt), restore_interrupts():
            fail_after_ctrl_c(RuntimeError("the job was cancelled"))
        with pytest.raises(click.exceptions.Exit), restore_interrupts():  # its message is printed
            fail_after_ctrl_c(click.exceptions.Exit(1))
        with pytest.raises(RuntimeError, match="another"), restore_interrupts():  # without Ctrl-C in the block
            raise RuntimeError("another error")
    finally:
        signal.signal(signal.SIGINT, previous)


def test_interrupt_after_the_work_changes_nothing() -> None:
    """The result is printed, and the exit code is that of the command."""
    program = (
        "import os, signal; from gc_assets.cli.interrupt import ignore_interrupts, install_handler; install_handler(); "
        "ignore_interrupts(); os.kill(os.getpid(), signal.SIGINT); print('result'); raise SystemExit(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "result\n", "")
