"""Select the part of a ref's commit log that a cut-off retains.

All functions are pure. Source: the rule of *Nessie GC* (`gc-base/…/identify/CutoffPolicy.java`).
Starting at the head, commits are retained up to the first commit beyond the cut-off. The head is
always retained. A number N retains N commits, and a time T expires commits that are older than T.

Unlike Nessie GC, we also retain the commit that was current at T, so that the state at every time t
>= T remains readable. Nessie resolves `ref*t` to the newest commit that is not younger than t.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from gc_assets.core.units import Cutoff
from gc_assets.lakes.nessie.log_forest import Bools, LogForest


@dataclass(frozen=True, slots=True, eq=False)
class RetainedLog:
    """The part of a ref's commit log that a cut-off retains.

    `oldest` is the oldest of `commits`. The complete state at this commit is live. `at_cutoff` is a
    commit that is only retained because it was current at the cut-off, or None.
    """

    commits: Bools
    oldest: int
    at_cutoff: int | None


def retain_log(history: LogForest, head: int, cutoff: Cutoff, as_of: datetime, *, state_at_cutoff: bool) -> RetainedLog:
    """Select the commits in the log of `head` that a cut-off retains at the time `as_of`."""
    log = history.select_log(head)
    distance = history.depth[head] - history.depth
    retained = np.full(len(history), cutoff.forever)
    retained[head] = True
    moment = cutoff.moment_micros(as_of)
    if cutoff.keep_last is not None:
        retained |= distance < cutoff.keep_last
    if moment is not None:
        retained |= history.times >= moment
    expired = np.flatnonzero(log & ~retained)
    if not len(expired):
        return RetainedLog(log, _oldest(history, log), None)
    first_expired = int(expired[np.argmin(distance[expired])])
    commits = log & (history.depth > history.depth[first_expired])
    oldest = _oldest(history, commits)
    if not state_at_cutoff or moment is None or history.times[oldest] <= moment:
        return RetainedLog(commits, oldest, None)
    commits[first_expired] = True
    return RetainedLog(commits, first_expired, first_expired)


def _oldest(history: LogForest, commits: Bools) -> int:
    rows = np.flatnonzero(commits)
    return int(rows[np.argmin(history.depth[rows])])
