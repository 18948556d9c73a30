"""A model of the whole protocol: writers, runs, users, processes that die or sleep, and the clock.

Two lakes share one storage with a few keys. Lake 0 claims the even keys and lake 1 the odd ones.
Each lake can share a file of the other. A file is a key and a version, because a name can be written
again after its object was quarantined. Times are ages in days with a limit, so the model has finitely
many states.

`Rules` are the rules of the protocol, and `Axioms` are its assumptions about stores. `successors`
yields all possible next events. If an event breaks a promise, the promise replaces the next world.

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
    # Addresses are resolved through symbolic links in each run.
    current_links: bool = True
    # Files that a lake may need by an address of no storage are not candidates.
    unknown_addresses: bool = True
    # Files that are older than a claim belong to others.
    new_claims: bool = True
    # An apply checks the rules of its own release, even if another release made the plan.
    own_rules: bool = True
    # Quarantined files that the state does not know are adopted.
    adoption: bool = True
    # Actions that the store denied to an apply are left out of later plans, except for restores.
    denials: bool = True


class Axioms(NamedTuple):
    """The assumptions about stores, by their ids in `gc_assets.stores.protocol.AXIOMS`."""

    complete_listing: bool = True
    visible_write: bool = True
    exclusive_create: bool = True
    store_clock: bool = True
    distinct_identity: bool = True
    conditional_change: bool = True
    no_overwrite: bool = True


ALL_AXIOMS: Final = Axioms()


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
    links: int = 0
    aliases: int = 0
    registrations: int = 0
    backups: int = 0
    failures: int = 0
    old_releases: int = 0
    interleaved: bool = False


class Lake(NamedTuple):
    """`needs` are the files of retained commits, even if a run cannot read them. `history` are
    those of expired commits.

    `aliased` are needed files with an address that resolves to no storage. `links` are pairs of a
    needed file and the file that its address resolved to before. Files of a version below
    `claims_from` are older than the claim of the lake.
    """

    needs: frozenset[File] = frozenset()
    history: frozenset[File] = frozenset()
    seen: Seen = "ok"
    # The files that the last run read successfully.
    last_good: frozenset[File] | None = None
    aliased: frozenset[File] = frozenset()
    links: frozenset[tuple[File, File]] = frozenset()
    claims: bool = True
    claims_from: int = 0
    # The needs before the last commit, if a store may return them.
    stale: frozenset[File] | None = None


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
    # Whether the store compared the object of the first row, if it does so in a request of its own.
    is_compared: bool = False


class Backup(NamedTuple):
    """A copy of the state."""

    ledger: tuple[Copy, ...]
    plans: tuple[Plan, ...]
    accepted: tuple[int | None, ...] | None
    published: tuple[int | None, ...] | None


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
    # The files of others, which no lake needs.
    outside: frozenset[File] = frozenset()
    backup: Backup | None = None
    is_from_backup: bool = False
    # Quarantines and purges that the store denied.
    denied: frozenset[Row] = frozenset()


Promise = str
# The name of an event, and the next world or the broken promise.
Step = tuple[str, World | Promise]
NOTHING: Final = frozenset[File]()
DENIED_AGAIN: Final[Promise] = "a denied action is not planned again"


def initial_world(files: int = len(KEYS)) -> World:
    """Return a world in which each key has an old file of its lake and one run was accepted."""
    needs = tuple(frozenset(File(key, 0) for key in range(files) if key % 2 == number) for number in LAKES)
    lakes = tuple(Lake(needs=files, last_good=files) for files in needs)
    old, counts = StoredObject(0, OLD), tuple(1 + len(files) for files in needs)
    return World(stored=(old,) * files, written=(1,) * files, lakes=lakes, accepted=counts, published=counts)


def world_with_others() -> World:
    """Return a world in which key 1 has a file of others, and lake 1 does not exist yet."""
    world = initial_world()
    lakes = (world.lakes[0], Lake(claims=False, last_good=NOTHING))
    counts = (world.accepted[0], 1) if world.accepted else None
    return world._replace(lakes=lakes, accepted=counts, published=counts, outside=frozenset({File(1, 0)}))


def successors(world: World, mode: Mode, rules: Rules, bounds: Bounds, axioms: Axioms = ALL_AXIOMS) -> Iterator[Step]:
    """Yield all possible next events with the next world."""
    protocol = _Protocol(world, mode, rules, bounds, axioms)
    if not bounds.interleaved and (world.run or world.processes):
        yield from protocol.run() if world.run else protocol.processes()
        return
    yield from protocol.writers()
    yield from protocol.other_writers()
    yield from protocol.accidents()
    yield from protocol.run()
    yield from protocol.users()
    yield from protocol.operators()
    yield from protocol.processes()
    yield from protocol.clock()


def find_broken_promise(world: World, mode: Mode, rules: Rules) -> str | None:
    """Return a promise that does not hold in a world, or None."""
    if rules.adoption and world.trash:
        world = _adopt(world)
    if mode == "deferred":
        kept = NOTHING
    else:
        kept = frozenset(file for file, _ in world.trash)
        held = frozenset((copy.file, copy.plan) for copy in world.ledger if copy.is_held)
        # After the state came from a backup, copies that were restored since are absent for the next apply.
        if not world.processes and (held != world.trash if not world.is_from_backup else not held >= world.trash):
            return "the ledger and the trash have the same files"
    if any(not _is_stored(world, file) for file in world.outside):
        return "no file of others is moved"
    missing = [file for lake in world.lakes for file in lake.needs if not _is_stored(world, file)]
    if not kept.issuperset(missing):
        return "no file that a retained commit needs is lost"
    if missing and world.run is None and not world.processes:
        good = tuple[LakeState, ...](("ok", lake.needs) for lake in world.lakes)
        restored = {row.file for row in plan_rows(world, mode, rules, good) if row.phase == "restore"}
        if not restored.issuperset(file for file in missing if world.stored[file.key] is None):
            return "the next run that reads everything restores needed files"
    return None


def _adopt(world: World) -> World:
    """Add the files in the trash that the ledger lacks, as quarantined now."""
    known = {(copy.file, copy.plan) for copy in world.ledger if copy.is_held}
    adopted = [Copy(file, plan, 0) for file, plan in world.trash if (file, plan) not in known]
    if not adopted:
        return world
    names = {(copy.file, copy.plan) for copy in adopted}
    return world._replace(ledger=tuple(sorted((*(copy for copy in world.ledger if (copy.file, copy.plan) not in names), *adopted))))


def _is_stored(world: World, file: File) -> bool:
    stored = world.stored[file.key]
    return stored is not None and stored.version == file.version


def plan_rows(world: World, mode: Mode, rules: Rules, lake_states: tuple[LakeState, ...]) -> Iterator[Row]:
    """Yield the plan rows of a run with these lake states, in the order of execution."""
    return _Protocol(world, mode, rules, Bounds(), ALL_AXIOMS).rows(lake_states)


def count(lake_state: LakeState) -> int | None:
    """Return the number of needed files of a lake: one constant file and those of the model. None
    for a lake that is not configured.
    """
    seen, files = lake_state
    return None if seen == "away" else 0 if seen == "empty" else 1 + len(files)


class _Protocol:
    """The events of one world."""

    def __init__(self, world: World, mode: Mode, rules: Rules, bounds: Bounds, axioms: Axioms) -> None:
        self.world, self.mode, self.rules, self.bounds, self.axioms = world, mode, rules, bounds, axioms
        self.keys = range(len(world.stored))

    def use(self, event: str, **changes: object) -> World:
        used = self.world.used
        return self.world._replace(used=used._replace(**{event: getattr(used, event) + 1}), **changes)

    def may(self, event: str) -> bool:
        return getattr(self.world.used, event) < getattr(self.bounds, event)

    def lake(self, number: int, **changes: object) -> tuple[Lake, ...]:
        lakes = self.world.lakes
        if "needs" in changes and not self.axioms.visible_write:
            changes["stale"] = lakes[number].needs
        changed = lakes[number]._replace(**changes)
        return (changed, lakes[1]) if number == 0 else (lakes[0], changed)

    def writers(self) -> Iterator[Step]:
        world = self.world
        if world.pending is not None:
            number = world.pending.key % 2
            needs = world.lakes[number].needs | {world.pending}
            yield f"commit {world.pending.key}", world._replace(pending=None, lakes=self.lake(number, needs=needs))
            yield "abandon", world._replace(pending=None)
        if not self.may("commits"):
            return
        for key in self.keys:
            version = world.written[key]
            if world.pending is None and self._is_free(key):
                written = _at(world.written, key, version + 1)
                stored = _at(world.stored, key, StoredObject(version, 0 if self.axioms.store_clock else OLD))
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

    def other_writers(self) -> Iterator[Step]:
        """Yield the events of writers that use other addresses of files, and of tables over foreign files."""
        world = self.world
        if self.may("registrations"):
            for number in LAKES:
                if not world.lakes[number].claims:
                    lakes = self.lake(number, claims=True, claims_from=world.written[number])
                    yield f"create lake {number} over files of others", self.use("registrations", lakes=lakes)
        for number in LAKES:
            lake, other = world.lakes[number], world.lakes[1 - number]
            for file in other.needs - lake.needs if self.may("aliases") else ():
                changed = self.lake(number, needs=lake.needs | {file}, aliased=lake.aliased | {file})
                yield f"share {file.key} with {number} by an alias", self.use("aliases", lakes=changed)
            for file in lake.needs if self.may("links") and world.pending is None else ():
                yield from self._relink(number, file)

    def _relink(self, number: int, file: File) -> Iterator[Step]:
        """Copy a file with its time to another key, and re-point the link in its address."""
        world, lake = self.world, self.world.lakes[number]
        for key in self.keys:
            if key != file.key and self._is_free(key) and _is_stored(world, file):
                copied = File(key, world.written[key])
                yield (
                    f"re-point the link of {file.key} to {key}",
                    self.use(
                        "links",
                        stored=_at(world.stored, key, StoredObject(copied.version, OLD)),
                        written=_at(world.written, key, copied.version + 1),
                        lakes=self.lake(number, needs=lake.needs - {file} | {copied}, links=lake.links | {(copied, file)}),
                    ),
                )

    def _is_free(self, key: int) -> bool:
        return self.world.stored[key] is None and self.world.written[key] < len(VERSIONS) and not self._is_needed(key)

    def operators(self) -> Iterator[Step]:
        """Yield the events of people who look after the state."""
        world = self.world
        if world.backup is None and self.may("backups"):
            yield "back up the state", world._replace(backup=Backup(world.ledger, world.plans, world.accepted, world.published))
        elif world.backup is not None and self.may("backups") and not world.processes and world.run is None:
            state = world.backup._asdict()
            restored = self.use("backups", **state, is_from_backup=True)
            yield "restore the state from the backup", _adopt(restored) if self.rules.adoption else restored

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
        return lake.seen, self._resolve(lake) if lake.seen == "ok" else NOTHING

    def _resolve(self, lake: Lake) -> frozenset[File]:
        """Return the needed files as a mark sees them."""
        if not self.rules.current_links:
            before = dict(lake.links)
            return frozenset(before.get(file, file) for file in lake.needs)
        return lake.needs if self.rules.unknown_addresses else lake.needs - lake.aliased

    def _read_stale(self, number: int) -> LakeState | None:
        """Return the state of a lake before its last commit, if a store may return it."""
        lake = self.world.lakes[number]
        return None if lake.stale is None or lake.seen != "ok" else ("ok", lake.stale)

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
            rows = tuple(self.rows(world.run))
            yield "the run plans", DENIED_AGAIN if world.denied.intersection(rows) else self._publish_plan(world.run, rows)
            if self.may("old_releases"):
                old = _Protocol(world, self.mode, self.rules._replace(new_claims=False), self.bounds, self.axioms)
                rows = tuple(old.rows(world.run))
                yield "an old release plans", self._publish_plan(world.run, rows)._replace(used=self.use("old_releases").used)
            for key in () if self.axioms.complete_listing else self.keys:
                unlisted = _Protocol(world._replace(stored=_at(world.stored, key, None)), self.mode, self.rules, self.bounds, self.axioms)
                if any(row.phase == "quarantine" and row.file.key == key for row in self.rows(world.run)):
                    yield f"the run plans without {key}", "a run plans all old files that nothing needs"
                yield f"the run plans without {key}", self._publish_plan(world.run, tuple(unlisted.rows(world.run)))

    def _remember(self, number: int, lake_state: LakeState) -> tuple[Lake, ...]:
        return self.lake(number, last_good=lake_state[1]) if lake_state[0] == "ok" else self.world.lakes

    def _publish_plan(self, lake_states: tuple[LakeState, ...], rows: tuple[Row, ...]) -> World:
        world, counts = self.world, tuple(map(count, lake_states))
        passed = self._passes(world.accepted if self.rules.accepted_runs else world.published, counts)
        plans = world.plans
        if rows and not any(plan.rows == rows and plan.counts == counts and not plan.settled for plan in plans):
            used = (*(plan.number for plan in plans), *(plan for _, plan in world.trash), *(copy.plan for copy in world.ledger))
            number = 1 + max(used, default=0)
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
        denied = self.world.denied if self.rules.denials else frozenset[Row]()
        return (row for row in self._find_actions(lake_states) if row not in denied)

    def _find_actions(self, lake_states: tuple[LakeState, ...]) -> Iterator[Row]:
        world = self.world
        live = frozenset[File]().union(*(files for _, files in lake_states))
        live_keys = {file.key for file in live}
        some_unreadable = any(seen == "unreadable" for seen, _ in lake_states)
        held = [copy for copy in world.ledger if copy.is_held]
        chosen: dict[int, Copy] = {}
        for key in self.keys:
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
        for key in self.keys:
            stored, owner = world.stored[key], lake_states[key % 2]
            if stored is None or key in live_keys or owner[0] in {"away", "unreadable"} or File(key, stored.version) in waiting:
                continue
            if (stored.age >= OLD or not self.rules.grace) and self._is_claimed(File(key, stored.version)):
                yield Row("quarantine", File(key, stored.version), 0)
        if some_unreadable and self.rules.no_purge_while_unreadable:
            return
        for key, copy in chosen.items():
            if key not in live_keys and copy.age >= DUE and lake_states[key % 2][0] != "away":
                yield Row("purge", copy.file, copy.plan)

    def _is_claimed(self, file: File) -> bool:
        lake = self.world.lakes[file.key % 2]
        return lake.claims and (file.version >= lake.claims_from or not self.rules.new_claims)

    def users(self) -> Iterator[Step]:
        world = self.world
        for at, plan in enumerate(world.plans):
            if plan.passed and not plan.approved:
                yield f"approve {plan.number}", world._replace(plans=_at(world.plans, at, plan._replace(approved=True)))
        if self.may("restores") and self._lease_is_free():
            for number in sorted({copy.plan for copy in world.ledger if copy.is_held}):
                rows = tuple(Row("restore", copy.file, copy.plan) for copy in world.ledger if copy.is_held and copy.plan == number)
                process = Process(self._next_token(), number, True, rows, frozenset())
                processes = self._add_process(process)
                used = world.used._replace(restores=world.used.restores + 1, sleeps=world.used.sleeps + (self._holder() is not None))
                yield f"restore {number} by hand", world._replace(processes=processes, token=process.token, used=used)

    def _holder(self) -> Process | None:
        return next((process for process in self.world.processes if process.token == self.world.token), None)

    def _next_token(self) -> int:
        """Return the token of a new lease. Without exclusive creates, two processes can have the same."""
        return self.world.token + (self.axioms.exclusive_create or self._holder() is None)

    def _lease_is_free(self) -> bool:
        return self._holder() is None or self.may("sleeps") or not self.axioms.exclusive_create

    def _add_process(self, process: Process) -> tuple[Process, ...]:
        return (*self.world.processes, process)

    def processes(self) -> Iterator[Step]:
        world = self.world
        if self.may("applies") and self._lease_is_free():
            for plan in world.plans:
                if plan.approved and plan.settled < len(plan.rows):
                    for ahead in (0, 1) if self.may("skews") else (0,):
                        process = Process(self._next_token(), plan.number, False, plan.rows[plan.settled :], None, ahead=ahead)
                        used = world.used._replace(
                            applies=world.used.applies + 1,
                            skews=world.used.skews + ahead,
                            sleeps=world.used.sleeps + (self._holder() is not None),
                        )
                        name = f"apply {plan.number}" + (" by a clock ahead" if ahead else "")
                        yield name, world._replace(processes=self._add_process(process), token=process.token, used=used)
        for at, process in enumerate(world.processes):
            others = world.processes[:at] + world.processes[at + 1 :]
            if self.may("crashes"):
                yield f"process {process.token} dies", self.use("crashes", processes=others)
            if process.needed is None:
                yield f"process {process.token} reads", self._read_lakes(process, others, self._read(len(process.lake_states)))
                stale = self._read_stale(len(process.lake_states))
                if stale is not None and self.rules.fresh_mark:
                    yield f"process {process.token} reads the state before the last commit", self._read_lakes(process, others, stale)
            elif not process.rows:
                yield f"process {process.token} ends", world._replace(processes=others)
            elif self.rules.token_before_each_act and process.token != world.token and not process.is_compared:
                yield f"process {process.token} lost its lease", world._replace(processes=others)
            else:
                row = process.rows[0]
                name = f"process {process.token}: {row.phase} {row.file.key}"
                if not self.axioms.conditional_change and not process.is_compared and self._is_planned_object(row):
                    yield f"{name}: compare", world._replace(processes=_sort(*others, process._replace(is_compared=True)))
                    continue
                yield name, self._execute(process, row, others)
                if self.may("failures"):
                    # A transient failure ends the apply and the next one continues. A permanent one is an outcome.
                    yield f"{name} fails for now", self.use("failures", processes=others)
                    denied = process._replace(rows=process.rows[1:])
                    plans = self._settle(world.plans, process)
                    rows = world.denied if row.phase == "restore" else world.denied | {row}
                    yield f"{name} is denied", self.use("failures", processes=_sort(*others, denied), plans=plans, denied=rows)

    def _is_planned_object(self, row: Row) -> bool:
        stored = self.world.stored[row.file.key]
        return row.phase == "quarantine" and stored is not None and stored.version == row.file.version

    def _settle(self, plans: tuple[Plan, ...], process: Process) -> tuple[Plan, ...]:
        """Record that the first row of a process has an outcome."""
        for at, plan in enumerate(plans):
            if plan.number == process.plan:
                done = len(plan.rows) if process.by_hand else max(plan.settled, len(plan.rows) - len(process.rows) + 1)
                plans = _at(plans, at, plan._replace(settled=done))
        return plans

    def _read_lakes(self, process: Process, others: tuple[Process, ...], lake_state: LakeState | None) -> World:
        world = self.world
        if not self.rules.fresh_mark:
            return world._replace(processes=_sort(*others, process._replace(needed=frozenset(), held=self._quarantined_files())))
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
        following = process._replace(rows=process.rows[1:], is_compared=False)
        return changed._replace(processes=_sort(*others, following), plans=self._settle(changed.plans, process))

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
            if (stored is not None and self.axioms.no_overwrite) or (row.file, row.source) not in world.trash:
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
        if stored is None or (self.rules.own_rules and not self._is_claimed(File(key, stored.version))):
            return world
        is_compared = process.is_compared or not self.axioms.distinct_identity or not self.rules.same_object
        if stored.version != row.file.version and not is_compared:
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
