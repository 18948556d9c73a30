"""The stages behave like the model: random traces, executed with real lakes, runs, plans and
restores.

`GC_ASSETS_TEST_TRACES=100` executes this number of traces per mode instead of one. `DEPTH=all`
includes both modes. The name of each test contains its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import LakeConfig
from gc_assets.core.errors import GateRefused
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.records.ledger import read_quarantine
from tests.depth import select_cases
from tests.lakes import toy
from tests.model.test_protocol import MODES
from tests.model.world import KEYS, LAKES, VERSIONS, Bounds, File, Mode, Rules, World, count, initial_world, plan_rows, successors
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark

TRACES: Final = int(os.environ.get("GC_ASSETS_TEST_TRACES", "1"))
BOUNDS: Final = Bounds(commits=6, accidents=1, runs=4, applies=3, restores=1)
# Longer than the grace period. Two of them are longer than the quarantine.
DAY: Final = timedelta(hours=25)
LONG_AGO: Final = days_ago(300)
# Weights of events, by the start of their name.
LIKELY: Final = {"apply": 6, "approve": 6, "a run": 4, "a day": 3, "drop": 3, "go back": 4, "write": 2, "share": 2, "recover": 2}
# Other tests cover failures and delays. A run with an unreadable lake has its own tests.
EXCLUDED: Final = ("unreadable", "abandon")


def content(file: File) -> bytes:
    """Return the bytes of a file. Each version has its own size."""
    return b"%d" % file.key * (10 + file.version)


@dataclass
class DiskWorld:
    """The world of a model as lakes on a disk. `headers` are the plans by their number in the
    model.
    """

    house: Lakehouse
    mode: Mode
    headers: dict[int, PlanHeader] = field(default_factory=dict)
    heads: int = 0
    last_run: datetime | None = None

    def at(self, lake: int) -> Path:
        return self.house.warehouse / f"lake{lake}"

    def data(self, key: int) -> Path:
        return self.at(key) / "data" / f"file{key}"

    def begin(self, world: World) -> None:
        for number in LAKES:
            toy.put(self.at(number) / "data" / "base", b"base", LONG_AGO)
            toy.put(self.data(number), content(File(number, 0)), LONG_AGO)
            self.commit(world, number)
        self.configure(world)
        self.plan()
        self.house.now += DAY

    def plan(self) -> PlanHeader:
        self.last_run = self.house.now
        return self.house.plan()

    def commit(self, world: World, number: int) -> None:
        """Commit what the lake needs. The branches of a lake that reads as empty are hidden."""
        self.heads += 1
        sizes = {f"file://{self.data(file.key)}": len(content(file)) for file in world.lakes[number].needs}
        branches, hidden = self.at(number) / "branches", self.at(number) / "hidden"
        if hidden.exists():
            hidden.rename(branches)
        toy.write_manifest(self.at(number), f"head{self.heads}", None, LONG_AGO, {"base": 4, **sizes}, "main")
        if world.lakes[number].seen == "empty":
            branches.rename(hidden)

    def configure(self, world: World) -> None:
        self.house.lakes = [self.config(number) for number in LAKES if world.lakes[number].seen != "away"]

    def config(self, number: int) -> LakeConfig:
        return toy.ToyConfig(name=f"lake{number}", kind="toy", location=f"file://{self.at(number)}", keep=timedelta(days=1))

    def play(self, event: str, before: World, after: World) -> None:
        if event.startswith("write"):
            key = int(event.removeprefix("write "))
            toy.put(self.data(key), content(File(key, after.written[key] - 1)), self.house.now)
        for number in LAKES:
            if (before.lakes[number].needs, before.lakes[number].seen) != (after.lakes[number].needs, after.lakes[number].seen):
                self.commit(after, number)
        self.configure(after)
        if event == "a day" or (event.startswith("a run") and self.has_run_today):
            self.house.now += DAY
        elif event == "the run plans":
            self.compare_plan(before, after, self.plan())
        elif event.startswith("apply"):
            header = self.headers[int(event.removeprefix("apply "))]
            with suppress(GateRefused):  # then the process of the model also ends without an action
                self.house.approve_and_apply(header)
        elif event.startswith("restore"):
            self.house.restore(self.headers[int(event.split()[1])].plan_id)

    def compare_plan(self, before: World, after: World, header: PlanHeader) -> None:
        rows = tuple(plan_rows(before, self.mode, Rules(), before.run or ()))
        found = {(row["action"], row["key"], row["size_bytes"]) for row in self.house.rows("deletion_plan") if "/file" in row["key"]}
        assert found == {(row.phase, self.house.key(self.data(row.file.key)), len(content(row.file))) for row in rows}
        counts = tuple(map(count, before.run or ()))
        for plan in after.plans:
            if (plan.rows, plan.counts, plan.settled) == (rows, counts, 0):
                assert (header.failed_gates == []) == plan.passed, header.failed_gates
                self.headers[plan.number] = header

    @property
    def has_run_today(self) -> bool:
        return self.last_run is not None and self.last_run.date() == self.house.now.date()

    def may(self, event: str, events: Collection[str], world: World) -> bool:
        """Return whether the event is possible on a disk: one run per day, and no expired plan.

        If no event of the model is a day, because a day would change nothing, the day passes before
        the next run.
        """
        if event.startswith("a run"):
            return not self.has_run_today or ("a day" not in events and world.pending is None)
        if event.startswith("apply"):
            header = self.headers[int(event.removeprefix("apply "))]
            return self.house.now < min(header.approve_before, header.apply_before)
        return not event.startswith(EXCLUDED)

    def stored_versions(self) -> tuple[int | None, ...]:
        return tuple(self.version(self.data(key)) for key in KEYS)

    def version(self, path: Path) -> int | None:
        """Return the version of a file by its bytes, or None if it does not exist."""
        held = path.read_bytes() if path.exists() else None
        return next((file.version for file in (File(int(path.name[-1]), version) for version in VERSIONS) if content(file) == held), None)

    def ledger_files(self) -> set[tuple[int, int, str]]:
        """Return key, size and plan id of the quarantined files in the ledger."""
        rows = read_quarantine(self.house.run_context().state, STORAGE).to_pylist()
        return {(int(row["key"][-1]), row["size_bytes"], row["source_plan_id"]) for row in rows if "/file" in row["key"]}

    def trash_files(self) -> set[tuple[int, int, str]]:
        """Return key, size and plan id of the files in the trash."""
        at = self.house.warehouse / ".gc-assets" / "trash"
        files = [path for path in at.rglob("file*") if path.is_file()]
        return {(int(path.name[-1]), path.stat().st_size, path.relative_to(at).parts[0]) for path in files}

    def compare(self, world: World) -> None:
        assert self.stored_versions() == tuple(item and item.version for item in world.stored)
        held = {(copy.file.key, len(content(copy.file)), self.headers[copy.plan].plan_id) for copy in world.ledger if copy.is_held}
        assert self.ledger_files() == held
        assert self.trash_files() == (held if self.mode == "trash" else set())


def walk(on_disk: DiskWorld, world: World, chance: random.Random) -> Iterator[tuple[str, World, World]]:
    """Yield the events of a random trace with the worlds before and after."""
    while True:
        following = dict(successors(world, on_disk.mode, Rules(), BOUNDS))
        steps = [(event, after) for event, after in following.items() if on_disk.may(event, following, world)]
        if not steps:
            return
        weights = [next((weight for name, weight in LIKELY.items() if event.startswith(name)), 1) for event, _ in steps]
        ((event, after),) = chance.choices(steps, weights)
        assert not isinstance(after, str), after
        yield event, world, after
        world = after


@pytest.mark.parametrize("seed", range(TRACES))
@pytest.mark.parametrize("mode", select_cases(MODES[:1], MODES[1:]))
def test_random_trace_on_disk_leaves_the_files_of_the_model(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, seed: int
) -> None:
    monkeypatch.setitem(KINDS, "toy", toy.KIND)
    settings = {
        "quarantine": mode,
        "grace": timedelta(days=1),
        "quarantine_days": 2,
        "gates": {"max_live_drop": 0.7, "max_delete_share": 1.0},
    }
    on_disk = DiskWorld(Lakehouse(spark, tmp_path, settings=settings), mode)
    on_disk.begin(initial_world())
    events = list[str]()
    for event, before, after in walk(on_disk, initial_world(), random.Random(f"{mode} {seed}")):
        events.append(event)
        on_disk.play(event, before, after)
        if not after.processes and after.run is None:
            on_disk.compare(after)
    assert "the run plans" in events
