"""Decide which files are old enough to be candidates.

The storage's grace period applies to all files. In addition, the lake that claims a file can
require a longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.moments import seconds, shift
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import PublishedTable
from gc_assets.state.summaries import LakeRefsSummary

# Maps a column of keys to the UTC times parsed from the keys. Rows without a time are null.
NamedTimes = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class LakeAge:
    """How old files of one lake must be.

    Attributes:
        cutoff: The lake's cut-off, which is never later than the storage's cut-off.
        named_times: Parses creation times from the names of the lake's objects.
    """

    cutoff: datetime
    named_times: NamedTimes | None = None


@dataclass(frozen=True, slots=True)
class Ages:
    """Cut-offs of a storage, and of the lakes that have claims in it.

    They are pickled and sent to Spark executors.
    """

    cutoff: datetime
    lakes: Mapping[str, LakeAge]

    @classmethod
    def of(cls, context: RunContext, cutoff: datetime, refs: list[PublishedTable], lead: timedelta) -> Ages:
        """Build the cut-offs from the storage's grace cut-off and the recorded refs of all lakes.

        A lake's minimum age is counted back from the time when its refs were read.

        Args:
            lead: How far the host's clock is ahead of the storage's (`find_clock_lead`).
        """
        lakes: dict[str, LakeAge] = {}
        for table in refs:
            summary, kind = table.summary(LakeRefsSummary), context.kind(table.receipt.owner)
            frozen_at = min(summary.frozen_at, context.clock.now())  # another host may have read the refs
            own = shift(frozen_at - lead, -seconds(summary.min_age_seconds))
            lakes[table.receipt.owner] = LakeAge(min(cutoff, own), kind.files.named_times)
        return cls(cutoff, lakes)

    def is_old(self, claimed: pa.RecordBatch) -> pa.Array:
        """Return a mask of the claimed files older than the cut-offs of the storage and the lake.

        A file's age depends on its modification time or the time in its name, whichever is later.

        Args:
            claimed: Files with the columns key, last_modified and lake.
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
    return (
        old if read_times is None else pc.and_(old, pc.fill_null(pc.less(read_times(claimed.column("key")), _timestamp(age.cutoff)), True))
    )


def _timestamp(value: datetime) -> pa.Scalar:
    return pa.scalar(value, pa.timestamp("us", "UTC"))
