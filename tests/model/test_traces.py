"""The stages do on a disk what the model says: random traces of the model, played with real lakes, nights, plans and restores.

`GC_ASSETS_TEST_TRACES=100` plays so many of a mode instead of one, and `DEPTH=all` plays both modes. A seed is in the name of each test.
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
from tests.depth import some
from tests.lakes import toy
from tests.model.test_protocol import MODES
from tests.model.world import KEYS, LAKES, VERSIONS, Bounds, File, Mode, Rules, World, begun, count, successors, to_planned_actions
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark

TRACES: Final = int(os.environ.get("GC_ASSETS_TEST_TRACES", "1"))
BOUNDS: Final = Bounds(commits=6, accidents=1, nights=4, applies=3, restores=1)
# Longer than the grace period. Two of them are longer than the quarantine.
DAY: Final = timedelta(hours=25)
LONG_AGO: Final = days_ago(300)
# How much likelier than others an event is, by how its name begins.
LIKELY: Final = {"apply": 6, "approve": 6, "a night": 4, "a day": 3, "drop": 3, "go back": 4, "write": 2, "share": 2, "recover": 2}
# Other tests kill, delay and lie. A lake that is sick has nights of its own.
OTHERS: Final = ("sick", "abandon")


def content(file: File) -> bytes:
    """The bytes of a file. Another version has another size."""
    return b"%d" % file.key * (10 + file.version)


@dataclass
class OnDisk:
    """The world of a model as lakes in a house. `headers` are the real plans by the model's numbers."""

    house: Lakehouse
    mode: Mode
    headers: dict[int, PlanHeader] = field(default_factory=dict)
    heads: int = 0
    last_night: datetime | None = None

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
        self.last_night = self.house.now
        return self.house.plan()

    def commit(self, world: World, number: int) -> None:
        """Points the lake's branch at a commit of what it needs. A lake that reads as empty keeps its branches aside."""
        self.heads += 1
        sizes = {f"file://{self.data(file.key)}": len(content(file)) for file in world.lakes[number].needs}
        branches, aside = self.at(number) / "branches", self.at(number) / "aside"
        if aside.exists():
            aside.rename(branches)
        toy.write_manifest(self.at(number), f"head{self.heads}", None, LONG_AGO, {"base": 4, **sizes}, "main")
        if world.lakes[number].seen == "empty":
            branches.rename(aside)

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
        if event == "a day" or (event.startswith("a night") and self.had_its_night):
            self.house.now += DAY
        elif event == "the night plans":
            self.compare_plan(before, after, self.plan())
        elif event.startswith("apply"):
            header = self.headers[int(event.removeprefix("apply "))]
            with suppress(GateRefused):  # then the model's process ends without an act, and the worlds are compared
                self.house.carry_out(header)
        elif event.startswith("restore"):
            self.house.restore(self.headers[int(event.split()[1])].plan_id)

    def compare_plan(self, before: World, after: World, header: PlanHeader) -> None:
        rows = tuple(to_planned_actions(before, self.mode, Rules(), before.night or ()))
        found = {(row["action"], row["key"], row["size_bytes"]) for row in self.house.rows("deletion_plan") if "/file" in row["key"]}
        assert found == {(row.phase, self.house.key(self.data(row.file.key)), len(content(row.file))) for row in rows}
        counts = tuple(map(count, before.night or ()))
        for plan in after.plans:
            if (plan.rows, plan.counts, plan.settled) == (rows, counts, 0):
                assert (header.failed_gates == []) == plan.passed, header.failed_gates
                self.headers[plan.number] = header

    @property
    def had_its_night(self) -> bool:
        return self.last_night is not None and self.last_night.date() == self.house.now.date()

    def may(self, event: str, events: Collection[str], world: World) -> bool:
        """Says whether the event can be played: one night a day, and no plan that is too old.

        Where a day would change nothing in the model, none of its events is one. Then it passes before the next night.
        """
        if event.startswith("a night"):
            return not self.had_its_night or ("a day" not in events and world.pending is None)
        if event.startswith("apply"):
            header = self.headers[int(event.removeprefix("apply "))]
            return self.house.now < min(header.approve_before, header.apply_before)
        return not event.startswith(OTHERS)

    def stored(self) -> tuple[int | None, ...]:
        return tuple(self.version(self.data(key)) for key in KEYS)

    def version(self, path: Path) -> int | None:
        """The version of a file by its bytes; null where there is none."""
        held = path.read_bytes() if path.exists() else None
        return next((file.version for file in (File(int(path.name[-1]), version) for version in VERSIONS) if content(file) == held), None)

    def held(self) -> set[tuple[int, int, str]]:
        """What the ledger calls quarantined: key, bytes, plan id."""
        rows = read_quarantine(self.house.tonight().state, STORAGE).to_pylist()
        return {(int(row["key"][-1]), row["size_bytes"], row["source_plan_id"]) for row in rows if "/file" in row["key"]}

    def trash(self) -> set[tuple[int, int, str]]:
        """What lies in the trash: key, bytes, plan id."""
        at = self.house.warehouse / ".gc-assets" / "trash"
        files = [path for path in at.rglob("file*") if path.is_file()]
        return {(int(path.name[-1]), path.stat().st_size, path.relative_to(at).parts[0]) for path in files}

    def compare(self, world: World) -> None:
        assert self.stored() == tuple(item and item.version for item in world.stored)
        held = {(copy.file.key, len(content(copy.file)), self.headers[copy.plan].plan_id) for copy in world.ledger if copy.is_held}
        assert self.held() == held
        assert self.trash() == (held if self.mode == "trash" else set())


def walk(on_disk: OnDisk, world: World, chance: random.Random) -> Iterator[tuple[str, World, World]]:
    """Yields events of a random trace with the worlds before and after."""
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
@pytest.mark.parametrize("mode", some(MODES[:1], MODES[1:]))
def test_a_random_trace_of_the_model_ends_with_the_same_files_on_a_disk(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, seed: int
) -> None:
    monkeypatch.setitem(KINDS, "toy", toy.KIND)
    settings = {
        "quarantine": mode,
        "grace": timedelta(days=1),
        "quarantine_days": 2,
        "gates": {"max_live_drop": 0.7, "max_delete_share": 1.0},
    }
    on_disk = OnDisk(Lakehouse(spark, tmp_path, settings=settings), mode)
    on_disk.begin(begun())
    played = list[str]()
    for event, before, after in walk(on_disk, begun(), random.Random(f"{mode} {seed}")):
        played.append(event)
        on_disk.play(event, before, after)
        if not after.processes and after.night is None:
            on_disk.compare(after)
    assert "the night plans" in played
