"""A model of the whole protocol: writers, nights, people, processes that die or sleep, and the clock.

Two lakes share one storage of two keys. Key 0 lies below the claim of lake 0 and key 1 below that of lake 1. Either lake may take up a
file of the other. A file is a key and a version: the same name may be written again after its object was quarantined. Times are ages in
days, and stop to grow where nothing hangs on them any more, so that the model has finitely many states.

`Rules` are the rules of the protocol, one by one. `successors` gives every event that may happen next. Where an event breaks a promise, the
promise stands in the place of the world after it.

What is taken for granted, as `docs/safety.md` does: a writer commits what it wrote before the grace period is over. A lake takes up a file
only while another lake needs it. Nobody goes back to expired history that a running purge was told nobody needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

LAKES: Final = (0, 1)
KEYS: Final = (0, 1)
VERSIONS: Final = (0, 1)
OLD: Final = 1  # days after which a file is older than the grace period
DUE: Final = 2  # days after which a quarantined copy may be purged
Mode = Literal["trash", "deferred"]
Phase = Literal["restore", "quarantine", "purge"]
Seen = Literal["ok", "empty", "away", "sick"]
Reading = tuple[Seen, frozenset["File"]]


class File(NamedTuple):
    key: int
    version: int


class Rules(NamedTuple):
    """The protocol. A rule that is false is taken out of it."""

    accepted_nights: bool = True
    lakes_present: bool = True
    fitting_copy: bool = True
    ledger_by_token: bool = True
    token_before_each_act: bool = True
    no_purge_while_sick: bool = True
    grace: bool = True
    same_object: bool = True
    fresh_mark: bool = True


class Bounds(NamedTuple):
    """How often at most each kind of event happens. Without `interleaved` nothing else happens while a night or a process runs."""

    commits: int = 0
    accidents: int = 0
    nights: int = 0
    applies: int = 0
    restores: int = 0
    crashes: int = 0
    sleeps: int = 0
    skews: int = 0
    interleaved: bool = False


class Lake(NamedTuple):
    """`needs` are the files of retained commits, whatever a night can see of them. `history` are those of expired commits."""

    needs: frozenset[File] = frozenset()
    history: frozenset[File] = frozenset()
    seen: Seen = "ok"
    # What the last night that could read it saw.
    last_good: frozenset[File] | None = None


class Stored(NamedTuple):
    version: int
    age: int


class Copy(NamedTuple):
    """A quarantined copy as the ledger tells of it. `is_held` is its newest word by the ledger's order, `was_restored` is the truth."""

    file: File
    plan: int
    age: int
    is_held: bool = True
    was_restored: bool = False
    # How far ahead the clock stood that wrote the word, as long as that matters.
    ahead: int = 0


class Row(NamedTuple):
    phase: Phase
    file: File
    # The plan that quarantined the copy.
    source: int


class Plan(NamedTuple):
    number: int
    rows: tuple[Row, ...]
    counts: tuple[int | None, ...]
    passed: bool
    approved: bool = False
    settled: int = 0


class Process(NamedTuple):
    """A run of apply, or of a restore by hand (`plan` is that of the copies). `needed` is null until both lakes are read."""

    token: int
    plan: int
    by_hand: bool
    rows: tuple[Row, ...]
    needed: frozenset[int] | None
    readings: tuple[Reading, ...] = ()
    purges: bool = True
    # What the ledger called quarantined when the lakes were read.
    held: frozenset[tuple[File, int]] = frozenset()
    ahead: int = 0


class World(NamedTuple):
    stored: tuple[Stored | None, ...] = (None, None)
    written: tuple[int, ...] = (0, 0)
    pending: File | None = None
    lakes: tuple[Lake, ...] = (Lake(), Lake())
    trash: frozenset[tuple[File, int]] = frozenset()
    ledger: tuple[Copy, ...] = ()
    night: tuple[Reading, ...] | None = None
    plans: tuple[Plan, ...] = ()
    accepted: tuple[int | None, ...] | None = None
    published: tuple[int | None, ...] | None = None
    processes: tuple[Process, ...] = ()
    token: int = 0
    used: Bounds = Bounds()


Promise = str
# The name of an event, and the world after it, or the promise that it breaks.
Step = tuple[str, World | Promise]
NOTHING: Final = frozenset[File]()


def begun() -> World:
    """A world in which each lake has a file for long, and a night was accepted."""
    needs = tuple(frozenset({File(key, 0)}) for key in KEYS)
    lakes = tuple(Lake(needs=files, last_good=files) for files in needs)
    old, counts = Stored(0, OLD), tuple(1 + len(files) for files in needs)
    return World(stored=(old, old), written=(1, 1), lakes=lakes, accepted=counts, published=counts)


def successors(world: World, mode: Mode, rules: Rules, bounds: Bounds) -> Iterator[Step]:
    """Yields every event that may happen next, with the world after it."""
    protocol = _Protocol(world, mode, rules, bounds)
    if not bounds.interleaved and (world.night or world.processes):
        yield from protocol.night() if world.night else protocol.processes()
        return
    yield from protocol.writers()
    yield from protocol.accidents()
    yield from protocol.night()
    yield from protocol.people()
    yield from protocol.processes()
    yield from protocol.clock()


def broken(world: World, mode: Mode, rules: Rules) -> str | None:
    """Returns the promise that does not hold in a world, or null."""
    if mode == "deferred":
        kept = NOTHING
    else:
        kept = frozenset(file for file, _ in world.trash)
        if not world.processes and frozenset((copy.file, copy.plan) for copy in world.ledger if copy.is_held) != world.trash:
            return "the books balance: what the ledger calls quarantined is what lies in the trash"
    away = [file for lake in world.lakes for file in lake.needs if not _lies_in_place(world, file)]
    if not kept.issuperset(away):
        return "no file that a retained commit needs is lost"
    if away and world.night is None and not world.processes:
        good = tuple[Reading, ...](("ok", lake.needs) for lake in world.lakes)
        restored = {row.file for row in to_planned_actions(world, mode, rules, good) if row.phase == "restore"}
        if not restored.issuperset(file for file in away if world.stored[file.key] is None):
            return "what is needed again comes back by the next night that can read everything"
    return None


def _lies_in_place(world: World, file: File) -> bool:
    stored = world.stored[file.key]
    return stored is not None and stored.version == file.version


def to_planned_actions(world: World, mode: Mode, rules: Rules, readings: tuple[Reading, ...]) -> Iterator[Row]:
    """The rows of the plan of a night that read the lakes so, in the order of execution."""
    return _Protocol(world, mode, rules, Bounds()).rows(readings)


def count(reading: Reading) -> int | None:
    """How many files a lake needs by a reading: one that never changes, and those of the model. Null for a lake that is not configured."""
    seen, files = reading
    return None if seen == "away" else 0 if seen == "empty" else 1 + len(files)


class _Protocol:
    """The events of one world."""

    def __init__(self, world: World, mode: Mode, rules: Rules, bounds: Bounds) -> None:
        self.world, self.mode, self.rules, self.bounds = world, mode, rules, bounds

    def use(self, event: str, **changes: object) -> World:
        used = self.world.used
        return self.world._replace(used=used._replace(**{event: getattr(used, event) + 1}), **changes)

    def may(self, event: str) -> bool:
        return getattr(self.world.used, event) < getattr(self.bounds, event)

    def lake(self, number: int, **changes: object) -> tuple[Lake, ...]:
        lakes = self.world.lakes
        changed = lakes[number]._replace(**changes)
        return (changed, lakes[1]) if number == 0 else (lakes[0], changed)

    def writers(self) -> Iterator[Step]:
        world = self.world
        if world.pending is not None:
            needs = world.lakes[world.pending.key].needs | {world.pending}
            yield f"commit {world.pending.key}", world._replace(pending=None, lakes=self.lake(world.pending.key, needs=needs))
            yield "abandon", world._replace(pending=None)
        if not self.may("commits"):
            return
        for key in KEYS:
            version = world.written[key]
            if world.pending is None and world.stored[key] is None and version < len(VERSIONS) and not self._is_spoken_of(key):
                written = _at(world.written, key, version + 1)
                stored = _at(world.stored, key, Stored(version, 0))
                yield f"write {key}", self.use("commits", pending=File(key, version), stored=stored, written=written)
        for number in LAKES:
            lake, other = world.lakes[number], world.lakes[1 - number]
            for file in other.needs - lake.needs:
                yield f"share {file.key} with {number}", self.use("commits", lakes=self.lake(number, needs=lake.needs | {file}))
            for file in lake.needs:
                changed = self.lake(number, needs=lake.needs - {file}, history=lake.history | {file})
                yield f"drop {file.key} of {number}", self.use("commits", lakes=changed)
            for file in lake.history - lake.needs:
                if self._can_come_back(file):
                    yield f"go back to {file.key} in {number}", self.use("commits", lakes=self.lake(number, needs=lake.needs | {file}))

    def _is_spoken_of(self, key: int) -> bool:
        return any(file.key == key for lake in self.world.lakes for file in lake.needs)

    def _can_come_back(self, file: File) -> bool:
        world, stored = self.world, self.world.stored[file.key]
        holder = self._holder()
        if holder is not None and holder.readings and any(row.phase == "purge" and row.file == file for row in holder.rows):
            return False
        if stored is not None:
            return stored.version == file.version
        return any(held == file for held, _ in world.trash)

    def accidents(self) -> Iterator[Step]:
        for number in LAKES:
            if self.world.lakes[number].seen != "ok":
                yield f"recover {number}", self.world._replace(lakes=self.lake(number, seen="ok"))
            elif self.may("accidents"):
                for seen in ("empty", "away", "sick"):
                    yield f"{seen} {number}", self.use("accidents", lakes=self.lake(number, seen=seen))

    def clock(self) -> Iterator[Step]:
        world = self.world
        if world.pending is not None or world.night is not None:
            return
        stored = tuple(item and item._replace(age=min(OLD, item.age + 1)) for item in world.stored)
        ledger = tuple(copy._replace(age=min(DUE, copy.age + 1), ahead=0) for copy in world.ledger)
        if (stored, ledger) != (world.stored, world.ledger):
            yield "a day", world._replace(stored=stored, ledger=ledger)

    def _read(self, number: int) -> Reading | None:
        """What a mark sees of a lake. Null where it must stop."""
        lake = self.world.lakes[number]
        if lake.seen == "sick":
            return None if lake.last_good is None else ("sick", lake.last_good)
        return lake.seen, lake.needs if lake.seen == "ok" else NOTHING

    def night(self) -> Iterator[Step]:
        world = self.world
        if world.night is None:
            reading = self._read(0)
            if self.may("nights") and reading is not None:
                yield "a night reads 0", self.use("nights", night=(reading,), lakes=self._noted(0, reading))
        elif len(world.night) < len(LAKES):
            number = len(world.night)
            reading = self._read(number)
            if reading is None:
                yield "the night stops", world._replace(night=None)
            else:
                yield f"the night reads {number}", world._replace(night=(*world.night, reading), lakes=self._noted(number, reading))
        else:
            yield "the night plans", self._planned(world.night)

    def _noted(self, number: int, reading: Reading) -> tuple[Lake, ...]:
        return self.lake(number, last_good=reading[1]) if reading[0] == "ok" else self.world.lakes

    def _planned(self, readings: tuple[Reading, ...]) -> World:
        world, counts = self.world, tuple(map(count, readings))
        passed = self._passes(world.accepted if self.rules.accepted_nights else world.published, counts)
        rows = tuple(self.rows(readings))
        plans = world.plans
        if rows and not any(plan.rows == rows and plan.counts == counts and not plan.settled for plan in plans):
            number = 1 + max((plan.number for plan in plans), default=0)
            plans = (*plans[-1:], Plan(number, rows, counts, passed))
        accepted = counts if passed else world.accepted
        published = None if self.rules.accepted_nights else counts
        return world._replace(night=None, plans=plans, accepted=accepted, published=published)

    def _passes(self, before: tuple[int | None, ...] | None, counts: tuple[int | None, ...]) -> bool:
        for then, now in zip(before or (), counts, strict=False):
            if then and now is not None and 10 * now < 3 * then:
                return False  # live_drop
            if then and not now and self.rules.lakes_present:
                return False
        return True

    def rows(self, readings: tuple[Reading, ...]) -> Iterator[Row]:
        world = self.world
        live = frozenset[File]().union(*(files for _, files in readings))
        live_keys = {file.key for file in live}
        some_sick = any(seen == "sick" for seen, _ in readings)
        held = [copy for copy in world.ledger if copy.is_held]
        one: dict[int, Copy] = {}
        for key in KEYS:
            copies = sorted((copy for copy in held if copy.file.key == key), key=lambda copy: copy.plan)
            if copies and key in live_keys and self.rules.fitting_copy:
                one[key] = max(copies, key=lambda copy: (copy.file in live, copy.plan))
            elif copies:
                one[key] = copies[0]
        for key, copy in one.items():
            stored = world.stored[key]
            taken = stored is not None if self.mode == "trash" else stored is None or stored.version != copy.file.version
            if key in live_keys and not taken:
                yield Row("restore", copy.file, copy.plan)
        waiting = {copy.file for copy in held} if self.mode == "deferred" else set[File]()
        for key in KEYS:
            stored, owner = world.stored[key], readings[key]
            if stored is None or key in live_keys or owner[0] in {"away", "sick"} or File(key, stored.version) in waiting:
                continue
            if stored.age >= OLD or not self.rules.grace:
                yield Row("quarantine", File(key, stored.version), 0)
        if some_sick and self.rules.no_purge_while_sick:
            return
        for key, copy in one.items():
            if key not in live_keys and copy.age >= DUE and readings[key][0] != "away":
                yield Row("purge", copy.file, copy.plan)

    def people(self) -> Iterator[Step]:
        world = self.world
        for at, plan in enumerate(world.plans):
            if plan.passed and not plan.approved:
                yield f"approve {plan.number}", world._replace(plans=_at(world.plans, at, plan._replace(approved=True)))
        if self.may("restores") and self._lease_is_free():
            for number in sorted({copy.plan for copy in world.ledger if copy.is_held}):
                rows = tuple(Row("restore", copy.file, copy.plan) for copy in world.ledger if copy.is_held and copy.plan == number)
                began = Process(world.token + 1, number, True, rows, frozenset())
                processes = self._beside(began)
                used = world.used._replace(restores=world.used.restores + 1, sleeps=world.used.sleeps + (self._holder() is not None))
                yield f"restore {number} by hand", world._replace(processes=processes, token=world.token + 1, used=used)

    def _holder(self) -> Process | None:
        return next((process for process in self.world.processes if process.token == self.world.token), None)

    def _lease_is_free(self) -> bool:
        return self._holder() is None or self.may("sleeps")

    def _beside(self, process: Process) -> tuple[Process, ...]:
        return (*self.world.processes, process)

    def processes(self) -> Iterator[Step]:
        world = self.world
        if self.may("applies") and self._lease_is_free():
            for plan in world.plans:
                if plan.approved and plan.settled < len(plan.rows):
                    for ahead in (0, 1) if self.may("skews") else (0,):
                        began = Process(world.token + 1, plan.number, False, plan.rows[plan.settled :], None, ahead=ahead)
                        used = world.used._replace(
                            applies=world.used.applies + 1,
                            skews=world.used.skews + ahead,
                            sleeps=world.used.sleeps + (self._holder() is not None),
                        )
                        name = f"apply {plan.number}" + (" by a clock ahead" if ahead else "")
                        yield name, world._replace(processes=self._beside(began), token=world.token + 1, used=used)
        for at, process in enumerate(world.processes):
            others = world.processes[:at] + world.processes[at + 1 :]
            if self.may("crashes"):
                yield f"process {process.token} dies", self.use("crashes", processes=others)
            if process.needed is None:
                yield f"process {process.token} reads", self._reading(process, others)
            elif not process.rows:
                yield f"process {process.token} ends", world._replace(processes=others)
            elif self.rules.token_before_each_act and process.token != world.token:
                yield f"process {process.token} lost its lease", world._replace(processes=others)
            else:
                row = process.rows[0]
                yield f"process {process.token}: {row.phase} {row.file.key}", self._acted(process, row, others)

    def _reading(self, process: Process, others: tuple[Process, ...]) -> World:
        world, number = self.world, len(process.readings)
        if not self.rules.fresh_mark:
            return world._replace(processes=_sorted(*others, process._replace(needed=frozenset(), held=self._held())))
        reading = self._read(number)
        if reading is None:
            return world._replace(processes=others)
        readings = (*process.readings, reading)
        if len(readings) < len(LAKES):
            return world._replace(processes=_sorted(*others, process._replace(readings=readings)))
        plan = next((plan for plan in world.plans if plan.number == process.plan), None)
        counts = tuple(map(count, readings))
        same_lakes = plan is not None and [then is None for then in plan.counts] == [now is None for now in counts]
        if plan is None or not same_lakes or not self._passes(plan.counts, counts):
            return world._replace(processes=others)
        needed = frozenset(file.key for _, files in readings for file in files)
        purges = not (self.rules.no_purge_while_sick and any(seen == "sick" for seen, _ in readings))
        held = self._held()
        return world._replace(processes=_sorted(*others, process._replace(readings=readings, needed=needed, purges=purges, held=held)))

    def _held(self) -> frozenset[tuple[File, int]]:
        return frozenset((copy.file, copy.plan) for copy in self.world.ledger if copy.is_held)

    def _acted(self, process: Process, row: Row, others: tuple[Process, ...]) -> World | Promise:
        """Executes the first row of a process and writes its word into the ledger."""
        world = self.world
        changed: World | Promise = world
        key = row.file.key
        if row.phase == "restore":
            changed = self._restored(row, process)
        elif key not in (process.needed or ()) and (row.phase == "quarantine" or process.purges):
            changed = self._quarantined(row, process) if row.phase == "quarantine" else self._purged(row, process)
        if isinstance(changed, str):
            return changed
        plans = changed.plans
        for at, plan in enumerate(plans):
            if plan.number == process.plan:
                done = len(plan.rows) if process.by_hand else max(plan.settled, len(plan.rows) - len(process.rows) + 1)
                plans = _at(plans, at, plan._replace(settled=done))
        return changed._replace(processes=_sorted(*others, process._replace(rows=process.rows[1:])), plans=plans)

    def _copy(self, row: Row) -> int | None:
        return next((at for at, copy in enumerate(self.world.ledger) if (copy.file, copy.plan) == (row.file, row.source)), None)

    def _is_newest(self, process: Process, copy: Copy) -> bool:
        return self.rules.ledger_by_token or process.ahead >= copy.ahead

    def _restored(self, row: Row, process: Process) -> World | Promise:
        world, at = self.world, self._copy(row)
        key, stored = row.file.key, self.world.stored[row.file.key]
        if at is None:
            return world
        if self.mode == "trash":
            if stored is not None or (row.file, row.source) not in world.trash:
                return world
            needed = {file for lake in world.lakes for file in lake.needs if file.key == key}
            if needed and row.file not in needed and not process.by_hand and any(file in needed for file, _ in world.trash):
                return "of two copies the one with the needed bytes comes back"
        copy = world.ledger[at]
        is_held = copy.is_held and not self._is_newest(process, copy)
        ledger = _at(world.ledger, at, copy._replace(is_held=is_held, was_restored=True))
        if self.mode == "deferred":
            return world._replace(ledger=ledger)
        stored_now = _at(world.stored, key, Stored(row.file.version, OLD))
        return world._replace(ledger=_known(ledger), stored=stored_now, trash=world.trash - {(row.file, row.source)})

    def _quarantined(self, row: Row, process: Process) -> World | Promise:
        world, key = self.world, row.file.key
        stored = world.stored[key]
        if stored is None or (self.rules.same_object and stored.version != row.file.version):
            return world
        moved = File(key, stored.version)
        if moved == world.pending:
            return "a file that is being written is not moved"
        copy = Copy(moved, process.plan, 0, ahead=0 if self.rules.ledger_by_token else process.ahead)
        ledger = tuple(sorted((*(held for held in world.ledger if (held.file, held.plan) != (moved, process.plan)), copy)))
        if self.mode == "deferred":
            return world._replace(ledger=ledger)
        return world._replace(ledger=ledger, stored=_at(world.stored, key, None), trash=world.trash | {(moved, process.plan)})

    def _purged(self, row: Row, process: Process) -> World | Promise:
        world, at = self.world, self._copy(row)
        if at is None or (row.file, row.source) not in process.held:
            return world
        copy, stored = world.ledger[at], world.stored[row.file.key]
        if self.mode == "trash":
            ledger = world.ledger[:at] + world.ledger[at + 1 :]
            return world._replace(ledger=ledger, trash=world.trash - {(row.file, row.source)})
        others = (other for other in world.ledger if other.file == row.file and other.plan != row.source)
        if copy.was_restored and all(other.was_restored for other in others):
            return "a file that was put back waits in quarantine again before it is purged"
        ledger = world.ledger[:at] + world.ledger[at + 1 :]
        if stored is None or stored.version != row.file.version:
            return world._replace(ledger=ledger)
        return world._replace(ledger=ledger, stored=_at(world.stored, row.file.key, None))


def _at(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _sorted(*processes: Process) -> tuple[Process, ...]:
    return tuple(sorted(processes, key=lambda process: process.token))


def _known(ledger: tuple[Copy, ...]) -> tuple[Copy, ...]:
    """Words of a copy that is back and that no word will speak of again are forgotten."""
    return tuple(copy for copy in ledger if copy.is_held or not copy.was_restored)
