"""Time the commands of the demo. Each one runs in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter
from typing import Any, Final

from benchmarks.resident import ROOT
from benchmarks.steps import steps_of
from gc_assets.demo.sample import ensure_demo

# Environment variables that would change the behaviour of a command.
_OWN_VARIABLES: Final = ("GC_ASSETS_", "DAGSTER_HOME")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A successful command: its wall seconds, its rows and the seconds of its steps.

    `cpu` are the CPU seconds of the process and of the children that it waited for. It waits for no
    JVM.
    """

    seconds: float
    cpu: float
    rows: list[dict[str, Any]]
    steps: dict[str, float]


class CommandLine:
    """Runs `gc-assets` with one configuration."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def call(self, *arguments: str) -> CommandResult:
        """Run a command with `--format json`.

        Raises:
            RuntimeError: If the command failed. The message ends with its standard error.
        """
        command = [sys.executable, "-m", "gc_assets", *arguments, "--format", "json", "--config", str(self._config), "-v"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        started, cpu = perf_counter(), _cpu_of_children()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self._config.parent, env={**environment, "PYTHONPATH": str(ROOT)}
        )
        seconds = perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"gc-assets {' '.join(arguments)} failed with exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
        return CommandResult(seconds, _cpu_of_children() - cpu, json.loads(done.stdout or "[]"), steps_of(done.stderr.splitlines()))


def _cpu_of_children() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, slots=True)
class DemoResults:
    """Results of the commands of one demo. Commands that were not requested are None."""

    plans: CommandResult
    apply: CommandResult | None
    restore: CommandResult | None


def run_demo(directory: Path, *, apply: bool, restore: bool) -> DemoResults:
    """Build the demo, make a plan, list the plans, and apply and restore if requested.

    Raises:
        RuntimeError: If an outcome of the apply is not `done`, or if the restore did not restore
            exactly one file.
    """
    command_line = CommandLine(ensure_demo(directory))
    command_line.call("run", "--mode", "plan")
    command_line.call("plans")  # compiles what the command imports, and fills the file system cache
    plans = command_line.call("plans", "--status", "ready")
    if not (apply or restore):
        return DemoResults(plans, None, None)
    plan = plans.rows[0]["plan_id"]
    command_line.call("approve", plan, "--by", "benchmark")
    applied = command_line.call("apply", plan)
    outcomes = {row["outcome"] for row in applied.rows}
    if outcomes != {"done"}:
        raise RuntimeError(f"apply of the demo's plan: expected every outcome to be done, found {applied.rows}")
    if not restore:
        return DemoResults(plans, applied, None)
    key = command_line.call("show", "deletion_log").rows[0]["key"]
    restored = command_line.call("restore", "--key", key)
    if [(row["outcome"], row["files"]) for row in restored.rows] != [("done", 1)]:
        raise RuntimeError(f"restore of {key}: expected one file to be done, found {restored.rows}")
    return DemoResults(plans, applied, restored)
