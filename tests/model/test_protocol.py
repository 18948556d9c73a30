"""The protocol keeps its promises in all worlds within these bounds. Without a rule it breaks one.

Each test explores the bounds of one part of the protocol completely. One more event in each of them
turns seconds into minutes.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.depth import example_count
from tests.model.explore import Exploration, explore
from tests.model.world import Bounds, Mode, Rules, World, find_broken_promise, initial_world, successors

MODES: Final[tuple[Mode, ...]] = ("trash", "deferred")
# A lake reads as empty, is no longer configured or is unreadable, while its files are shared and
# dropped.
ACCIDENTS: Final = Bounds(commits=2, accidents=1, runs=4, applies=3)
# Names are written again after their objects were quarantined.
NAMES: Final = Bounds(commits=4, runs=3, applies=3)
# Runs, applies and restores by hand overlap with each other and with writers. One process dies, and
# one sleeps longer than its lease.
PROCESSES: Final = Bounds(commits=2, runs=2, applies=3, restores=1, sleeps=1, crashes=1, interleaved=True)
# The clock of one machine is ahead of the others.
CLOCKS: Final = Bounds(commits=1, runs=3, applies=3, restores=1, skews=1)

WITHOUT: Final = {
    "accepted_runs": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "lakes_present": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "no_purge_while_unreadable": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "fresh_mark": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "matching_copy": (NAMES, "the next run that reads everything restores needed files"),
    "grace": (NAMES, "a file that is being written is not moved"),
    "same_object": (NAMES, "a file that is being written is not moved"),
    "ledger_by_token": (CLOCKS, "the ledger and the trash have the same files"),
    "token_before_each_act": (PROCESSES, "no file that a retained commit needs is lost"),
}


def run_exploration(mode: Mode, bounds: Bounds, rules: Rules | None = None) -> Exploration[World]:
    given = rules or Rules()
    return explore(
        initial_world(),
        lambda world: successors(world, mode, given, bounds),
        lambda world: find_broken_promise(world, mode, given),
    )


def test_every_promise_holds_in_all_states() -> None:
    found = [run_exploration(mode, bounds) for bounds in (ACCIDENTS, NAMES, PROCESSES, CLOCKS) for mode in MODES[: example_count(1, 2)]]
    assert [(one.promise, one.trace) for one in found if one.promise is not None] == []
    assert sum(one.states for one in found) > example_count(500_000, 1_000_000)


@pytest.mark.parametrize("rule", Rules._fields)
def test_each_rule_is_necessary(rule: str) -> None:
    bounds, promise = WITHOUT[rule]
    found = run_exploration("trash", bounds, Rules()._replace(**{rule: False}))
    assert found.promise == promise, found.trace


def test_deferred_purge_relies_on_the_order_of_the_ledger() -> None:
    found = run_exploration("deferred", CLOCKS, Rules(ledger_by_token=False))
    assert found.promise == "a restored file is purged only after a new quarantine"
    assert "restore 1 by hand" in found.trace


def test_refused_run_as_baseline_lets_the_next_run_pass() -> None:
    """Shows the accident event by event: one run is refused and the next one is not."""
    found = run_exploration("trash", ACCIDENTS, Rules(accepted_runs=False))
    assert found.trace.count("the run plans") >= 2
    assert found.trace[-1].endswith("purge 1")
