"""The protocol keeps its promises in every world within these bounds, and breaks one as soon as a rule is taken out of it.

Each bounds a part of the protocol and is explored to its end. An event more in each of them makes minutes of seconds.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.depth import times
from tests.model.explore import Explored, explore
from tests.model.world import Bounds, Mode, Rules, World, begun, broken, successors

MODES: Final[tuple[Mode, ...]] = ("trash", "deferred")
# A lake is read as empty, leaves the configuration or falls sick, while its files are taken up and dropped.
ACCIDENTS: Final = Bounds(commits=2, accidents=1, nights=4, applies=3)
# Names are written again after their objects were quarantined.
NAMES: Final = Bounds(commits=4, nights=3, applies=3)
# Nights, runs of apply and restores by hand overlap each other and the writers. A process dies, and one sleeps longer than its lease.
PROCESSES: Final = Bounds(commits=2, nights=2, applies=3, restores=1, sleeps=1, crashes=1, interleaved=True)
# The clock of one machine is ahead of the others.
CLOCKS: Final = Bounds(commits=1, nights=3, applies=3, restores=1, skews=1)

WITHOUT: Final = {
    "accepted_nights": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "lakes_present": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "no_purge_while_sick": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "fresh_mark": (ACCIDENTS, "no file that a retained commit needs is lost"),
    "fitting_copy": (NAMES, "what is needed again comes back by the next night that can read everything"),
    "grace": (NAMES, "a file that is being written is not moved"),
    "same_object": (NAMES, "a file that is being written is not moved"),
    "ledger_by_token": (CLOCKS, "the books balance: what the ledger calls quarantined is what lies in the trash"),
    "token_before_each_act": (PROCESSES, "no file that a retained commit needs is lost"),
}


def explored(mode: Mode, bounds: Bounds, rules: Rules | None = None) -> Explored[World]:
    kept = rules or Rules()
    return explore(begun(), lambda world: successors(world, mode, kept, bounds), lambda world: broken(world, mode, kept))


def test_every_promise_holds_in_each_of_half_a_million_states() -> None:
    found = [explored(mode, bounds) for bounds in (ACCIDENTS, NAMES, PROCESSES, CLOCKS) for mode in MODES[: times(1, 2)]]
    assert [(one.promise, one.trace) for one in found if one.promise is not None] == []
    assert sum(one.states for one in found) > times(500_000, 1_000_000)


@pytest.mark.parametrize("rule", Rules._fields)
def test_a_rule_that_is_taken_out_is_missed(rule: str) -> None:
    bounds, promise = WITHOUT[rule]
    found = explored("trash", bounds, Rules()._replace(**{rule: False}))
    assert found.promise == promise, found.trace


def test_where_nothing_moves_only_the_order_of_the_ledger_keeps_a_restored_file_from_the_purge() -> None:
    found = explored("deferred", CLOCKS, Rules(ledger_by_token=False))
    assert found.promise == "a file that was put back waits in quarantine again before it is purged"
    assert "restore 1 by hand" in found.trace


def test_a_refused_night_that_becomes_the_measure_lets_the_next_one_pass() -> None:
    """The accident of the one night that was refused and the next that was not, event by event."""
    found = explored("trash", ACCIDENTS, Rules(accepted_nights=False))
    assert found.trace.count("the night plans") >= 2
    assert found.trace[-1].endswith("purge 1")
