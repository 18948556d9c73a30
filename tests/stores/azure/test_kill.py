"""A run is killed before or after every request to Azurite. The next run completes it and loses nothing."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
from requests.adapters import HTTPAdapter

from gc_assets.core.clock import Clock
from gc_assets.core.phases import Action
from gc_assets.state.files import Files
from gc_assets.stores.execution import execute, require_balance
from gc_assets.stores.protocol import LEASE_DURATION, Outcome, PlannedAction, QuarantineMode, Store
from gc_assets.stores.write_ahead import open_log
from tests.depth import example_count, in_turn
from tests.process_kills import exit_code
from tests.stores.azure_bench import AzureBench, open_azure_bench
from tests.stores.builders import CLOCK, NOW, PLAN
from tests.stores.contract import QuarantineBench

pytestmark = in_turn

KEYS = ("t/a", "t/deep/b c+%2F")
LIVE = ("t/live", "live")
LATER = Clock(NOW + LEASE_DURATION)
# A normal run tests every 13th request, the full suite each of them.
STRIDE = example_count(13, 1)
# With fewer requests, some would not be counted.
FEWEST_REQUESTS = 20
Moment = Literal["before", "after"]


def apply(store: Store, state: Path, rows: Sequence[PlannedAction], mode: QuarantineMode, clock: Clock) -> list[Outcome]:
    """Apply rows: lease, log, actions, release."""
    lease = store.acquire(PLAN, "tester", clock)
    log = open_log(Files(str(state)), "wal", PLAN, len(rows))
    outcomes = list(execute(rows, store.quarantine(mode, PLAN), log, lease, clock, batch_size=2))
    lease.release()
    return outcomes


def apply_and_die(step: int, moment: Moment, store: Store, state: Path, rows: Sequence[PlannedAction], mode: QuarantineMode) -> None:
    """Kill the process before or after its `step`-th request."""
    numbers, send = count(1), HTTPAdapter.send

    def send_or_die(self: HTTPAdapter, *arguments: Any, **options: Any) -> Any:
        number = next(numbers)
        if number == step and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = send(self, *arguments, **options)
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    HTTPAdapter.send = send_or_die  # in a child process only
    apply(store, state, rows, mode, CLOCK)


def build(bench: AzureBench, mode: QuarantineMode, action: Action) -> list[PlannedAction]:
    """Create planned and live blobs. For purge and restore the former are in quarantine."""
    for key in (*KEYS, *LIVE):
        bench.put(key, key.encode())
    act = QuarantineBench(bench, mode)
    rows = [act.plan_row(key) for key in KEYS]
    if action != "quarantine":
        assert act(*rows) == ["done"] * len(rows)
    return [act.follow_up(row, action) for row in rows]


def copies(bench: AzureBench, key: str) -> list[bytes]:
    found = [bench.get(name) for name in (key, f".gc-assets/trash/{PLAN}/{key}")]
    return [content for content in found if content is not None]


@pytest.mark.parametrize("mode", ["trash", "deferred"])
@pytest.mark.parametrize("action", ["quarantine", "purge", "restore"])
def test_next_run_completes_a_run_killed_at_any_request(mode: QuarantineMode, action: Action, tmp_path: Path) -> None:
    last = 0
    for step in count(1, STRIDE):
        moments: tuple[Moment, ...] = ("before", "after") if STRIDE == 1 else ("after",) if step % 2 else ("before",)
        if not all(kill_and_complete(step, moment, mode, action, tmp_path / f"{step}-{moment}") for moment in moments):
            break
        last = step
    assert last >= FEWEST_REQUESTS - STRIDE


def kill_and_complete(step: int, moment: Moment, mode: QuarantineMode, action: Action, state: Path) -> bool:
    """Return False if the run ended before that request."""
    with open_azure_bench(prefix="kill/") as bench:
        rows = build(bench, mode, action)
        code = exit_code(apply_and_die, step, moment, bench.store, state, rows, mode)
        assert code in {0, -signal.SIGKILL}
        for key in KEYS:
            assert set(copies(bench, key)) <= {key.encode()}
            assert copies(bench, key) or action == "purge", f"{key} is lost after a kill {moment} request {step}"
        outcomes = apply(bench.store, state, rows, mode, LATER)
        require_balance(len(rows), Counter(outcome.verdict for outcome in outcomes))
        assert [(outcome.planned, outcome.verdict) for outcome in outcomes] == [(row, "done") for row in rows]
        at_keys = action == "restore" or (mode == "deferred" and action == "quarantine")
        assert [bench.get(key) for key in KEYS] == [key.encode() if at_keys else None for key in KEYS]
        assert [len(copies(bench, key)) for key in KEYS] == [0 if action == "purge" else 1] * len(KEYS)
        assert [bench.get(key) for key in LIVE] == [key.encode() for key in LIVE]
    return code != 0


@pytest.mark.parametrize("mode", ["trash", "deferred"])
def test_blob_written_after_the_kill_is_left_alone(mode: QuarantineMode, tmp_path: Path) -> None:
    with open_azure_bench(prefix="kill/") as bench:
        rows = build(bench, mode, "quarantine")
        assert exit_code(apply_and_die, 25, "after", bench.store, tmp_path, rows, mode) in {0, -signal.SIGKILL}
        for key in KEYS:
            bench.put(key, b"committed meanwhile")
        outcomes = apply(bench.store, tmp_path, rows, mode, LATER)
        assert {outcome.verdict for outcome in outcomes} <= {"done", "changed"}
        assert [bench.get(key) for key in KEYS] == [b"committed meanwhile"] * len(KEYS)
