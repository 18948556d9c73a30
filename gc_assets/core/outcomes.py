"""Count and describe the actions of a plan that were not executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gc_assets.core.phases import ABORT, ABSENT, DONE, EXPIRE
from gc_assets.core.units import count_of

# With these outcomes, the planned state exists. With any other, the action remains to be done.
FULFILLED: Final = frozenset({DONE, ABSENT})


def select_not_done(counts: Mapping[str, int]) -> dict[str, int]:
    """Select the counts of actions that were not done. Keys have the format `phase/outcome`."""
    return {name: count for name, count in counts.items() if count and name.rpartition("/")[2] not in FULFILLED}


def describe_not_done(not_done: Mapping[str, int]) -> str:
    """Describe actions that were not done, for example `50 files of phase quarantine (denied)`.

    Args:
        not_done: The result of `select_not_done`.
    """
    subjects = {EXPIRE: "history edit", ABORT: "upload"}
    parts = [(*name.rpartition("/")[::2], count) for name, count in sorted(not_done.items())]
    return ", ".join(f"{count_of(count, subjects.get(phase, 'file'))} of phase {phase} ({outcome})" for phase, outcome, count in parts)
