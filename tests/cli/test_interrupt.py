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
from pyspark.sql import SparkSession

from gc_assets.cli.context import open_session
from gc_assets.cli.interrupt import CommandInterrupt, defer_interrupts, install_handler, restore_interrupts
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import load_platform
from tests.cli.lakes import small_lake, write_config
from tests.depth import in_turn, select_cases

pytestmark = in_turn

# A command that is interrupted inside exec, as in the import of a dataclass.
BUSY = """
import atexit, os, signal, sys, time, types
import click
from gc_assets.cli import main
from gc_assets.cli.output import print_message

_, name, number, at_exit = sys.argv
if at_exit == "again":
    atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(60)))

def busy():
    print_message("begins")  # imports everything before the interrupt, because a later exec would hide the effect
    exec(f"import os, signal, time; os.kill(os.getpid(), {number}); time.sleep(60)")

sys.modules["gc_assets.cli.busy"] = types.SimpleNamespace(**{f"{name}_command": click.command(name)(busy)})
main.COMMANDS[name] = ("busy", "")
sys.argv[1:] = [name]
main.main()
"""
# A command with an object that aborts the process when Python destroys it, as threads of Arrow can.
ABORTS = """
import atexit, os, sys, types
import click, pyarrow
from gc_assets.cli import main

class Buffer:
    def __del__(self):
        os.abort()

def finish():
    sys.modules["buffer"] = Buffer()
    atexit.register(print, "at exit")
    print("output")
    sys.exit(3)

sys.modules["gc_assets.cli.finish"] = types.SimpleNamespace(explain_command=click.command("explain")(finish))
main.COMMANDS["explain"] = ("finish", "")
sys.argv[1:] = ["explain"]
main.main()
"""
DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
RECORDED = "All steps so far are complete and recorded. Run the same command again to continue."
UNCHANGED = "Nothing was changed in the lakes, the storages and the state."


@pytest.mark.parametrize(
    "name, number, at_exit, code, left",
    [
        ("run", signal.SIGINT, "", 130, RECORDED),
        ("scan", signal.SIGINT, "", 130, UNCHANGED),
        ("run", signal.SIGTERM, "", 143, RECORDED),
        ("scan", signal.SIGINT, "again", 130, UNCHANGED),
    ],
)
def test_interrupted_command_reports_remaining_state(name: str, number: int, at_exit: str, code: int, left: str, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    module = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "busy", name, str(int(number)), at_exit]
    done = subprocess.run(command, env=os.environ | module, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, f"begins\ngc-assets: interrupted. {left}\n")


def test_output_of_spark_is_not_printed_after_ctrl_c(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class CtrlC(Collector):
        def spark(self) -> SparkSession:
            os.write(2, b"WARN Utils: Your hostname resolves to a loopback address")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_session(CtrlC.of(load_platform({}, str(write_config(tmp_path, {"type": "sql", "uri": "sqlite:///catalog.db"})))))
    assert capfd.readouterr().err == ""


@pytest.mark.spark
@pytest.mark.parametrize(
    "has_line, seconds, number",
    select_cases(
        [
            pytest.param("sales/snapshot_history", 0.3, signal.SIGINT, id="while Spark is at work"),
            pytest.param("sales/snapshot_history", 0.3, signal.SIGTERM, id="SIGTERM to all its processes, as by timeout and systemd"),
        ],
        [pytest.param("run date", 2, signal.SIGINT, id="while Spark starts")],
    ),
)
def test_interrupted_run_prints_a_message_without_traceback(tmp_path: Path, has_line: str, seconds: float, number: int) -> None:
    """The output ends only when no process keeps it open, so no Java process remains."""
    lake = small_lake(tmp_path)
    command = [sys.executable, "-m", "gc_assets", "run", "--config", str(lake.lakes_yaml)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if has_line in line:
                time.sleep(seconds)
                os.killpg(process.pid, number)
                break
        _, output = process.communicate(timeout=180)
    assert process.returncode == 128 + number
    assert "gc-assets: interrupted. All steps so far are complete and recorded" in output
    assert not [word for word in ("Traceback", "py4j", "DagsterExecution", "WARN", "ERROR") if word in output]


def fail_after_ctrl_c(error: Exception) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise error from None


def test_spark_error_after_ctrl_c_is_treated_as_interrupt() -> None:
    """Spark cancels its jobs on Ctrl-C, and their error may arrive instead of the interrupt."""
    previous = {number: signal.signal(number, default) for number, default in DEFAULTS.items()}
    try:
        install_handler()
        with pytest.raises(CommandInterrupt), restore_interrupts():
            fail_after_ctrl_c(RuntimeError("the job was cancelled"))
        with pytest.raises(click.exceptions.Exit), restore_interrupts():  # its message is printed
            fail_after_ctrl_c(click.exceptions.Exit(1))
        with pytest.raises(RuntimeError, match="another"), restore_interrupts():  # without Ctrl-C in the block
            raise RuntimeError("another error")
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in previous.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("name, code, output", [("SIGINT", 3, "result\n"), ("SIGTERM", -signal.SIGTERM, "")])
def test_finished_command_is_interrupted_by_sigterm_but_not_by_ctrl_c(name: str, code: int, output: str) -> None:
    """After Ctrl-C the result is printed, and the exit code is that of the command."""
    program = (
        "import os, signal; from gc_assets.cli.interrupt import ignore_interrupts, install_handler; install_handler(); "
        f"ignore_interrupts(); os.kill(os.getpid(), signal.{name}); print('result'); raise SystemExit(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, output, "")


def test_ignored_interrupts_stay_ignored_while_spark_starts() -> None:
    """`nohup` and background jobs of scripts ignore Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_command_exits_before_python_destroys_objects() -> None:
    done = subprocess.run([sys.executable, "-c", ABORTS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "output\nat exit\n", "")
