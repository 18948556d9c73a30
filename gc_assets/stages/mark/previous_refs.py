"""Compare the frozen refs of earlier runs with the current ones.

Commits of a deleted ref are protected for the grace period. A ref hidden from this user also looks
deleted, so it is also requested from the server by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.protocol import Lake, PreviousRef, Ref, as_filtered
from gc_assets.state.index import PastRun
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.summaries import FreezeTime


@dataclass(frozen=True, slots=True)
class Freeze:
    """Heads of all refs by name, and the freeze time."""

    at: datetime
    refs: Mapping[str, Ref]


def build_freeze(at: datetime, refs: Sequence[Ref]) -> Freeze:
    return Freeze(at, {ref.ref_name: ref for ref in refs if ref.head_commit_id is not None})


def refuse_hidden(context: RunContext, lake_name: str, lake: Lake, current: Freeze) -> None:
    """Refuse a lake if its ref listing omits an existing ref of the previous freeze."""
    filtered = as_filtered(lake)
    if filtered is not None and (previous := list_previous_freezes(context, lake_name, current.at)):
        filtered.verify_deleted(_read_freeze(context, previous[-1]).refs.keys() - current.refs.keys())


def find_previous_refs(context: RunContext, lake_name: str, current: Freeze, since: datetime) -> tuple[PreviousRef, ...]:
    """Find the refs deleted or moved between freezes, from `since` up to `current`."""
    previous = list_previous_freezes(context, lake_name, current.at)
    recent = [index for index, run in enumerate(previous) if _frozen_at(run) >= since]
    # The last freeze before the period is needed to detect deletions up to its first freeze.
    first = max(0, (recent[0] if recent else len(previous)) - 1)
    return tuple(find_dropped_or_moved([*(_read_freeze(context, run) for run in previous[first:]), current]))


def find_dropped_or_moved(freezes: Sequence[Freeze]) -> Iterator[PreviousRef]:
    """Yield the refs of each freeze that are missing or have another head in the next one."""
    for earlier, later in pairwise(freezes):
        for name, ref in earlier.refs.items():
            found = later.refs.get(name)
            if found is None or found.head_commit_id != ref.head_commit_id:
                yield PreviousRef(ref, later.at, None if found is None else found.head_commit_id)


def list_previous_freezes(context: RunContext, lake_name: str, before: datetime) -> list[PastRun]:
    """Return all freezes before a time, oldest first.

    Rehearsals use only rehearsals and real runs only real runs, because their clocks differ.
    """
    runs = [
        run
        for run in context.state.history(lake_name, LAKE_REFS.name)
        if run.summary(FreezeTime).rehearsal == context.clock.is_rehearsal and _frozen_at(run) < before
    ]
    return sorted(runs, key=_frozen_at)


def _frozen_at(run: PastRun) -> datetime:
    return run.summary(FreezeTime).frozen_at


def _read_freeze(context: RunContext, run: PastRun) -> Freeze:
    rows = read_rows(context.state, LAKE_REFS, context.state.open(run)).to_pylist(maps_as_pydicts="strict")
    return build_freeze(_frozen_at(run), [Ref(**row) for row in rows])
