"""The protocol gives its guarantees in all states within these bounds. Without any one rule, a guarantee fails.

Each test explores the bounds of one part of the protocol completely. One more event in each of them
turns seconds into minutes.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.depth import example_count, in_turn
from tests.model.explore import Exploration, explore
from tests.model.world import (
    ALL_AXIOMS,
    DENIED_AGAIN,
    Axioms,
    Bounds,
    Mode,
    Rules,
    World,
    find_broken_promise,
    initial_world,
    successors,
    world_with_others,
)

pytestmark = in_turn

MODES: Final[tuple[Mode, ...]] = ("trash", "deferred")
# A lake reads as empty, is no longer configured or is unreadable, while its files are shared and
# dropped.
ACCIDENTS: Final = Bounds(commits=2, accidents=1, runs=4, applies=3)
# Names are written again after their objects were quarantined.
NAMES: Final = Bounds(commits=4, runs=3, applies=3)
# Runs, applies and restores by hand overlap with each other and with writers. One process dies, and
# one sleeps longer than its lease.
PROCESSES: Final = Bounds(commits=2, runs=2, applies=3, restores=1, sleeps=1, crashes=1, interleaved=True)
# Two applies overlap without a crash or a sleep.
RACE: Final = Bounds(commits=2, runs=2, applies=2, interleaved=True)
# The clock of one machine is ahead of the others.
CLOCKS: Final = Bounds(commits=1, runs=3, applies=3, restores=1, skews=1)

# A link in an address is re-pointed to a copy of its file.
LINKS: Final = Bounds(commits=1, links=1, runs=4, applies=3)
# A lake references a file of the other lake by an address that does not resolve to a storage.
ALIASES: Final = Bounds(commits=1, aliases=1, runs=4, applies=3)
# A table is created over files of others, and an older release plans.
CLAIMS: Final = Bounds(commits=1, registrations=1, runs=3, applies=2, old_releases=1)
# The state is restored from a backup.
BACKUPS: Final = Bounds(commits=example_count(1, 2), runs=3, applies=2, restores=1, backups=1)
# Actions fail for now, or are denied.
FAILURES: Final = Bounds(commits=2, runs=3, applies=4, failures=2)
# A plan has several files of one lake, and its apply dies between them.
SEVERAL_FILES: Final = Bounds(commits=2, runs=2, applies=2, crashes=1)


def limit_bounds(bounds: Bounds, **maxima: int) -> Bounds:
    """Return smaller bounds. If no promise breaks within `bounds`, none breaks within these."""
    assert all(maximum < getattr(bounds, event) for event, maximum in maxima.items())
    return bounds._replace(**maxima)


LOST: Final = "no file that a retained commit needs is lost"
MOVED_EARLY: Final = "a file that is being written is not moved"
# Each rule, small bounds, and the promise that breaks without the rule. The tests with all rules explore these bounds too.
WITHOUT: Final = {
    "accepted_runs": (limit_bounds(ACCIDENTS, commits=1, runs=3, applies=2), LOST),
    "lakes_present": (limit_bounds(ACCIDENTS, runs=2, applies=2), LOST),
    "no_purge_while_unreadable": (limit_bounds(ACCIDENTS, runs=2, applies=2), LOST),
    "fresh_mark": (limit_bounds(ACCIDENTS, accidents=0, runs=2, applies=2), LOST),
    "matching_copy": (limit_bounds(NAMES, runs=2, applies=2), "the next run that reads everything restores needed files"),
    "grace": (limit_bounds(NAMES, commits=2, runs=2, applies=2), MOVED_EARLY),
    "same_object": (limit_bounds(NAMES, commits=3, runs=2, applies=2), MOVED_EARLY),
    "ledger_by_token": (CLOCKS, "the ledger and the trash have the same files"),
    "token_before_each_act": (limit_bounds(PROCESSES, restores=0, crashes=0), LOST),
    "current_links": (LINKS, LOST),
    "unknown_addresses": (ALIASES, LOST),
    "new_claims": (CLAIMS, "no file of others is moved"),
    "own_rules": (CLAIMS, "no file of others is moved"),
    "denials": (limit_bounds(FAILURES, commits=1, runs=2, applies=1, failures=1), DENIED_AGAIN),
    "adoption": (BACKUPS, "the ledger and the trash have the same files"),
}
WITHOUT_AXIOM: Final = {
    "complete_listing": (NAMES, "a run plans all old files that nothing needs"),
    "visible_write": (limit_bounds(NAMES, commits=2, runs=2, applies=2), LOST),
    "exclusive_create": (RACE, LOST),
    "store_clock": (limit_bounds(NAMES, commits=2, runs=2, applies=2), MOVED_EARLY),
    "distinct_identity": (limit_bounds(NAMES, commits=3, runs=2, applies=2), MOVED_EARLY),
    "conditional_change": (limit_bounds(PROCESSES, runs=1, applies=2, restores=0, crashes=0), MOVED_EARLY),
    "no_overwrite": (limit_bounds(PROCESSES, runs=1, applies=1, crashes=0), LOST),
}


def run_exploration(mode: Mode, bounds: Bounds, rules: Rules | None = None, axioms: Axioms = ALL_AXIOMS) -> Exploration[World]:
    given = rules or Rules()
    start = world_with_others() if bounds is CLAIMS else initial_world(3 if bounds is SEVERAL_FILES else 2)
    return explore(
        start,
        lambda world: successors(world, mode, given, bounds, axioms),
        lambda world: find_broken_promise(world, mode, given),
    )


def test_every_guarantee_holds_in_all_reachable_states() -> None:
    found = [run_exploration(mode, bounds) for bounds in (ACCIDENTS, NAMES, PROCESSES, CLOCKS) for mode in MODES[: example_count(1, 2)]]
    assert [(one.promise, one.trace) for one in found if one.promise is not None] == []
    assert sum(one.states for one in found) > example_count(500_000, 1_000_000)


@pytest.mark.parametrize("rule", Rules._fields)
def test_removing_any_rule_breaks_a_guarantee(rule: str) -> None:
    bounds, promise = WITHOUT[rule]
    found = run_exploration("trash", bounds, Rules()._replace(**{rule: False}))
    assert found.promise == promise, found.trace


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bounds", [LINKS, ALIASES, CLAIMS, FAILURES, SEVERAL_FILES])
def test_guarantees_hold_with_renames_new_claims_and_failures(bounds: Bounds, mode: Mode) -> None:
    found = run_exploration(mode, bounds)
    assert (found.promise, found.trace) == (None, ())
    assert found.states > 300


def test_guarantees_hold_after_restoring_the_state_from_backup() -> None:
    found = run_exploration("trash", BACKUPS)
    assert (found.promise, found.trace) == (None, ())


@pytest.mark.parametrize("axiom", Axioms._fields)
def test_removing_any_storage_axiom_breaks_a_guarantee(axiom: str) -> None:
    bounds, promise = WITHOUT_AXIOM[axiom]
    found = run_exploration("trash", bounds, axioms=Axioms()._replace(**{axiom: False}))
    assert found.promise == promise, found.trace


def test_deferred_purge_requires_ledger_ordered_by_fencing_token() -> None:
    found = run_exploration("deferred", CLOCKS, Rules(ledger_by_token=False))
    assert found.promise == "a restored file is purged only after a new quarantine"
    assert "restore 1 by hand" in found.trace


def test_refused_run_used_as_baseline_makes_the_next_run_pass() -> None:
    """Shows the accident event by event: one run is refused and the next one is not."""
    found = run_exploration("trash", WITHOUT["accepted_runs"][0], Rules(accepted_runs=False))
    assert found.trace.count("the run plans") >= 2
    assert found.trace[-1].endswith("purge 0")
