"""A real store with injected faults. Listings, moves and reads are real, only answers are wrong.

Each fault is one of real stores (`FAULT_ODDS`). Whether it occurs depends on the seed, the call and
the object, never on the order of calls, so threads and executors make no difference. The same seed
gives the same faults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.config.connections import Connections
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StoreError
from gc_assets.core.objects import EditableObjects
from gc_assets.core.phases import FAILED
from gc_assets.stores.key_limits import KeyLimits
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
# The faults, each with the average number of answers per occurrence if it is enabled.
FAULT_ODDS: Final[dict[Fault, int]] = {
    "late": 2,  # a recently written object is not listed
    "twice": 6,  # a listing contains an object twice
    "page again": 2,  # a listing repeats a page
    "listing fails": 3,  # a listing ends with an error after a part of its pages
    "refs fail": 8,  # the same for listings of lakes
    "coarse": 1,  # times have whole seconds
    "skew": 1,  # the store's clock is ahead or behind
    "key lost": 4,  # the store acts on a key, but returns a failure
    "key fails": 4,  # the store does not act on a key
    "act lost": 3,  # the store acts on a batch, but does not answer
    "act fails": 3,  # the store acts on a part of a batch, but does not answer
    "lease": 6,  # the lease is renewed, but the store does not answer
}
# Younger objects may be missing from a listing.
LATE: Final = timedelta(minutes=10)
# S3 refuses requests of a host with a larger clock skew.
MAX_SKEW: Final = timedelta(minutes=15)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Faults:
    """The enabled faults.

    Another `number` gives other faults for the same object. `now` is the time relative to which
    objects are young.
    """

    seed: str
    number: int
    enabled: frozenset[Fault]
    now: datetime

    def has(self, lie: Fault, *about: object) -> bool:
        return lie in self.enabled and self._draw(self.number, lie, *about) % FAULT_ODDS[lie] == 0

    def part(self, items: Sequence[T], *about: object) -> Sequence[T]:
        """Return the first items, without at least one."""
        return items[: self._draw(self.number, "part", *about) % max(1, len(items))]

    @property
    def skew(self) -> timedelta:
        """Return how far the store's clock is ahead. It is the same for every number."""
        spread = 2 * MAX_SKEW // timedelta(seconds=1) + 1
        return timedelta(seconds=self._draw("skew") % spread) - MAX_SKEW if "skew" in self.enabled else timedelta()

    def _draw(self, *about: object) -> int:
        return int.from_bytes(hashlib.sha256(repr((self.seed, *about)).encode()).digest()[:8], "big")


def with_faults(kind: StoreKind, choose_faults: Callable[[], Faults]) -> StoreKind:
    """Return a kind of store with the faults at the time when a store or objects are opened."""

    def open_faulty(location: str, connections: Connections) -> Store:
        return cast("Store", FaultyStore(kind.open(location, connections), choose_faults()))

    def anywhere(connections: Connections) -> EditableObjects:
        return cast("EditableObjects", FaultyObjects(kind.anywhere(connections), choose_faults()))

    return replace(kind, open=open_faulty, anywhere=anywhere)


@dataclass(frozen=True)
class _Faulty:
    """Delegates to `real` whatever a subclass does not define."""

    real: Any
    faults: Faults

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle looks these up before the fields exist
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

    def key_limits(self, mode: QuarantineMode) -> KeyLimits | None:
        return self.real.key_limits(mode)

    def acquire(self, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> Lease:
        return cast("Lease", FaultyLease(self.real.acquire(plan_id, owner, clock, duration, after), self.faults))


class FaultyTask(_Faulty):
    def run(self, budget: int) -> Iterator[ListingBatch]:
        answers = [self._inject(number, listed) for number, listed in enumerate(self.real.run(budget))]
        if self.faults.has("listing fails", self.real):
            yield from self.faults.part(answers, self.real)
            raise StoreError(f"{self.real}: the listing ended with an injected fault: 503 Slow Down")
        for number, listed in enumerate(answers):
            yield listed
            if self.faults.has("page again", number):
                yield ListingBatch(listed.objects)

    def _inject(self, number: int, listed: ListingBatch) -> ListingBatch:
        objects, keys = listed.objects, listed.objects.column("key").to_pylist()
        young = pc.greater(objects.column("last_modified"), pa.scalar(self.faults.now - LATE, pa.timestamp("us", "UTC"))).to_pylist()
        rows = [number for number, key in enumerate(keys) if not (young[number] and self.faults.has("late", key))]
        rows += [number for number in rows if self.faults.has("twice", keys[number])]
        faulty = objects.take(pa.array(rows, pa.int64()))
        if self.faults.has("coarse"):
            column = faulty.schema.get_field_index("last_modified")
            seconds = pc.floor_temporal(faulty.column("last_modified"), unit="second").cast(faulty.schema.field(column).type)
            faulty = faulty.set_column(column, faulty.schema.field(column), seconds)
        return replace(listed, objects=faulty, directories=() if len(rows) != len(keys) else listed.directories)


class FaultyQuarantine(_Faulty):
    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        batch_keys = [planned.action_key for planned in batch]
        if self.faults.has("act fails", batch_keys):
            self.real.act(self.faults.part(batch, batch_keys), resumed)
            raise StoreError("a batch ended with an injected fault: connection reset")
        executed = [planned for planned in batch if not self.faults.has("key fails", planned.action_key)]
        done = dict(zip(executed, self.real.act(executed, resumed), strict=True))
        if self.faults.has("act lost", batch_keys):
            raise StoreError("a batch ended with an injected fault: read timed out")
        for planned in batch:
            if planned not in done or self.faults.has("key lost", planned.action_key):
                done[planned] = Result(FAILED, "injected fault: 500 Internal Error")
        return [done[planned] for planned in batch]


class FaultyLease(_Faulty):
    def renew(self) -> None:
        self.real.renew()
        if self.faults.has("lease", "renew", self.real.token):
            raise StoreError("the lease was renewed with an injected fault: read timed out")

    def check(self) -> None:
        self.real.check()
        if self.faults.has("lease", "check", self.real.token):
            raise StoreError("the lease was read with an injected fault: read timed out")


class FaultyObjects(_Faulty):
    """Objects of lakes. Late listings are not injected, because a lake would miss a ref."""

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        found = list(self.real.list(prefix))
        if self.faults.has("refs fail", prefix):
            yield from self.faults.part(found, prefix)
            raise OSError(f"{prefix}: the listing ended with an injected fault: 503 Slow Down")
        yield from found
