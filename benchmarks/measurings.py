"""How the rows of `benchmarks.targets` are measured: one measuring yields one sample of each of its rows.

What two rows have in common is done once, and both sides of a ratio come from the same call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from benchmarks import commands, iceberg_lake
from benchmarks.cache import is_whole
from benchmarks.comparison import Measured, Passes, compare
from benchmarks.nessie_lake import peer_seconds
from benchmarks.resident import ROOT, Resident
from benchmarks.results import Sample
from benchmarks.targets import Pick, Row
from gc_assets.demo.sample import ensure_demo

MIB: Final = 2**20
GIB: Final = 2**30
MOVES: Final = 100_000
APPLYING: Final = [sys.executable, "-m", "benchmarks.applying"]
Samples = dict[str, Sample]


@dataclass(frozen=True, slots=True)
class Place:
    """Where lakes and states are kept, and who runs nessie-gc; null where its recorded figures stand for it."""

    cache: Path
    nessie_gc: Path | None = None


@dataclass(frozen=True, slots=True)
class Measuring:
    """`measure` takes the rows that are wanted and yields a sample of each.

    `seconds` is about how long one repeat takes on two cores, and `lake` the folder of the cache that is built before the first one, in
    `build_seconds`. `lake_bytes` and `lake_files` are what it takes of the disk, `run_bytes` and `run_files` what each repeat takes.
    """

    measure: Callable[[Place, Sequence[Row]], Samples]
    seconds: float
    lake: str | None = None
    build_seconds: float = 0.0
    lake_bytes: int = 0
    lake_files: int = 0
    run_bytes: int = 256 * MIB
    run_files: int = 10_000

    def builds(self, cache: Path) -> bool:
        """Whether there is a lake to build before the first repeat."""
        return self.lake is not None and not is_whole(cache / self.lake)

    def no_room(self, cache: Path) -> str | None:
        """What the disk lacks, as a sentence; null where it has room."""
        builds = self.builds(cache)
        size, files = (self.run_bytes + builds * self.lake_bytes, self.run_files + builds * self.lake_files)
        disk = os.statvfs(cache)
        free, names = disk.f_bavail * disk.f_frsize, disk.f_favail
        if free < size:
            return f"needs {size / GIB:.1f} GiB of disk, {free / GIB:.1f} are free"
        # Some file systems count no inodes, and say that there are none.
        if disk.f_files and names < files:
            return f"needs {files:,} more files on the disk, {names:,} are free"
        return None


def passes(picks: Collection[Pick]) -> Passes:
    """What has to be done for these figures, and no more."""
    return Passes(
        peer=any(pick.of == "peer" for pick in picks),
        warm=any(pick.start == "warm" for pick in picks),
        peer_warm=any(pick.of == "peer" and pick.start == "warm" for pick in picks),
        cold_second=any(pick.start == "cold" and pick.night == "second" for pick in picks),
    )


def picked(pick: Pick, measured: Sequence[Measured], recorded: float | None = None) -> Sample:
    """The figure of one comparison. `recorded` are the seconds of a peer that was not asked.

    Raises `RuntimeError` where the comparison has no such night, or nothing to compare it with.
    """

    def night(who: str, which: str) -> Measured:
        for item in measured:
            if (item.who, item.night, item.cold) == (who, which, pick.start == "cold"):
                return item
        raise RuntimeError(f"there is no {pick.start} {which} night of {who}")

    ours = night("gc-assets", pick.night)
    steps = {stage["stage"]: stage["wall"] for stage in ours.answer.get("stages", [])}
    if pick.of == "jobs":
        jobs = {stage["stage"]: float(stage["jobs"]) for stage in ours.answer["stages"] if stage["jobs"]}
        return Sample(value=sum(jobs.values()), beside={f"jobs of {name}": count for name, count in jobs.items()}, steps=steps)
    beside = {"CPU, s": ours.cpu, "peak, MiB": ours.answer["total"]["peak_bytes"] / MIB}
    if pick.of == "seconds":
        return Sample(value=ours.wall, beside=beside, steps=steps)
    if pick.of == "first night":
        other = {"first night, s": night("gc-assets", "first").wall}
    elif pick.of == "peer" or any(item.who == "peer" for item in measured):
        theirs = night("peer", pick.night)
        other = {"peer, s": theirs.wall, "peer's CPU, s": theirs.cpu}
    elif recorded is not None:
        other = {"recorded, s": recorded}
    else:
        raise RuntimeError("nobody recorded what the peer takes here")
    return Sample(value=ours.wall / next(iter(other.values())), beside={"ours, s": ours.wall, **beside, **other}, steps=steps)


def nights(kind: str, size: str, place: Place, rows: Sequence[Row]) -> Samples:
    picks = {row.name: row.pick for row in rows if row.pick is not None}
    wanted = passes(picks.values())
    launcher = place.nessie_gc if kind == "nessie" else None
    if launcher is not None:
        wanted = Passes(peer=True, warm=wanted.warm, cold_second=wanted.cold_second)
    measured = compare(kind, size, place.cache, wanted, launcher)
    recorded = peer_seconds(size) if kind == "nessie" else None
    return {name: picked(pick, measured, recorded) for name, pick in picks.items()}


def _demo(place: Place, rows: Sequence[Row]) -> Samples:
    names = {row.name for row in rows}
    with tempfile.TemporaryDirectory(dir=place.cache, prefix="run-") as directory:
        restore = "restore-cold" in names
        cold = commands.demo(Path(directory) / "demo", apply="apply-cold" in names, restore=restore)
    found: Samples = {}
    for name, one in {"plans": cold.plans, "apply-cold": cold.apply, "restore-cold": cold.restore}.items():
        if one is not None and name in names:
            # Without a JVM, which an apply starts, it is all of the CPU.
            beside = {} if name == "apply-cold" else {"CPU, s": one.cpu}
            found[name] = Sample(value=one.seconds, beside=beside, steps=one.steps)
    return found


def _demo_warm(place: Place, rows: Sequence[Row]) -> Samples:
    with tempfile.TemporaryDirectory(dir=place.cache, prefix="run-") as directory:
        below = Path(directory)
        demos = [ensure_demo(below / name) for name in ("first", "again")]
        with Resident(APPLYING, below / "log") as resident:
            _, answer = [resident.ask({"config": str(config)}) for config in demos]
    return {row.name: _applied(answer, answer["total"]["wall"]) for row in rows}


def _moves(place: Place, rows: Sequence[Row], files: int = MOVES) -> Samples:
    with tempfile.TemporaryDirectory(dir=place.cache, prefix="run-") as directory:
        below = Path(directory)
        config = leftovers(below, files)
        with Resident(APPLYING, below / "log") as resident:
            answer = resident.ask({"config": str(config)})
    if answer["moved"] != files:
        raise RuntimeError(f"{answer['moved']:,} of {answer['planned']:,} planned files were moved, expected {files:,}")
    return {row.name: _applied(answer, files / answer["total"]["wall"]) for row in rows}


def _applied(answer: dict[str, Any], value: float) -> Sample:
    total = answer["total"]
    beside = {"whole apply, s": total["wall"], "CPU, s": total["cpu"], "peak, MiB": total["peak_bytes"] / MIB}
    if answer["moving"]:
        beside |= {"first to last move, s": answer["moving"], "files/s meanwhile": answer["moved"] / answer["moving"]}
    return Sample(value=value, beside=beside, steps=answer["steps"])


def leftovers(below: Path, files: int) -> Path:
    """The `lakes.yaml` of a small Iceberg lake as old as the clock wants it, in which so many files are crash leftovers."""
    lake = iceberg_lake.IcebergLake(below / "lake")
    lake.now = datetime.now(UTC)
    size = iceberg_lake.Size(tables=1, commits=2, files_per_commit=100)
    iceberg_lake.build(lake, size)
    writer = lake.writer(lake.table_names()[0])
    missing, days = files - size.leftovers, 10
    for day in range(days):
        at = lake.now - timedelta(days=5 + day)
        for path in writer.data_paths(f"{at:%Y-%m-%d}", missing // days + (day < missing % days)):
            iceberg_lake.write_data_file(path, at)
    document = lake.config(below / "state")
    document["storages"][0] |= {"mode": "apply", "quarantine": "trash", "gates": {"max_delete_share": 1.0, "max_delete_bytes": "1PB"}}
    config = below / "lakes.yaml"
    config.write_text(json.dumps(document))
    return config


def _lakefs(_: Place, rows: Sequence[Row]) -> Samples:
    command = [sys.executable, "-m", "benchmarks.lakefs_lake", "--format", "json"]
    found = [json.loads(line) for line in _output(command).splitlines()]
    nights = {night: {one["stage"]: one["seconds"] for one in found if one["night"] == night} for night in ("first", "second")}
    first, second = (sum(steps.values()) for steps in nights.values())
    return {row.name: Sample(value=second / first, beside={"first, s": first, "second, s": second}, steps=nights["second"]) for row in rows}


def _make_test(_: Place, rows: Sequence[Row]) -> Samples:
    started = perf_counter()
    _output(["make", "test"])
    return {row.name: Sample(value=perf_counter() - started) for row in rows}


def _output(command: Sequence[str]) -> str:
    """What a command of this checkout prints. Raises `RuntimeError` with its last words where it ends badly."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}: {said}")
    return done.stdout


MEASURINGS: Final[Mapping[str, Measuring]] = {
    "iceberg-s": Measuring(partial(nights, "iceberg", "s"), 90, "iceberg-s", 10, 100 * MIB, 3_000),
    "iceberg-m": Measuring(partial(nights, "iceberg", "m"), 280, "iceberg-m", 90, 500 * MIB, 60_000),
    "iceberg-l": Measuring(partial(nights, "iceberg", "l"), 200, "iceberg-l", 240, 2 * GIB, 750_000, GIB),
    "icechunk-s": Measuring(partial(nights, "icechunk", "s"), 40, "icechunk-s", 5, 100 * MIB, 3_000),
    "icechunk-l": Measuring(partial(nights, "icechunk", "l"), 80, "icechunk-l", 240, 2 * GIB, 220_000, GIB),
    "nessie-s": Measuring(partial(nights, "nessie", "s"), 50, "nessie-s", 30, 200 * MIB, 5_000),
    "nessie-m": Measuring(partial(nights, "nessie", "m"), 70, "nessie-m", 150, 500 * MIB, 60_000),
    "nessie-l": Measuring(partial(nights, "nessie", "l"), 100, "nessie-l", 600, 2 * GIB, 320_000),
    "nessie-d": Measuring(partial(nights, "nessie", "d"), 70, "nessie-d", 300, GIB, 40_000),
    "nessie-r": Measuring(partial(nights, "nessie", "r"), 70, "nessie-r", 300, GIB, 20_000),
    "lakefs": Measuring(_lakefs, 90, run_bytes=GIB),
    "demo": Measuring(_demo, 60),
    "demo-warm": Measuring(_demo_warm, 60),
    "moves": Measuring(_moves, 150, run_bytes=2 * GIB, run_files=320_000),
    "make-test": Measuring(_make_test, 1_000, run_bytes=4 * GIB, run_files=100_000),
}
