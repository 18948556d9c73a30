"""A run is killed before every step on the disk. The next run completes it and loses nothing."""

from __future__ import annotations

import signal
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.stores.execution import require_balance
from gc_assets.stores.local.quarantine import open_quarantine
from gc_assets.stores.protocol import LEASE_DURATION
from tests.depth import in_turn
from tests.process_kills import PROCESSES, exit_code, kill_before
from tests.stores.builders import CLOCK, NOW, PLAN, apply, apply_concurrently, contents, memory_directory, plan, trash, write

pytestmark = in_turn

KEYS = ("t/a", "t/deep/b", "u/c")
LATER = Clock(NOW + LEASE_DURATION)
# With fewer steps, some would not be counted.
FEWEST_STEPS = 20


STEPS = ("mkdir", "rename", "link", "unlink", "replace", "fsync")


def build_storage(base: Path, mode, action):
    """Create three planned files and two live ones. For purge and restore the former are in
    quarantine.

    Returns root, rows, and the contents before the plan.
    """
    root = base / "storage"
    for key in (*KEYS, "t/live", "live"):
        write(root, key, key.encode())
    initial = contents(root)
    rows = [plan(root, key, action) for key in KEYS]
    if action != "quarantine":
        results = open_quarantine(mode, str(root), PLAN).act([plan(root, key) for key in KEYS])
        assert [result.verdict for result in results] == ["done"] * 3
    return root, rows, initial


def existing_paths(root: Path, key: str) -> list[Path]:
    return [path for path in (root / key, trash(root, key)) if path.exists()]


@pytest.mark.parametrize("mode", ["trash", "deferred"])
@pytest.mark.parametrize("action", ["quarantine", "purge", "restore"])
def test_next_run_completes_a_run_killed_at_any_step(mode, action):
    for step in count(1):
        with memory_directory() as base:
            if not kill_and_complete(base, step, mode, action):
                break
    assert step > FEWEST_STEPS


def kill_and_complete(base, step, mode, action) -> bool:
    """Return False if the run ended before that step."""
    root, rows, initial = build_storage(base, mode, action)
    code = exit_code(kill_before, step, STEPS, apply, root, base / "state", rows, mode, CLOCK)
    assert code in {0, -signal.SIGKILL}
    for key in KEYS:
        found = existing_paths(root, key)
        assert {path.read_bytes() for path in found} <= {key.encode()}
        assert found or action == "purge", f"{key} is lost after a kill before step {step}"
    outcomes = apply(root, base / "state", rows, mode, LATER)
    require_balance(len(rows), Counter(outcome.verdict for outcome in outcomes))
    assert [(outcome.planned, outcome.verdict) for outcome in outcomes] == [(row, "done") for row in rows]
    assert contents(root) == expected_contents(initial, mode, action)
    return code != 0


def expected_contents(initial, mode, action):
    live = {key: value for key, value in initial.items() if key not in KEYS}
    if action == "purge":
        return live
    if action == "restore" or mode == "deferred":
        return initial
    return live | {f".gc-assets/trash/{PLAN}/{key}": initial[key] for key in KEYS}


@pytest.mark.parametrize("mode", ["trash", "deferred"])
def test_file_written_after_the_kill_is_left_alone(tmp_path, mode):
    root, rows, _ = build_storage(tmp_path, mode, "quarantine")
    assert exit_code(kill_before, 12, STEPS, apply, root, tmp_path / "state", rows, mode, CLOCK) == -signal.SIGKILL
    for key in KEYS:
        (root / key).unlink(missing_ok=True)
        write(root, key, b"committed meanwhile")
    outcomes = apply(root, tmp_path / "state", rows, mode, LATER)
    assert {outcome.verdict for outcome in outcomes} <= {"done", "changed"}
    assert [(root / key).read_bytes() for key in KEYS] == [b"committed meanwhile"] * 3


def test_one_of_two_concurrent_applies_is_refused(tmp_path):
    root, rows, initial = build_storage(tmp_path, "trash", "quarantine")
    (root / ".gc-assets").mkdir(exist_ok=True)
    start = PROCESSES.Barrier(2)
    children = [
        PROCESSES.Process(target=apply_concurrently, args=(start, root, tmp_path / "state", rows, "trash", CLOCK)) for _ in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    codes = sorted(child.exitcode for child in children)
    assert codes in ([0, 3], [0, 0])  # 0, 0: the first had released the lease before the second one started
    assert contents(root) == expected_contents(initial, "trash", "quarantine")
