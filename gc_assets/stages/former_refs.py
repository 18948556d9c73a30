"""The refs that earlier nights froze and that are there no more: what a dropped ref kept is not garbage at once.

A ref that the server hides from us looks as if it was dropped, so it is also asked for by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from gc_assets.core.receipts import Published
from gc_assets.lakes.protocol import FormerRef, Lake, Ref, WatchedLake
from gc_assets.schemas import LAKE_REFS
from gc_assets.stages.night import Night
from gc_assets.stages.tables import read_rows


@dataclass(frozen=True, slots=True)
class Freeze:
    """Every ref with a head, by name, as it was at that moment."""

    at: datetime
    refs: Mapping[str, Ref]


def refuse_hidden(night: Night, lake_name: str, lake: Lake, now: Freeze) -> None:
    """Raises `LakeUnreadable` where a ref of the freeze before `now` is still there and only left out of the list."""
    if isinstance(lake, WatchedLake) and (before := _before(night, lake_name, now.at)):
        lake.refuse_hidden(_read(night, before[-1]).refs.keys() - now.refs.keys())


def former_refs(night: Night, lake_name: str, now: Freeze, since: datetime) -> tuple[FormerRef, ...]:
    """The refs of earlier freezes that were first missed at `since` or later, `now` being the last look."""
    before = _before(night, lake_name, now.at)
    recent = [index for index, published in enumerate(before) if _at(published) >= since]
    # The last freeze before the period says what the first one in it missed.
    first = max(0, (recent[0] if recent else len(before)) - 1)
    return tuple(missed([*(_read(night, published) for published in before[first:]), now]))


def missed(freezes: Sequence[Freeze]) -> Iterator[FormerRef]:
    """What each freeze no longer shows of the one before it: a ref that is gone, or is at another head, which may only have moved on."""
    for earlier, later in pairwise(freezes):
        for name, ref in earlier.refs.items():
            found = later.refs.get(name)
            if found is None or found.head_commit_id != ref.head_commit_id:
                yield FormerRef(ref, later.at, None if found is None else found.head_commit_id)


def freeze_of(at: datetime, refs: Sequence[Ref]) -> Freeze:
    return Freeze(at, {ref.ref_name: ref for ref in refs if ref.head_commit_id is not None})


def _before(night: Night, lake_name: str, moment: datetime) -> list[Published]:
    """The freezes of all run dates before a moment, oldest first. A rehearsal's clock says nothing of other runs."""
    runs = [run for run in night.state.runs(lake_name, LAKE_REFS.name) if run.receipt.facts["rehearsal"] == night.clock.is_rehearsal]
    return sorted((run for run in runs if _at(run) < moment), key=_at)


def _at(published: Published) -> datetime:
    return datetime.fromisoformat(published.receipt.facts["frozen_at"])


def _read(night: Night, published: Published) -> Freeze:
    rows = read_rows(night.state, LAKE_REFS, published).to_pylist(maps_as_pydicts="strict")
    return freeze_of(_at(published), [Ref(**row) for row in rows])
