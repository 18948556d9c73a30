"""A fake: faults over a real store. What is listed, moved and read is real, and only the answers lie.

Each lie is one that real stores tell (`LIES`). Whether it is told is drawn from the seed, the verb and the object, never from the order of
calls, so threads and executors change nothing. An object that is asked for again under the same seed gets the same lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.config.s3 import Connections
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StoreError
from gc_assets.core.objects import EditableObjects
from gc_assets.core.phases import FAILED
from gc_assets.stores.kind import StoreKind
from gc_assets.stores.protocol import (
    LEASE_DURATION,
    Lease,
    ListingBatch,
    ListingTask,
    PlannedAction,
    Quarantine,
    QuarantineMode,
    Result,
    Store,
)

Fault = Literal[
    "late",
    "twice",
    "page again",
    "listing fails",
    "refs fail",
    "coarse",
    "skew",
    "key lost",
    "key fails",
    "act lost",
    "act fails",
    "lease",
]
# The lies, and of how many answers each one spoils one, where it is told at all.
FAULT_ODDS: Final[dict[Fault, int]] = {
    "late": 2,  # an object written just now is not listed
    "twice": 6,  # a listing names an object twice
    "page again": 2,  # a listing repeats a page
    "listing fails": 3,  # it ends with an error after a part of its answers
    "refs fail": 8,  # the same where a lake lists
    "coarse": 1,  # times are told in whole seconds
    "skew": 1,  # the store's clock is ahead or behind
    "key lost": 4,  # the store acted on a key, and what it answers is a failure
    "key fails": 4,  # the store did not act on a key
    "act lost": 3,  # it acted on a batch, and there is no answer
    "act fails": 3,  # it acted on a part of a batch, and there is no answer
    "lease": 6,  # the lease was renewed, and there is no answer
}
# What is younger may be missing from a listing.
LATE: Final = timedelta(minutes=10)
# S3 refuses requests of a host whose clock differs by more.
MAX_SKEW: Final = timedelta(minutes=15)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Faults:
    """Which lies are told. Under another number others are told about the same object. `now` is the time by which objects are young."""

    seed: str
    number: int
    enabled: frozenset[Fault]
    now: datetime

    def has(self, lie: Fault, *about: object) -> bool:
        return lie in self.enabled and self._drawn(self.number, lie, *about) % FAULT_ODDS[lie] == 0

    def part(self, items: Sequence[T], *about: object) -> Sequence[T]:
        """The first items, all but at least one."""
        return items[: self._drawn(self.number, "part", *about) % max(1, len(items))]

    @property
    def skew(self) -> timedelta:
        """How far the store's clock is ahead. It is the same under every number."""
        spread = 2 * MAX_SKEW // timedelta(seconds=1) + 1
        return timedelta(seconds=self._drawn("skew") % spread) - MAX_SKEW if "skew" in self.enabled else timedelta()

    def _drawn(self, *about: object) -> int:
        return int.from_bytes(hashlib.sha256(repr((self.seed, *about)).encode()).digest()[:8], "big")


def with_faults(kind: StoreKind, lies: Callable[[], Faults]) -> StoreKind:
    """A kind of store that tells the lies of the moment at which a store or objects are opened."""

    def opened(location: str, connections: Connections) -> Store:
        return cast("Store", FaultyStore(kind.open(location, connections), lies()))

    def anywhere(connections: Connections) -> EditableObjects:
        return cast("EditableObjects", FaultyObjects(kind.anywhere(connections), lies()))

    return replace(kind, open=opened, anywhere=anywhere)


@dataclass(frozen=True)
class _Faulty:
    """Answers as `real` does, wherever a class below does not."""

    real: Any
    faults: Faults

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what pickle asks for before there is anything to ask
            raise AttributeError(name)
        return getattr(self.real, name)


class FaultyStore(_Faulty):
    def now(self) -> datetime:
        return self.real.now() + self.faults.skew

    def plan_listing(
        self,
        parallelism: int,
        unchanged: frozenset[str] = frozenset(),
        settled_before: datetime | None = None,
        split_keys: Sequence[str] | None = None,
    ) -> Sequence[ListingTask]:
        return [FaultyTask(task, self.faults) for task in self.real.plan_listing(parallelism, unchanged, settled_before, split_keys)]

    def quarantine(self, mode: QuarantineMode, plan_id: str) -> Quarantine:
        return FaultyQuarantine(self.real.quarantine(mode, plan_id), self.faults)

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        return cast("Lease", FaultyLease(self.real.acquire(plan_id, owner, clock, duration, after), self.faults))


class FaultyTask(_Faulty):
    def run(self, budget: int) -> Iterator[ListingBatch]:
        answers = [self._told(number, listed) for number, listed in enumerate(self.real.run(budget))]
        if self.faults.has("listing fails", self.real):
            yield from self.faults.part(answers, self.real)
            raise StoreError(f"{self.real}: the listing ended with a lie: 503 Slow Down")
        for number, listed in enumerate(answers):
            yield listed
            if self.faults.has("page again", number):
                yield ListingBatch(listed.objects)

    def _told(self, number: int, listed: ListingBatch) -> ListingBatch:
        objects, keys = listed.objects, listed.objects.column("key").to_pylist()
        young = pc.greater(objects.column("last_modified"), pa.scalar(self.faults.now - LATE, pa.timestamp("us", "UTC"))).to_pylist()
        rows = [at for at, key in enumerate(keys) if not (young[at] and self.faults.has("late", key))]
        rows += [at for at in rows if self.faults.has("twice", keys[at])]
        told = objects.take(pa.array(rows, pa.int64()))
        if self.faults.has("coarse"):
            place = told.schema.get_field_index("last_modified")
            seconds = pc.floor_temporal(told.column("last_modified"), unit="second").cast(told.schema.field(place).type)
            told = told.set_column(place, told.schema.field(place), seconds)
        return replace(listed, objects=told, directories=() if len(rows) != len(keys) else listed.directories)


class FaultyQuarantine(_Faulty):
    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        about = [planned.action_key for planned in batch]
        if self.faults.has("act fails", about):
            self.real.act(self.faults.part(batch, about), resumed)
            raise StoreError("a batch ended with a lie: connection reset")
        acted = [planned for planned in batch if not self.faults.has("key fails", planned.action_key)]
        done = dict(zip(acted, self.real.act(acted, resumed), strict=True))
        if self.faults.has("act lost", about):
            raise StoreError("a batch ended with a lie: read timed out")
        for planned in batch:
            if planned not in done or self.faults.has("key lost", planned.action_key):
                done[planned] = Result(FAILED, "a lie: 500 Internal Error")
        return [done[planned] for planned in batch]


class FaultyLease(_Faulty):
    def renew(self) -> None:
        self.real.renew()
        if self.faults.has("lease", "renew", self.real.token):
            raise StoreError("the lease was renewed with a lie: read timed out")

    def check(self) -> None:
        self.real.check()
        if self.faults.has("lease", "check", self.real.token):
            raise StoreError("the lease was read with a lie: read timed out")


class FaultyObjects(_Faulty):
    """Objects as lakes read them. A lake that lists them late would miss a ref, so that is not told here."""

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        found = list(self.real.list(prefix))
        if self.faults.has("refs fail", prefix):
            yield from self.faults.part(found, prefix)
            raise OSError(f"{prefix}: the listing ended with a lie: 503 Slow Down")
        yield from found
