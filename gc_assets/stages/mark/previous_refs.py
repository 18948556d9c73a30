"""Compares the refs of earlier freezes with those of now.

What a dropped ref kept is not garbage at once. A ref that the server hides from us looks dropped
too, so the server is also asked for it by name.
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
from gc_assets.state.summaries import Freeze as Frozen


@dataclass(frozen=True, slots=True)
class Freeze:
    """Every ref with a head, by name, as it was at one moment."""

    at: datetime
    refs: Mapping[str, Ref]


def refuse_hidden(context: RunContext, lake_name: str, lake: Lake, now: Freeze) -> None:
    """Raises `LakeUnreadable` where a ref of the last freeze before `now` still exists and was only
    left out of the list.
    """
    asked = as_filtered(lake)
    if asked is not None and (before := _before(context, lake_name, now.at)):
        asked.verify_deleted(_read(context, before[-1]).refs.keys() - now.refs.keys())


def find_previous_refs(context: RunContext, lake_name: str, now: Freeze, since: datetime) -> tuple[PreviousRef, ...]:
    """Returns the refs that a freeze at `since` or later missed first or saw at another head.

    `now` is the last of these freezes.
    """
    before = _before(context, lake_name, now.at)
    recent = [index for index, published in enumerate(before) if _at(published) >= since]
    # The last freeze before the period shows what the first one in it missed.
    first = max(0, (recent[0] if recent else len(before)) - 1)
    return tuple(find_dropped_or_moved([*(_read(context, published) for published in before[first:]), now]))


def find_dropped_or_moved(freezes: Sequence[Freeze]) -> Iterator[PreviousRef]:
    """Yields what each freeze no longer shows of the one before it.

    That is a ref that is gone, or one that is at another head. The latter may only have moved on.
    """
    for earlier, later in pairwise(freezes):
        for name, ref in earlier.refs.items():
            found = later.refs.get(name)
            if found is None or found.head_commit_id != ref.head_commit_id:
                yield PreviousRef(ref, later.at, None if found is None else found.head_commit_id)


def build_freeze(at: datetime, refs: Sequence[Ref]) -> Freeze:
    return Freeze(at, {ref.ref_name: ref for ref in refs if ref.head_commit_id is not None})


def _before(context: RunContext, lake_name: str, moment: datetime) -> list[PastRun]:
    """Returns the freezes of all run dates before a moment, oldest first.

    A rehearsal sees only rehearsals, any other run none of them: a rehearsal's clock says nothing
    of other runs.
    """
    runs = [
        run
        for run in context.state.history(lake_name, LAKE_REFS.name)
        if run.headline(Frozen).rehearsal == context.clock.is_rehearsal and _at(run) < moment
    ]
    return sorted(runs, key=_at)


def _at(run: PastRun) -> datetime:
    return run.headline(Frozen).frozen_at


def _read(context: RunContext, run: PastRun) -> Freeze:
    rows = read_rows(context.state, LAKE_REFS, context.state.open(run)).to_pylist(maps_as_pydicts="strict")
    return build_freeze(_at(run), [Ref(**row) for row in rows])
