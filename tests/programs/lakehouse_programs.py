"""Programs over whole runs: real stages on a real disk, over a store that lies.

A seed determines a program. Its writers commit, share files, branch, drop and return to expired
commits. The programs of a group share two lakes and one storage. Runs plan, users approve and
restore, time passes, and the store lies. A program records what it wrote, so the needed files are
known without the collector. A violation is an `AssertionError` with the promise and all events.

The programs make the assumptions of `docs/safety.md`. A writer commits within the grace period,
shares only files that are still needed, and returns only to commits that were not purged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused, GcError
from gc_assets.core.phases import DONE, FAILED, PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.local.kind import LOCAL
from gc_assets.stores.store import SCHEMES
from tests.lakes import toy
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago
from tests.stores.faulty_store import FAULT_ODDS, Fault, Faults, with_faults

KEEP: Final = timedelta(days=1)
SETTINGS: Final[Mapping[str, Any]] = {
    "grace": timedelta(days=1),
    "quarantine_days": 2,
    "gates": {"max_live_drop": 1.0, "max_delete_share": 1.0},
}
# Longer than the grace period. Two of them are longer than the quarantine.
DAY: Final = timedelta(hours=25)
LONG_AGO: Final = days_ago(300)
LAKES: Final = ("lake0", "lake1")
WRITES: Final = {"commit": 4, "share": 3, "branch": 2, "drop": 3, "go back": 4, "write again": 2, "litter": 1}
# Failures of a store, and those of Spark after a failure in an executor.
FAILURES: Final = (GcError, OSError, PySparkException)
Needs = dict[Path, bytes]


@dataclass(frozen=True)
class Commit:
    """A commit as its writer records it, with the content of all needed files, including its
    manifest.
    """

    lake: str
    name: str
    parent: str | None
    at: datetime
    needs: Needs


@dataclass
class Programs:
    """Programs that share a lakehouse.

    `refs` are the heads by lake and branch. `plans` can still be applied. `events` counts all
    events.
    """

    house: Lakehouse
    chance: random.Random
    events: Counter[str]
    lies: Faults
    commits: dict[str, Commit] = field(default_factory=dict[str, Commit])
    refs: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    plans: list[PlanHeader] = field(default_factory=list[PlanHeader])
    # Plans whose restore failed.
    to_repeat: list[PlanHeader] = field(default_factory=list[PlanHeader])
    story: list[str] = field(default_factory=list[str])

    @property
    def moves(self) -> bool:
        return self.house.settings["quarantine"] == "trash"

    def manifest(self, commit: Commit) -> Path:
        return self.house.warehouse / commit.lake / "manifests" / f"{commit.name}.json"

    def needed_files(self) -> Needs:
        """Return the files of today's retained commits: heads, and ancestors that the policy
        retains.
        """
        oldest = self.house.run_context().as_of - KEEP
        retained = set(self.refs.values())
        for head in self.refs.values():
            at: str | None = head
            while at is not None:
                if self.commits[at].at >= oldest:
                    retained.add(at)
                at = self.commits[at].parent
        return {path: content for name in retained for path, content in self.commits[name].needs.items()}

    def set_lies(self, lies: frozenset[Fault]) -> None:
        """Set the lies of the next operation. The clock of the store stays the same."""
        self.lies = Faults(self.lies.seed, len(self.story), lies | (self.lies.enabled & {"skew"}), self.house.now)

    def run(self, lies: frozenset[Fault]) -> None:
        self.set_lies(lies)
        try:
            header = self.house.plan()
        except FAILURES as error:
            self.note(f"a run with lies {sorted(lies)} was refused: {_last_line(error)}", "refused runs")
            self.promise("a run over a truthful store makes a plan", bool(lies), error)
            return
        rows = self.house.rows("deletion_plan")
        gates = self.house.failed_gates(header)
        self.note(f"a run with lies {sorted(lies)}: {dict(Counter(row['action'] for row in rows))}, failed gates {sorted(gates)}", "runs")
        self.promise("a run over a truthful store passes its gates", bool(lies) or gates <= {"unfinished_apply"}, gates)
        twice = [row for row, count in Counter((row["action"], row["key"], row["source_plan_id"]) for row in rows).items() if count > 1]
        self.promise("a plan has one row per file", not twice, twice)
        taken = {row["key"] for row in rows if row["action"] != RESTORE} & set(map(self.house.key, self.needed_files()))
        self.promise("no plan deletes a file that a retained commit needs", not (self.moves and taken), taken)
        if header.has_work and not gates:
            self.house.approve(header)
            self.plans = [*(plan for plan in self.plans if plan.plan_id != header.plan_id), header]

    def apply(self, header: PlanHeader, lies: frozenset[Fault]) -> None:
        self.set_lies(lies)
        before = {path for path, content in self.needed_files().items() if exists({path: content})}
        self.note(f"apply {header.plan_id[:8]} with lies {sorted(lies)}")
        try:
            applied = self.house.apply(header)
        except FAILURES as error:
            self.note(f"failed: {_last_line(error)}", "refused applies" if isinstance(error, GateRefused) else "failed applies")
        else:
            self.events["applies"] += 1
            if applied.published is not None:
                self.check_log(header, self.house.rows_of(applied.published))
        gone = {self.house.key(path) for path in before if not path.exists()}
        self.promise("no apply deletes a file that a retained commit needs", not gone, gone)

    def check_log(self, header: PlanHeader, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that every planned row has one outcome, and that the trash has the quarantined
        files.
        """
        acts = Counter((row["phase"], row["key"], row["source_plan_id"]) for row in rows)
        self.promise("every planned row has one outcome", set(acts.values()) <= {1} and len(rows) == header.rows, acts)
        done = Counter(row["phase"] for row in rows if row["outcome"] == DONE)
        for phase in (RESTORE, QUARANTINE, PURGE):
            self.events[f"files of a {phase}"] += done[phase]
        if self.moves and not any(row["outcome"] == FAILED for row in rows):
            ledger, held = self.ledger(header.plan_id), self.house.trash(header)
            self.promise("the trash of a plan has the files of its ledger", set(ledger) == held, set(ledger) ^ held)

    def restore(self, header: PlanHeader, lies: frozenset[Fault]) -> None:
        self.set_lies(lies)
        self.note(f"restore {header.plan_id[:8]} by hand with lies {sorted(lies)}", "restores by hand")
        try:
            self.house.restore(header.plan_id)
        except FAILURES as error:
            self.note(f"failed: {_last_line(error)}", "failed restores")
            self.to_repeat.append(header)

    def unfinished_plans(self) -> list[PlanHeader]:
        """Return the plans that can still be applied or must be finished."""
        found = [find_plan(self.house.config, plan.plan_id) for plan in self.plans]
        return [plan.header for plan in found if plan.finished is None and plan.restored_at is None]

    def note(self, event: str, kind: str | None = None) -> None:
        self.story.append(event)
        if kind is not None:
            self.events[kind] += 1

    def promise(self, rule: str, holds: bool, found: object) -> None:
        assert holds, "\n".join((f"{self.lies.seed}: {rule}: {found}", *(f"  {event}" for event in self.story)))

    def ledger(self, plan_id: str | None = None) -> Counter[str]:
        """Return the quarantined keys in the ledger, of one plan or of all."""
        rows = read_quarantine(self.house.run_context().state, STORAGE).to_pylist()
        return Counter(row["key"] for row in rows if plan_id in {None, row["source_plan_id"]})

    def in_trash(self) -> list[tuple[str, str, Path]]:
        """Return plan id, key and path of the files in the trash."""
        trash = self.house.warehouse / ".gc-assets" / "trash"
        files = [(path.relative_to(trash).parts, path) for path in trash.rglob("*") if path.is_file()]
        return [(parts[0], "/".join(parts[1:]), path) for parts, path in files]

    def find_purged(self, needs: Needs) -> set[str]:
        """Return the keys of files whose content is neither in its location nor in the trash."""
        away = {self.house.key(path): content for path, content in needs.items() if not exists({path: content})}
        held = {(key, path.read_bytes()) for _, key, path in self.in_trash() if key in away}
        return {key for key, content in away.items() if (key, content) not in held}

    def check_nothing_is_lost(self) -> None:
        lost = self.find_purged(self.needed_files())
        self.promise("no file that a retained commit needs is purged", not lost, lost)

    def check_all_is_restored(self) -> None:
        """Finish all applies and restores over a truthful store, and check that a run restores all
        needed files.
        """
        self.house.now += DAY
        while self.to_repeat:
            self.restore(self.to_repeat.pop(), frozenset())
        for header in self.unfinished_plans():
            self.apply(header, frozenset())
        self.run(frozenset())
        for header in self.unfinished_plans()[-1:]:
            self.apply(header, frozenset())
        away = [self.house.key(path) for path, content in self.needed_files().items() if not exists({path: content})]
        self.promise("a run restores all needed files", not away, away)
        if self.moves:
            trash = Counter(key for _, key, _ in self.in_trash())
            ledger = self.ledger()
            self.promise("the ledger and the trash have the same files", ledger == trash, (ledger - trash, trash - ledger))


@dataclass
class Writers:
    """The writers of one program, with their own branches and files in both lakes."""

    programs: Programs
    seed: int
    chance: random.Random
    file_count: int = 0

    def begin(self) -> None:
        for lake in LAKES:
            files = dict([self.fresh(lake), self.fresh(lake)])
            for path, content in files.items():
                self.write(path, content, LONG_AGO)
            self.commit(lake, f"p{self.seed}", None, files, LONG_AGO)

    def step(self, verb: str | None = None) -> None:
        verb, lake = verb or self.chance.choices(list(WRITES), list(WRITES.values()))[0], self.chance.choice(LAKES)
        mine = f"p{self.seed}"
        branch = self.chance.choice(sorted(name for of, name in self.programs.refs if of == lake and name.split(".")[0] == mine))
        head = self.programs.commits[self.programs.refs[lake, branch]]
        self.programs.note(f"{verb} {lake} {branch}", "writes")
        if verb in {"commit", "share", "write again"}:
            data = {path: content for path, content in head.needs.items() if path.parent.name == "data"}
            files = {path: content for path, content in data.items() if self.chance.random() < 0.5}
            if verb == "share":
                needed = self.programs.needed_files()
                others = sorted(path for path in needed if path.parent.name == "data")
                files |= {path: needed[path] for path in self.chance.sample(others, min(2, len(others)))}
            else:
                path, content = self.fresh(lake)
                path = (self.find_unused_name(lake) if verb == "write again" else None) or path
                self.write(path, content)
                files[path] = content
            if exists(files):
                self.commit(lake, branch, head.name, files)
        elif verb == "branch":
            self.point(lake, f"{mine}.{self.file_count}", head.name)
            self.file_count += 1
        elif verb == "drop" and branch != mine:
            (self.programs.house.warehouse / lake / "branches" / f"{branch}.json").unlink()
            del self.programs.refs[lake, branch]
        elif verb == "go back":
            self.go_back(lake, branch)
        elif verb == "litter":
            self.write(*self.fresh(lake))

    def go_back(self, lake: str, branch: str) -> None:
        """Point a branch to a commit whose files exist or are in quarantine. Write its manifest
        again if it is missing.
        """
        own = [commit for commit in self.programs.commits.values() if commit.lake == lake and commit.name.startswith(f"p{self.seed}-")]
        held = [commit for commit in own if not self.programs.find_purged(commit.needs) and is_restorable(commit.needs)]
        needed = self.programs.needed_files().keys()
        forgotten = [commit for commit in held if not commit.needs.keys() <= needed]
        commit = self.chance.choice(forgotten or held)
        path = self.programs.manifest(commit)
        if not path.exists():
            self.write(path, commit.needs[path])
        self.point(lake, branch, commit.name)

    def fresh(self, lake: str) -> tuple[Path, bytes]:
        self.file_count += 1
        path = self.programs.house.warehouse / lake / "data" / f"p{self.seed}-f{self.file_count}"
        return path, b"%d." % self.file_count * self.chance.randint(1, 40)

    def find_unused_name(self, lake: str) -> Path | None:
        """Return a name that was used before and that no restorable commit references."""
        own = self.programs.house.warehouse / lake / "data"
        referenced = {path for commit in self.programs.commits.values() if self.programs.manifest(commit).exists() for path in commit.needs}
        earlier = {path for commit in self.programs.commits.values() for path in commit.needs if path.parent == own}
        return min((path for path in earlier - referenced if not path.exists()), default=None)

    def write(self, path: Path, content: bytes, at: datetime | None = None) -> None:
        """Write a file. The store dates it by its own clock."""
        toy.put(path, content, (at or self.programs.house.now) + self.programs.lies.skew)

    def commit(self, lake: str, branch: str, parent: str | None, files: Needs, at: datetime | None = None) -> None:
        self.file_count += 1
        programs, name, at = self.programs, f"p{self.seed}-c{self.file_count}", at or self.programs.house.now
        sizes = {f"file://{path}": len(content) for path, content in files.items()}
        toy.write_manifest(programs.house.warehouse / lake, name, parent, at, sizes, branch)
        path = programs.house.warehouse / lake / "manifests" / f"{name}.json"
        programs.commits[name] = Commit(lake, name, parent, at, {**files, path: path.read_bytes()})
        programs.refs[lake, branch] = name

    def point(self, lake: str, branch: str, head: str) -> None:
        self.write(self.programs.house.warehouse / lake / "branches" / f"{branch}.json", b'{"head": "%s"}' % head.encode())
        self.programs.refs[lake, branch] = head


def exists(needs: Needs) -> bool:
    return all(path.exists() and path.read_bytes() == content for path, content in needs.items())


def is_restorable(needs: Needs) -> bool:
    """Return whether no other object has one of the names."""
    return all(exists({path: content}) or not path.exists() for path, content in needs.items())


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()[:200] if lines else ''}"


@contextmanager
def use_lying_store(lies: Callable[[], Faults]) -> Iterator[None]:
    """Use these lies for the store of local disks, and register the toy kind of lake."""
    SCHEMES[LOCAL.scheme], KINDS["toy"] = with_faults(LOCAL, lies), toy.KIND
    try:
        yield
    finally:
        SCHEMES[LOCAL.scheme] = LOCAL
        del KINDS["toy"]


def play(spark: SparkSession, root: Path, seeds: Sequence[int], days: int = 3) -> Counter[str]:
    """Execute the programs of these seeds in one lakehouse.

    Returns:
        The number of events of each kind.

    Raises:
        AssertionError: A promise is broken.
    """
    seed = f"programs {seeds[0]} to {seeds[-1]}"
    chance = random.Random(seed)
    house = Lakehouse(spark, root, settings={**SETTINGS, "quarantine": chance.choice(("trash", "trash", "deferred"))})
    skew = frozenset[Fault]({"skew"} if chance.random() < 0.5 else ())
    programs = Programs(house, chance, Counter(), Faults(seed, 0, skew, NOW))
    with use_lying_store(lambda: programs.lies):
        writers = [Writers(programs, number, random.Random(f"program {number}")) for number in seeds]
        for each in writers:
            each.begin()
        for lake in LAKES:
            location = f"file://{house.warehouse / lake}"
            house.lakes.append(toy.ToyConfig.model_validate({"name": lake, "kind": "toy", "location": location, "keep": KEEP}))
        for _ in range(days):
            _pass_a_day(programs, writers)
        programs.check_all_is_restored()
        programs.check_nothing_is_lost()
    programs.events["programs"] = len(seeds)
    return programs.events


def _pass_a_day(programs: Programs, writers: Sequence[Writers]) -> None:
    """Let writers write, run, apply, and sometimes restore. Half of the operations are over lies."""
    chance = programs.chance

    def writes(most: int) -> None:
        for each in writers:
            for _ in range(each.chance.randint(0, most)):
                each.step()

    def draw_lies() -> frozenset[Fault]:
        lies = frozenset[Fault](lie for lie in FAULT_ODDS if lie != "skew" and chance.random() < 0.3)
        return lies if chance.random() < 0.7 else frozenset()

    writes(4)
    programs.house.now += timedelta(minutes=chance.choice((0, 5, 120)))
    programs.run(draw_lies())
    programs.check_nothing_is_lost()
    for header in programs.unfinished_plans()[-2:]:
        if chance.random() < 0.6:
            for each in writers:
                each.step("go back" if each.chance.random() < 0.5 else None)
        if chance.random() < 0.9:
            programs.apply(header, draw_lies())
            programs.check_nothing_is_lost()
    if programs.plans and chance.random() < 0.15:
        programs.restore(chance.choice(programs.plans), draw_lies())
        programs.check_nothing_is_lost()
    programs.house.now += DAY * chance.choice((1, 1, 2))
