"""Which files are old enough to be candidates: by the storage's grace, and by what the lake that claims a file adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.receipts import Published
from gc_assets.lakes.registry import named_times


@dataclass(frozen=True, slots=True)
class LakeAge:
    """What a lake adds: its kind, by which names may tell a time, and its own cut-off, never later than the storage's."""

    kind: str
    cutoff: datetime


@dataclass(frozen=True, slots=True)
class Ages:
    """The cut-offs of a storage and of the lakes that claim files there. Pickles."""

    cutoff: datetime
    lakes: Mapping[str, LakeAge]

    @classmethod
    def of(cls, cutoff: datetime, refs: list[Published]) -> Ages:
        """From the storage's grace cut-off and every lake's frozen refs, whose clock reading is the same lake's."""
        lakes: dict[str, LakeAge] = {}
        for table in refs:
            facts = table.receipt.facts
            own = datetime.fromisoformat(facts["frozen_at"]) - timedelta(seconds=facts["min_age_seconds"])
            lakes[table.receipt.group] = LakeAge(facts["kind"], min(cutoff, own))
        return cls(cutoff, lakes)

    def old(self, claimed: pa.RecordBatch) -> pa.Array:
        """Which claimed files (columns key, last_modified, lake) are older than the cut-off.

        A file is as old as the younger of its storage time and the time in its name.
        """
        old = pc.less(claimed.column("last_modified"), _moment(self.cutoff))
        for name, age in self.lakes.items():
            mine = pc.fill_null(pc.equal(claimed.column("lake"), name), False)
            if mine.true_count:
                old = pc.and_(old, pc.or_(pc.invert(mine), _old_in(age, claimed)))
        return old


def _old_in(age: LakeAge, claimed: pa.RecordBatch) -> pa.Array:
    old = pc.less(claimed.column("last_modified"), _moment(age.cutoff))
    tell = named_times(age.kind)
    return old if tell is None else pc.and_(old, pc.fill_null(pc.less(tell(claimed.column("key")), _moment(age.cutoff)), True))


def _moment(value: datetime) -> pa.Scalar:
    return pa.scalar(value, pa.timestamp("us", "UTC"))
