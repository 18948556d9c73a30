"""How far back a ref's log is kept: the commits within its cut-off, and the commit that was current
when the cut-off began.

Pure. The rule is *Nessie GC*'s (`gc-base/…/identify/CutoffPolicy.java`). The walk starts at the
head and stops at the first commit that is cut. The head is never cut. Number N keeps N commits. A
commit strictly older than T is cut. We go beyond this rule: the commit that was current at T stays
too, so that every time t >= T is readable. Nessie itself answers `ref*t` with the newest commit
that is not younger than t.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from gc_assets.core.units import Cutoff
from gc_assets.lakes.nessie.log_forest import Bools, LogForest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What a cut-off keeps of one log. `oldest` is the last of `commits`; its whole state is live.

    `at_cutoff` is the commit that only the state as of the cut-off keeps, or null.
    """

    commits: Bools
    oldest: int
    at_cutoff: int | None


def kept(history: LogForest, head: int, cutoff: Cutoff, as_of: datetime, *, state_at_cutoff: bool) -> Kept:
    """Returns the part of the log behind `head` that stays readable at `as_of`."""
    log = history.log(head)
    back = history.depth[head] - history.depth
    within = np.full(len(history), cutoff.forever)
    within[head] = True
    moment = micros(cutoff.moment(as_of))
    if cutoff.keep_last is not None:
        within |= back < cutoff.keep_last
    if moment is not None:
        within |= history.times >= moment
    cut = np.flatnonzero(log & ~within)
    if not len(cut):
        return Kept(log, _oldest(history, log), None)
    first_cut = int(cut[np.argmin(back[cut])])
    commits = log & (history.depth > history.depth[first_cut])
    oldest = _oldest(history, commits)
    if not state_at_cutoff or moment is None or history.times[oldest] <= moment:
        return Kept(commits, oldest, None)
    commits[first_cut] = True
    return Kept(commits, first_cut, first_cut)


def micros(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)


def _oldest(history: LogForest, commits: Bools) -> int:
    rows = np.flatnonzero(commits)
    return int(rows[np.argmin(history.depth[rows])])
