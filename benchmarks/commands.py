"""The demo's protocol by the command line, each command in a process of its own, timed from its start to its end."""

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

# What would change what a command does.
_OURS: Final = ("GC_ASSETS_", "DAGSTER_HOME")


@dataclass(frozen=True, slots=True)
class Called:
    """A command that ended well: its seconds, its rows, and the seconds of its steps.

    `cpu` are the CPU seconds of the process and of those that it waited for. It waits for no JVM.
    """

    seconds: float
    cpu: float
    rows: list[dict[str, Any]]
    steps: dict[str, float]


class CommandLine:
    """`gc-assets` on one configuration."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def call(self, *arguments: str) -> Called:
        """Calls a command with `--format json`. Raises `RuntimeError` with its words where it ends badly."""
        command = [sys.executable, "-m", "gc_assets", *arguments, "--format", "json", "--config", str(self._config), "-v"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        started, cpu = perf_counter(), _cpu_of_children()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self._config.parent, env={**environment, "PYTHONPATH": str(ROOT)}
        )
        seconds = perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"gc-assets {' '.join(arguments)} ended with code {done.returncode}: {done.stderr.strip()[-2000:]}")
        return Called(seconds, _cpu_of_children() - cpu, json.loads(done.stdout or "[]"), steps_of(done.stderr.splitlines()))


def _cpu_of_children() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, slots=True)
class Cold:
    """The commands of one demo. What nobody asked for is null."""

    plans: Called
    apply: Called | None
    restore: Called | None


def demo(directory: Path, *, apply: bool, restore: bool) -> Cold:
    """Builds the demo, plans its night, and lists, applies and restores, as far as asked for.

    Raises `RuntimeError` where not all of the plan was done, or not exactly one file came back.
    """
    command_line = CommandLine(ensure_demo(directory))
    command_line.call("run", "--mode", "plan")
    command_line.call("plans")  # what it imports is compiled, and its state has been looked at
    plans = command_line.call("plans", "--status", "ready")
    if not (apply or restore):
        return Cold(plans, None, None)
    plan = plans.rows[0]["plan_id"]
    command_line.call("approve", plan, "--by", "benchmark")
    applied = command_line.call("apply", plan)
    outcomes = {row["outcome"] for row in applied.rows}
    if outcomes != {"done"}:
        raise RuntimeError(f"apply of the demo's plan: expected every outcome to be done, found {applied.rows}")
    if not restore:
        return Cold(plans, applied, None)
    key = command_line.call("show", "deletion_log").rows[0]["key"]
    restored = command_line.call("restore", "--key", key)
    if [(row["outcome"], row["files"]) for row in restored.rows] != [("done", 1)]:
        raise RuntimeError(f"restore of {key}: expected one file to be done, found {restored.rows}")
    return Cold(plans, applied, restored)
