"""Decides which files are old enough to be candidates.

The storage's grace period counts, and what the lake that claims a file adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import PublishedTable
from gc_assets.state.summaries import LakeRefsSummary

# Maps keys to the UTC times at which their names were handed out; null for a name that tells none.
NamedTimes = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class LakeAge:
    """What a lake adds to the storage's grace.

    `cutoff` is its own cut-off, never later than the storage's. `named_times` reads times from its
    objects' names.
    """

    cutoff: datetime
    named_times: NamedTimes | None = None


@dataclass(frozen=True, slots=True)
class Ages:
    """The cut-offs of a storage and of the lakes that claim files there. Pickles."""

    cutoff: datetime
    lakes: Mapping[str, LakeAge]

    @classmethod
    def of(cls, context: RunContext, cutoff: datetime, refs: list[PublishedTable]) -> Ages:
        """Returns the ages from the storage's grace cut-off and every lake's frozen refs.

        A lake's own minimum age counts from the clock reading of its own freeze.
        """
        lakes: dict[str, LakeAge] = {}
        for table in refs:
            summary, kind = table.summary(LakeRefsSummary), context.kind(table.receipt.owner)
            own = summary.frozen_at - timedelta(seconds=summary.min_age_seconds)
            lakes[table.receipt.owner] = LakeAge(min(cutoff, own), kind.named_times)
        return cls(cutoff, lakes)

    def is_old(self, claimed: pa.RecordBatch) -> pa.Array:
        """Marks the claimed files (columns key, last_modified, lake) that are older than the
        cut-off.

        A file is as old as the younger of its storage time and the time in its name.
        """
        old = pc.less(claimed.column("last_modified"), _timestamp(self.cutoff))
        for name, age in self.lakes.items():
            mine = pc.fill_null(pc.equal(claimed.column("lake"), name), False)
            if mine.true_count:
                old = pc.and_(old, pc.or_(pc.invert(mine), _is_old_for(age, claimed)))
        return old


def _is_old_for(age: LakeAge, claimed: pa.RecordBatch) -> pa.Array:
    old = pc.less(claimed.column("last_modified"), _timestamp(age.cutoff))
    read_times = age.named_times
    return old if read_times is None else pc.and_(old, pc.fill_null(pc.less(read_times(claimed.column("key")), _timestamp(age.cutoff)), True))


def _timestamp(value: datetime) -> pa.Scalar:
    return pa.scalar(value, pa.timestamp("us", "UTC"))
