"""Programs over whole nights: real stages on a real disk, over a store that lies.

A seed draws a program: its writers commit, share files, branch, drop and go back. Programs that are played beside each other share two
lakes and one storage, where nights plan, people approve and restore, time passes, and the store lies. A program knows what it wrote, so
what retained commits need is known without asking the collector. A breach is an `AssertionError` with the promise and all that was played.

What is taken for granted, as `docs/safety.md` does: a writer commits within the grace period, takes up only what is still needed, and goes
back only to what was not purged.
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
from tests.stores.lying import LIES, Lie, Lies, lying

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
# A failure of a store, and what Spark makes of one in an executor.
FAILURES: Final = (GcError, OSError, PySparkException)
Needs = dict[Path, bytes]


@dataclass(frozen=True)
class Commit:
    """A commit by the books of its writer, with the bytes of all that it needs, its own manifest among them."""

    lake: str
    name: str
    parent: str | None
    at: datetime
    needs: Needs


@dataclass
class Played:
    """Programs in their house. `refs` are heads by lake and branch. `plans` may still be applied. `events` counts what happened."""

    house: Lakehouse
    chance: random.Random
    events: Counter[str]
    lies: Lies
    commits: dict[str, Commit] = field(default_factory=dict[str, Commit])
    refs: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    plans: list[PlanHeader] = field(default_factory=list[PlanHeader])
    # Plans whose restore died.
    to_repeat: list[PlanHeader] = field(default_factory=list[PlanHeader])
    story: list[str] = field(default_factory=list[str])

    @property
    def moves(self) -> bool:
        return self.house.settings["quarantine"] == "trash"

    def manifest(self, commit: Commit) -> Path:
        return self.house.warehouse / commit.lake / "manifests" / f"{commit.name}.json"

    def needed(self) -> Needs:
        """What the retained commits of today need: heads, and what a branch reaches that is not older than the policy says."""
        oldest = self.house.run_context().as_of - KEEP
        retained = set(self.refs.values())
        for head in self.refs.values():
            at: str | None = head
            while at is not None:
                if self.commits[at].at >= oldest:
                    retained.add(at)
                at = self.commits[at].parent
        return {path: content for name in retained for path, content in self.commits[name].needs.items()}

    def lie(self, told: frozenset[Lie]) -> None:
        """New lies for what happens next. The clock of the store is always the same one."""
        self.lies = Lies(self.lies.seed, len(self.story), told | (self.lies.told & {"skew"}), self.house.now)

    def night(self, told: frozenset[Lie]) -> None:
        self.lie(told)
        try:
            header = self.house.plan()
        except FAILURES as error:
            self.note(f"a night telling {sorted(told)} was refused: {_last_line(error)}", "nights refused")
            self.promise("a night over a store that tells the truth makes a plan", bool(told), error)
            return
        rows = self.house.rows("deletion_plan")
        gates = self.house.failed_gates(header)
        self.note(f"a night telling {sorted(told)}: {dict(Counter(row['action'] for row in rows))}, failed gates {sorted(gates)}", "nights")
        self.promise("a night over a store that tells the truth passes its gates", bool(told) or gates <= {"unfinished_apply"}, gates)
        twice = [row for row, count in Counter((row["action"], row["key"], row["source_plan_id"]) for row in rows).items() if count > 1]
        self.promise("a plan names a file once", not twice, twice)
        taken = {row["key"] for row in rows if row["action"] != RESTORE} & set(map(self.house.key, self.needed()))
        self.promise("no plan takes what a retained commit needs", not (self.moves and taken), taken)
        if header.has_work and not gates:
            self.house.approve(header)
            self.plans = [*(plan for plan in self.plans if plan.plan_id != header.plan_id), header]

    def apply(self, header: PlanHeader, told: frozenset[Lie]) -> None:
        self.lie(told)
        before = {path for path, content in self.needed().items() if stands({path: content})}
        self.note(f"apply {header.plan_id[:8]} telling {sorted(told)}")
        try:
            applied = self.house.apply(header)
        except FAILURES as error:
            self.note(f"it ended: {_last_line(error)}", "applies refused" if isinstance(error, GateRefused) else "applies that died")
        else:
            self.events["applies"] += 1
            if applied.published is not None:
                self.judge_log(header, self.house.rows_of(applied.published))
        gone = {self.house.key(path) for path in before if not path.exists()}
        self.promise("no apply takes what a retained commit needs", not gone, gone)

    def judge_log(self, header: PlanHeader, rows: Sequence[Mapping[str, Any]]) -> None:
        """Every planned row has one outcome, and what is called moved is moved."""
        acts = Counter((row["phase"], row["key"], row["source_plan_id"]) for row in rows)
        self.promise("every planned row has one outcome", set(acts.values()) <= {1} and len(rows) == header.rows, acts)
        done = Counter(row["phase"] for row in rows if row["outcome"] == DONE)
        for phase in (RESTORE, QUARANTINE, PURGE):
            self.events[f"files of a {phase}"] += done[phase]
        if self.moves and not any(row["outcome"] == FAILED for row in rows):
            ledger, held = self.ledger(header.plan_id), self.house.trash(header)
            self.promise("what the ledger calls quarantined lies in the trash of its plan", set(ledger) == held, set(ledger) ^ held)

    def restore(self, header: PlanHeader, told: frozenset[Lie]) -> None:
        self.lie(told)
        self.note(f"restore {header.plan_id[:8]} by hand telling {sorted(told)}", "restores by hand")
        try:
            self.house.restore(header.plan_id)
        except FAILURES as error:
            self.note(f"it ended: {_last_line(error)}", "restores that died")
            self.to_repeat.append(header)

    def unfinished(self) -> list[PlanHeader]:
        """Plans that can still be applied, or that were begun and must be ended."""
        found = [find_plan(self.house.config, plan.plan_id) for plan in self.plans]
        return [plan.header for plan in found if plan.finished is None and plan.restored_at is None]

    def note(self, event: str, counted: str | None = None) -> None:
        self.story.append(event)
        if counted is not None:
            self.events[counted] += 1

    def promise(self, words: str, holds: bool, found: object) -> None:
        assert holds, "\n".join((f"{self.lies.seed}: {words}: {found}", *(f"  {event}" for event in self.story)))

    def ledger(self, plan_id: str | None = None) -> Counter[str]:
        """The keys that the ledger calls quarantined, by one plan or by any."""
        rows = read_quarantine(self.house.run_context().state, STORAGE).to_pylist()
        return Counter(row["key"] for row in rows if plan_id in {None, row["source_plan_id"]})

    def in_trash(self) -> list[tuple[str, str, Path]]:
        """What lies in the trash: plan id, key, place."""
        trash = self.house.warehouse / ".gc-assets" / "trash"
        files = [(path.relative_to(trash).parts, path) for path in trash.rglob("*") if path.is_file()]
        return [(parts[0], "/".join(parts[1:]), path) for parts, path in files]

    def purged(self, needs: Needs) -> set[str]:
        """Keys of what lies neither in its place nor in the trash with its own bytes."""
        away = {self.house.key(path): content for path, content in needs.items() if not stands({path: content})}
        held = {(key, path.read_bytes()) for _, key, path in self.in_trash() if key in away}
        return {key for key, content in away.items() if (key, content) not in held}

    def nothing_is_lost(self) -> None:
        lost = self.purged(self.needed())
        self.promise("no file that a retained commit needs is purged", not lost, lost)

    def all_comes_back(self) -> None:
        """Over a store that tells the truth, what was begun is ended, restores too, and a night puts back all that is needed."""
        self.house.now += DAY
        while self.to_repeat:
            self.restore(self.to_repeat.pop(), frozenset())
        for header in self.unfinished():
            self.apply(header, frozenset())
        self.night(frozenset())
        for header in self.unfinished()[-1:]:
            self.apply(header, frozenset())
        away = [self.house.key(path) for path, content in self.needed().items() if not stands({path: content})]
        self.promise("what is needed again comes back", not away, away)
        if self.moves:
            trash = Counter(key for _, key, _ in self.in_trash())
            ledger = self.ledger()
            self.promise("what the ledger calls quarantined is what lies in the trash", ledger == trash, (ledger - trash, trash - ledger))


@dataclass
class Writers:
    """The writers of one program: its own branches and files in both lakes."""

    played: Played
    seed: int
    chance: random.Random
    made: int = 0

    def begin(self) -> None:
        for lake in LAKES:
            files = dict([self.fresh(lake), self.fresh(lake)])
            for path, content in files.items():
                self.write(path, content, LONG_AGO)
            self.commit(lake, f"p{self.seed}", None, files, LONG_AGO)

    def step(self, verb: str | None = None) -> None:
        verb, lake = verb or self.chance.choices(list(WRITES), list(WRITES.values()))[0], self.chance.choice(LAKES)
        mine = f"p{self.seed}"
        branch = self.chance.choice(sorted(name for of, name in self.played.refs if of == lake and name.split(".")[0] == mine))
        head = self.played.commits[self.played.refs[lake, branch]]
        self.played.note(f"{verb} {lake} {branch}", "writes")
        if verb in {"commit", "share", "write again"}:
            data = {path: content for path, content in head.needs.items() if path.parent.name == "data"}
            files = {path: content for path, content in data.items() if self.chance.random() < 0.5}
            if verb == "share":
                needed = self.played.needed()
                others = sorted(path for path in needed if path.parent.name == "data")
                files |= {path: needed[path] for path in self.chance.sample(others, min(2, len(others)))}
            else:
                path, content = self.fresh(lake)
                path = (self.name_again(lake) if verb == "write again" else None) or path
                self.write(path, content)
                files[path] = content
            if stands(files):
                self.commit(lake, branch, head.name, files)
        elif verb == "branch":
            self.point(lake, f"{mine}.{self.made}", head.name)
            self.made += 1
        elif verb == "drop" and branch != mine:
            (self.played.house.warehouse / lake / "branches" / f"{branch}.json").unlink()
            del self.played.refs[lake, branch]
        elif verb == "go back":
            self.go_back(lake, branch)
        elif verb == "litter":
            self.write(*self.fresh(lake))

    def go_back(self, lake: str, branch: str) -> None:
        """Points a branch at a commit that can still be had, in quarantine or not. Its manifest is written again where it is away."""
        own = [commit for commit in self.played.commits.values() if commit.lake == lake and commit.name.startswith(f"p{self.seed}-")]
        held = [commit for commit in own if not self.played.purged(commit.needs) and has_room(commit.needs)]
        needed = self.played.needed().keys()
        forgotten = [commit for commit in held if not commit.needs.keys() <= needed]
        commit = self.chance.choice(forgotten or held)
        path = self.played.manifest(commit)
        if not path.exists():
            self.write(path, commit.needs[path])
        self.point(lake, branch, commit.name)

    def fresh(self, lake: str) -> tuple[Path, bytes]:
        self.made += 1
        path = self.played.house.warehouse / lake / "data" / f"p{self.seed}-f{self.made}"
        return path, b"%d." % self.made * self.chance.randint(1, 40)

    def name_again(self, lake: str) -> Path | None:
        """A name that was taken once, and of which no commit speaks that anybody could go back to."""
        own = self.played.house.warehouse / lake / "data"
        spoken = {path for commit in self.played.commits.values() if self.played.manifest(commit).exists() for path in commit.needs}
        once = {path for commit in self.played.commits.values() for path in commit.needs if path.parent == own}
        return min((path for path in once - spoken if not path.exists()), default=None)

    def write(self, path: Path, content: bytes, at: datetime | None = None) -> None:
        """The store dates what is written by its own clock."""
        toy.put(path, content, (at or self.played.house.now) + self.played.lies.skew)

    def commit(self, lake: str, branch: str, parent: str | None, files: Needs, at: datetime | None = None) -> None:
        self.made += 1
        played, name, at = self.played, f"p{self.seed}-c{self.made}", at or self.played.house.now
        sizes = {f"file://{path}": len(content) for path, content in files.items()}
        toy.write_manifest(played.house.warehouse / lake, name, parent, at, sizes, branch)
        path = played.house.warehouse / lake / "manifests" / f"{name}.json"
        played.commits[name] = Commit(lake, name, parent, at, {**files, path: path.read_bytes()})
        played.refs[lake, branch] = name

    def point(self, lake: str, branch: str, head: str) -> None:
        self.write(self.played.house.warehouse / lake / "branches" / f"{branch}.json", b'{"head": "%s"}' % head.encode())
        self.played.refs[lake, branch] = head


def stands(needs: Needs) -> bool:
    return all(path.exists() and path.read_bytes() == content for path, content in needs.items())


def has_room(needs: Needs) -> bool:
    """Says whether none of the names is another object's by now."""
    return all(stands({path: content}) or not path.exists() for path, content in needs.items())


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()[:200] if lines else ''}"


@contextmanager
def over_a_lying_store(lies: Callable[[], Lies]) -> Iterator[None]:
    """The store of local disks tells these lies meanwhile, and the toy kind of lake is known."""
    SCHEMES[LOCAL.scheme], KINDS["toy"] = lying(LOCAL, lies), toy.KIND
    try:
        yield
    finally:
        SCHEMES[LOCAL.scheme] = LOCAL
        del KINDS["toy"]


def play(spark: SparkSession, root: Path, seeds: Sequence[int], days: int = 3) -> Counter[str]:
    """Plays the programs of these seeds beside each other, and returns what happened how often.

    Raises `AssertionError` where a promise breaks.
    """
    told = f"programs {seeds[0]} to {seeds[-1]}"
    chance = random.Random(told)
    house = Lakehouse(spark, root, settings={**SETTINGS, "quarantine": chance.choice(("trash", "trash", "deferred"))})
    skew = frozenset[Lie]({"skew"} if chance.random() < 0.5 else ())
    played = Played(house, chance, Counter(), Lies(told, 0, skew, NOW))
    with over_a_lying_store(lambda: played.lies):
        writers = [Writers(played, seed, random.Random(f"program {seed}")) for seed in seeds]
        for each in writers:
            each.begin()
        for lake in LAKES:
            location = f"file://{house.warehouse / lake}"
            house.lakes.append(toy.ToyConfig.model_validate({"name": lake, "kind": "toy", "location": location, "keep": KEEP}))
        for _ in range(days):
            _pass_a_day(played, writers)
        played.all_comes_back()
        played.nothing_is_lost()
    played.events["programs"] = len(seeds)
    return played.events


def _pass_a_day(played: Played, writers: Sequence[Writers]) -> None:
    """Writers, a night, what it planned, and now and then a restore. Half of it is told lies."""
    chance = played.chance

    def writes(most: int) -> None:
        for each in writers:
            for _ in range(each.chance.randint(0, most)):
                each.step()

    def told() -> frozenset[Lie]:
        lies = frozenset[Lie](lie for lie in LIES if lie != "skew" and chance.random() < 0.3)
        return lies if chance.random() < 0.7 else frozenset()

    writes(4)
    played.house.now += timedelta(minutes=chance.choice((0, 5, 120)))
    played.night(told())
    played.nothing_is_lost()
    for header in played.unfinished()[-2:]:
        if chance.random() < 0.6:
            for each in writers:
                each.step("go back" if each.chance.random() < 0.5 else None)
        if chance.random() < 0.9:
            played.apply(header, told())
            played.nothing_is_lost()
    if played.plans and chance.random() < 0.15:
        played.restore(chance.choice(played.plans), told())
        played.nothing_is_lost()
    played.house.now += DAY * chance.choice((1, 1, 2))
