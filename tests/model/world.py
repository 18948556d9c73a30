"""A model of the whole protocol: writers, runs, users, processes that die or sleep, and the clock.

Two lakes share one storage with two keys. Lake 0 claims key 0 and lake 1 claims key 1. Each lake
can share a file of the other. A file is a key and a version, because a name can be written again
after its object was quarantined. Times are ages in days with a limit, so the model has finitely
many states.

`Rules` are the rules of the protocol. `successors` yields all possible next events. If an event
breaks a promise, the promise replaces the next world.

The model makes the assumptions of `docs/safety.md`. A writer commits within the grace period. A
lake shares a file only while another lake needs it. A lake returns to expired history only if no
running purge includes its files.
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
Seen = Literal["ok", "empty", "away", "unreadable"]
LakeState = tuple[Seen, frozenset["File"]]


class File(NamedTuple):
    key: int
    version: int


class Rules(NamedTuple):
    """The protocol. A rule that is False is not applied."""

    accepted_runs: bool = True
    lakes_present: bool = True
    matching_copy: bool = True
    ledger_by_token: bool = True
    token_before_each_act: bool = True
    no_purge_while_unreadable: bool = True
    grace: bool = True
    same_object: bool = True
    fresh_mark: bool = True


class Bounds(NamedTuple):
    """The maximum number of events of each kind. Without `interleaved`, no other event happens
    during a run or a process.
    """

    commits: int = 0
    accidents: int = 0
    runs: int = 0
    applies: int = 0
    restores: int = 0
    crashes: int = 0
    sleeps: int = 0
    skews: int = 0
    interleaved: bool = False


class Lake(NamedTuple):
    """`needs` are the files of retained commits, even if a run cannot read them. `history` are
    those of expired commits.
    """

    needs: frozenset[File] = frozenset()
    history: frozenset[File] = frozenset()
    seen: Seen = "ok"
    # The files that the last run read successfully.
    last_good: frozenset[File] | None = None


class StoredObject(NamedTuple):
    version: int
    age: int


class Copy(NamedTuple):
    """A quarantined copy in the ledger.

    `is_held` is its newest log entry in the order of the ledger. `was_restored` is the actual
    state.
    """

    file: File
    plan: int
    age: int
    is_held: bool = True
    was_restored: bool = False
    # How far ahead the clock of the log entry was, while that matters.
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
    """An apply, or a restore by hand, whose `plan` is that of the copies. `needed` is None until
    both lakes are read.
    """

    token: int
    plan: int
    by_hand: bool
    rows: tuple[Row, ...]
    needed: frozenset[int] | None
    lake_states: tuple[LakeState, ...] = ()
    purges: bool = True
    # The quarantined files in the ledger when the lakes were read.
    held: frozenset[tuple[File, int]] = frozenset()
    ahead: int = 0


class World(NamedTuple):
    stored: tuple[StoredObject | None, ...] = (None, None)
    written: tuple[int, ...] = (0, 0)
    pending: File | None = None
    lakes: tuple[Lake, ...] = (Lake(), Lake())
    trash: frozenset[tuple[File, int]] = frozenset()
    ledger: tuple[Copy, ...] = ()
    run: tuple[LakeState, ...] | None = None
    plans: tuple[Plan, ...] = ()
    accepted: tuple[int | None, ...] | None = None
    published: tuple[int | None, ...] | None = None
    processes: tuple[Process, ...] = ()
    token: int = 0
    used: Bounds = Bounds()


Promise = str
# The name of an event, and the next world or the broken promise.
Step = tuple[str, World | Promise]
NOTHING: Final = frozenset[File]()


def initial_world() -> World:
    """Return a world in which each lake has an old file and one run was accepted."""
    needs = tuple(frozenset({File(key, 0)}) for key in KEYS)
    lakes = tuple(Lake(needs=files, last_good=files) for files in needs)
    old, counts = StoredObject(0, OLD), tuple(1 + len(files) for files in needs)
    return World(stored=(old, old), written=(1, 1), lakes=lakes, accepted=counts, published=counts)


def successors(world: World, mode: Mode, rules: Rules, bounds: Bounds) -> Iterator[Step]:
    """Yield all possible next events with the next world."""
    protocol = _Protocol(world, mode, rules, bounds)
    if not bounds.interleaved and (world.run or world.processes):
        yield from protocol.run() if world.run else protocol.processes()
        return
    yield from protocol.writers()
    yield from protocol.accidents()
    yield from protocol.run()
    yield from protocol.users()
    yield from protocol.processes()
    yield from protocol.clock()


def find_broken_promise(world: World, mode: Mode, rules: Rules) -> str | None:
    """Return a promise that does not hold in a world, or None."""
    if mode == "deferred":
        kept = NOTHING
    else:
        kept = frozenset(file for file, _ in world.trash)
        if not world.processes and frozenset((copy.file, copy.plan) for copy in world.ledger if copy.is_held) != world.trash:
            return "the ledger and the trash have the same files"
    missing = [file for lake in world.lakes for file in lake.needs if not _is_stored(world, file)]
    if not kept.issuperset(missing):
        return "no file that a retained commit needs is lost"
    if missing and world.run is None and not world.processes:
        good = tuple[LakeState, ...](("ok", lake.needs) for lake in world.lakes)
        restored = {row.file for row in plan_rows(world, mode, rules, good) if row.phase == "restore"}
        if not restored.issuperset(file for file in missing if world.stored[file.key] is None):
            return "the next run that reads everything restores needed files"
    return None


def _is_stored(world: World, file: File) -> bool:
    stored = world.stored[file.key]
    return stored is not None and stored.version == file.version


def plan_rows(world: World, mode: Mode, rules: Rules, lake_states: tuple[LakeState, ...]) -> Iterator[Row]:
    """Yield the plan rows of a run with these lake states, in the order of execution."""
    return _Protocol(world, mode, rules, Bounds()).rows(lake_states)


def count(lake_state: LakeState) -> int | None:
    """Return the number of needed files of a lake: one constant file and those of the model. None
    for a lake that is not configured.
    """
    seen, files = lake_state
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
            if world.pending is None and world.stored[key] is None and version < len(VERSIONS) and not self._is_needed(key):
                written = _at(world.written, key, version + 1)
                stored = _at(world.stored, key, StoredObject(version, 0))
                yield f"write {key}", self.use("commits", pending=File(key, version), stored=stored, written=written)
        for number in LAKES:
            lake, other = world.lakes[number], world.lakes[1 - number]
            for file in other.needs - lake.needs:
                yield f"share {file.key} with {number}", self.use("commits", lakes=self.lake(number, needs=lake.needs | {file}))
            for file in lake.needs:
                changed = self.lake(number, needs=lake.needs - {file}, history=lake.history | {file})
                yield f"drop {file.key} of {number}", self.use("commits", lakes=changed)
            for file in lake.history - lake.needs:
                if self._is_restorable(file):
                    yield f"go back to {file.key} in {number}", self.use("commits", lakes=self.lake(number, needs=lake.needs | {file}))

    def _is_needed(self, key: int) -> bool:
        return any(file.key == key for lake in self.world.lakes for file in lake.needs)

    def _is_restorable(self, file: File) -> bool:
        world, stored = self.world, self.world.stored[file.key]
        holder = self._holder()
        if holder is not None and holder.lake_states and any(row.phase == "purge" and row.file == file for row in holder.rows):
            return False
        if stored is not None:
            return stored.version == file.version
        return any(held == file for held, _ in world.trash)

    def accidents(self) -> Iterator[Step]:
        for number in LAKES:
            if self.world.lakes[number].seen != "ok":
                yield f"recover {number}", self.world._replace(lakes=self.lake(number, seen="ok"))
            elif self.may("accidents"):
                for seen in ("empty", "away", "unreadable"):
                    yield f"{seen} {number}", self.use("accidents", lakes=self.lake(number, seen=seen))

    def clock(self) -> Iterator[Step]:
        world = self.world
        if world.pending is not None or world.run is not None:
            return
        stored = tuple(item and item._replace(age=min(OLD, item.age + 1)) for item in world.stored)
        ledger = tuple(copy._replace(age=min(DUE, copy.age + 1), ahead=0) for copy in world.ledger)
        if (stored, ledger) != (world.stored, world.ledger):
            yield "a day", world._replace(stored=stored, ledger=ledger)

    def _read(self, number: int) -> LakeState | None:
        """Return the state of a lake for a mark, or None if the mark must stop."""
        lake = self.world.lakes[number]
        if lake.seen == "unreadable":
            return None if lake.last_good is None else ("unreadable", lake.last_good)
        return lake.seen, lake.needs if lake.seen == "ok" else NOTHING

    def run(self) -> Iterator[Step]:
        world = self.world
        if world.run is None:
            lake_state = self._read(0)
            if self.may("runs") and lake_state is not None:
                yield "a run reads 0", self.use("runs", run=(lake_state,), lakes=self._remember(0, lake_state))
        elif len(world.run) < len(LAKES):
            number = len(world.run)
            lake_state = self._read(number)
            if lake_state is None:
                yield "the run stops", world._replace(run=None)
            else:
                yield f"the run reads {number}", world._replace(run=(*world.run, lake_state), lakes=self._remember(number, lake_state))
        else:
            yield "the run plans", self._publish_plan(world.run)

    def _remember(self, number: int, lake_state: LakeState) -> tuple[Lake, ...]:
        return self.lake(number, last_good=lake_state[1]) if lake_state[0] == "ok" else self.world.lakes

    def _publish_plan(self, lake_states: tuple[LakeState, ...]) -> World:
        world, counts = self.world, tuple(map(count, lake_states))
        passed = self._passes(world.accepted if self.rules.accepted_runs else world.published, counts)
        rows = tuple(self.rows(lake_states))
        plans = world.plans
        if rows and not any(plan.rows == rows and plan.counts == counts and not plan.settled for plan in plans):
            number = 1 + max((plan.number for plan in plans), default=0)
            plans = (*plans[-1:], Plan(number, rows, counts, passed))
        accepted = counts if passed else world.accepted
        published = None if self.rules.accepted_runs else counts
        return world._replace(run=None, plans=plans, accepted=accepted, published=published)

    def _passes(self, before: tuple[int | None, ...] | None, counts: tuple[int | None, ...]) -> bool:
        for then, now in zip(before or (), counts, strict=False):
            if then and now is not None and 10 * now < 3 * then:
                return False  # live_drop
            if then and not now and self.rules.lakes_present:
                return False
        return True

    def rows(self, lake_states: tuple[LakeState, ...]) -> Iterator[Row]:
        world = self.world
        live = frozenset[File]().union(*(files for _, files in lake_states))
        live_keys = {file.key for file in live}
        some_unreadable = any(seen == "unreadable" for seen, _ in lake_states)
        held = [copy for copy in world.ledger if copy.is_held]
        chosen: dict[int, Copy] = {}
        for key in KEYS:
            copies = sorted((copy for copy in held if copy.file.key == key), key=lambda copy: copy.plan)
            if copies and key in live_keys and self.rules.matching_copy:
                chosen[key] = max(copies, key=lambda copy: (copy.file in live, copy.plan))
            elif copies:
                chosen[key] = copies[0]
        for key, copy in chosen.items():
            stored = world.stored[key]
            taken = stored is not None if self.mode == "trash" else stored is None or stored.version != copy.file.version
            if key in live_keys and not taken:
                yield Row("restore", copy.file, copy.plan)
        waiting = {copy.file for copy in held} if self.mode == "deferred" else set[File]()
        for key in KEYS:
            stored, owner = world.stored[key], lake_states[key]
            if stored is None or key in live_keys or owner[0] in {"away", "unreadable"} or File(key, stored.version) in waiting:
                continue
            if stored.age >= OLD or not self.rules.grace:
                yield Row("quarantine", File(key, stored.version), 0)
        if some_unreadable and self.rules.no_purge_while_unreadable:
            return
        for key, copy in chosen.items():
            if key not in live_keys and copy.age >= DUE and lake_states[key][0] != "away":
                yield Row("purge", copy.file, copy.plan)

    def users(self) -> Iterator[Step]:
        world = self.world
        for at, plan in enumerate(world.plans):
            if plan.passed and not plan.approved:
                yield f"approve {plan.number}", world._replace(plans=_at(world.plans, at, plan._replace(approved=True)))
        if self.may("restores") and self._lease_is_free():
            for number in sorted({copy.plan for copy in world.ledger if copy.is_held}):
                rows = tuple(Row("restore", copy.file, copy.plan) for copy in world.ledger if copy.is_held and copy.plan == number)
                process = Process(world.token + 1, number, True, rows, frozenset())
                processes = self._add_process(process)
                used = world.used._replace(restores=world.used.restores + 1, sleeps=world.used.sleeps + (self._holder() is not None))
                yield f"restore {number} by hand", world._replace(processes=processes, token=world.token + 1, used=used)

    def _holder(self) -> Process | None:
        return next((process for process in self.world.processes if process.token == self.world.token), None)

    def _lease_is_free(self) -> bool:
        return self._holder() is None or self.may("sleeps")

    def _add_process(self, process: Process) -> tuple[Process, ...]:
        return (*self.world.processes, process)

    def processes(self) -> Iterator[Step]:
        world = self.world
        if self.may("applies") and self._lease_is_free():
            for plan in world.plans:
                if plan.approved and plan.settled < len(plan.rows):
                    for ahead in (0, 1) if self.may("skews") else (0,):
                        process = Process(world.token + 1, plan.number, False, plan.rows[plan.settled :], None, ahead=ahead)
                        used = world.used._replace(
                            applies=world.used.applies + 1,
                            skews=world.used.skews + ahead,
                            sleeps=world.used.sleeps + (self._holder() is not None),
                        )
                        name = f"apply {plan.number}" + (" by a clock ahead" if ahead else "")
                        yield name, world._replace(processes=self._add_process(process), token=world.token + 1, used=used)
        for at, process in enumerate(world.processes):
            others = world.processes[:at] + world.processes[at + 1 :]
            if self.may("crashes"):
                yield f"process {process.token} dies", self.use("crashes", processes=others)
            if process.needed is None:
                yield f"process {process.token} reads", self._read_lakes(process, others)
            elif not process.rows:
                yield f"process {process.token} ends", world._replace(processes=others)
            elif self.rules.token_before_each_act and process.token != world.token:
                yield f"process {process.token} lost its lease", world._replace(processes=others)
            else:
                row = process.rows[0]
                yield f"process {process.token}: {row.phase} {row.file.key}", self._execute(process, row, others)

    def _read_lakes(self, process: Process, others: tuple[Process, ...]) -> World:
        world, number = self.world, len(process.lake_states)
        if not self.rules.fresh_mark:
            return world._replace(processes=_sort(*others, process._replace(needed=frozenset(), held=self._quarantined_files())))
        lake_state = self._read(number)
        if lake_state is None:
            return world._replace(processes=others)
        lake_states = (*process.lake_states, lake_state)
        if len(lake_states) < len(LAKES):
            return world._replace(processes=_sort(*others, process._replace(lake_states=lake_states)))
        plan = next((plan for plan in world.plans if plan.number == process.plan), None)
        counts = tuple(map(count, lake_states))
        same_lakes = plan is not None and [then is None for then in plan.counts] == [now is None for now in counts]
        if plan is None or not same_lakes or not self._passes(plan.counts, counts):
            return world._replace(processes=others)
        needed = frozenset(file.key for _, files in lake_states for file in files)
        purges = not (self.rules.no_purge_while_unreadable and any(seen == "unreadable" for seen, _ in lake_states))
        held = self._quarantined_files()
        return world._replace(processes=_sort(*others, process._replace(lake_states=lake_states, needed=needed, purges=purges, held=held)))

    def _quarantined_files(self) -> frozenset[tuple[File, int]]:
        return frozenset((copy.file, copy.plan) for copy in self.world.ledger if copy.is_held)

    def _execute(self, process: Process, row: Row, others: tuple[Process, ...]) -> World | Promise:
        """Execute the first row of a process and record the outcome in the ledger."""
        world = self.world
        changed: World | Promise = world
        key = row.file.key
        if row.phase == "restore":
            changed = self._restore(row, process)
        elif key not in (process.needed or ()) and (row.phase == "quarantine" or process.purges):
            changed = self._quarantine(row, process) if row.phase == "quarantine" else self._purge(row, process)
        if isinstance(changed, str):
            return changed
        plans = changed.plans
        for at, plan in enumerate(plans):
            if plan.number == process.plan:
                done = len(plan.rows) if process.by_hand else max(plan.settled, len(plan.rows) - len(process.rows) + 1)
                plans = _at(plans, at, plan._replace(settled=done))
        return changed._replace(processes=_sort(*others, process._replace(rows=process.rows[1:])), plans=plans)

    def _copy(self, row: Row) -> int | None:
        return next((at for at, copy in enumerate(self.world.ledger) if (copy.file, copy.plan) == (row.file, row.source)), None)

    def _is_newest(self, process: Process, copy: Copy) -> bool:
        return self.rules.ledger_by_token or process.ahead >= copy.ahead

    def _restore(self, row: Row, process: Process) -> World | Promise:
        world, at = self.world, self._copy(row)
        key, stored = row.file.key, self.world.stored[row.file.key]
        if at is None:
            return world
        if self.mode == "trash":
            if stored is not None or (row.file, row.source) not in world.trash:
                return world
            needed = {file for lake in world.lakes for file in lake.needs if file.key == key}
            if needed and row.file not in needed and not process.by_hand and any(file in needed for file, _ in world.trash):
                return "a restore prefers the copy with the needed bytes"
        copy = world.ledger[at]
        is_held = copy.is_held and not self._is_newest(process, copy)
        ledger = _at(world.ledger, at, copy._replace(is_held=is_held, was_restored=True))
        if self.mode == "deferred":
            return world._replace(ledger=ledger)
        stored_now = _at(world.stored, key, StoredObject(row.file.version, OLD))
        return world._replace(ledger=_drop_obsolete(ledger), stored=stored_now, trash=world.trash - {(row.file, row.source)})

    def _quarantine(self, row: Row, process: Process) -> World | Promise:
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

    def _purge(self, row: Row, process: Process) -> World | Promise:
        world, at = self.world, self._copy(row)
        if at is None or (row.file, row.source) not in process.held:
            return world
        copy, stored = world.ledger[at], world.stored[row.file.key]
        if self.mode == "trash":
            ledger = world.ledger[:at] + world.ledger[at + 1 :]
            return world._replace(ledger=ledger, trash=world.trash - {(row.file, row.source)})
        others = (other for other in world.ledger if other.file == row.file and other.plan != row.source)
        if copy.was_restored and all(other.was_restored for other in others):
            return "a restored file is purged only after a new quarantine"
        ledger = world.ledger[:at] + world.ledger[at + 1 :]
        if stored is None or stored.version != row.file.version:
            return world._replace(ledger=ledger)
        return world._replace(ledger=ledger, stored=_at(world.stored, row.file.key, None))


def _at(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _sort(*processes: Process) -> tuple[Process, ...]:
    return tuple(sorted(processes, key=lambda process: process.token))


def _drop_obsolete(ledger: tuple[Copy, ...]) -> tuple[Copy, ...]:
    """Remove restored copies that no later log entry refers to."""
    return tuple(copy for copy in ledger if copy.is_held or not copy.was_restored)
