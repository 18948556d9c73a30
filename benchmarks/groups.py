"""Groups of rows of `benchmarks.targets` that are measured together.

A measurement of a group yields one sample for each of its rows. Both sides of a ratio come from the
same call.
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

from benchmarks import commands, iceberg_lake, many_tables, one_table, scale
from benchmarks.cache import is_complete
from benchmarks.comparison import Measurement, Passes, compare
from benchmarks.nessie_lake import peer_seconds
from benchmarks.resident import ROOT, Resident
from benchmarks.results import Sample
from benchmarks.scale import CLUSTER, ScaleSubject
from benchmarks.targets import Pick, Row
from gc_assets.demo.sample import ensure_demo

MIB: Final = 2**20
GIB: Final = 2**30
MOVES: Final = 100_000
SCALE_FILES: Final = 10_000_000
SCALE_TABLES: Final = many_tables.Size(tables=1_000, commits=200)
ONE_WORKER, TWO_CORES = "local[1]", "local[2]"
APPLY_PROGRAM: Final = [sys.executable, "-m", "benchmarks.applying"]
Samples = dict[str, Sample]


@dataclass(frozen=True, slots=True)
class Setup:
    """The directory of lakes and states, and the launcher of nessie-gc. Without a launcher, its
    recorded seconds are used.
    """

    cache: Path
    nessie_gc: Path | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Measures its rows together.

    Attributes:
        measure: Takes the requested rows and returns a sample of each.
        seconds: The expected duration of one repeat on two cores.
        lake: The directory in the cache that is built before the first repeat.
        build_seconds: The expected duration of that build.
        lake_bytes: The disk space of the lake.
        lake_files: The files of the lake.
        run_bytes: The disk space of one repeat.
        run_files: The files of one repeat.
    """

    measure: Callable[[Setup, Sequence[Row]], Samples]
    seconds: float
    lake: str | None = None
    build_seconds: float = 0.0
    lake_bytes: int = 0
    lake_files: int = 0
    run_bytes: int = 256 * MIB
    run_files: int = 10_000

    def needs_build(self, cache: Path) -> bool:
        """Return whether the lake must be built before the first repeat."""
        return self.lake is not None and not is_complete(cache / self.lake)

    def missing_space(self, cache: Path) -> str | None:
        """Return a message if the disk has too little space, or None."""
        needs_build = self.needs_build(cache)
        size, files = (self.run_bytes + needs_build * self.lake_bytes, self.run_files + needs_build * self.lake_files)
        disk = os.statvfs(cache)
        free, names = disk.f_bavail * disk.f_frsize, disk.f_favail
        if free < size:
            return f"needs {size / GIB:.1f} GiB of disk, {free / GIB:.1f} are free"
        # File systems without inode counts report zero inodes.
        if disk.f_files and names < files:
            return f"needs {files:,} more files on the disk, {names:,} are free"
        return None


def required_passes(picks: Collection[Pick]) -> Passes:
    """Return the passes that these figures need."""
    return Passes(
        peer=any(pick.of == "peer" for pick in picks),
        warm=any(pick.start == "warm" for pick in picks),
        peer_warm=any(pick.of == "peer" and pick.start == "warm" for pick in picks),
        cold_second=any(pick.start == "cold" and pick.run == "second" for pick in picks),
        unlisted=any(pick.run == "unlisted" for pick in picks),
    )


def pick_sample(pick: Pick, measured: Sequence[Measurement], recorded: float | None = None) -> Sample:
    """Return the figure of one comparison.

    Args:
        recorded: The recorded seconds of a peer that was not measured.

    Raises:
        RuntimeError: If the comparison has no such run, or nothing to compare it with.
    """
    ours = _find_run(measured, "gc-assets", pick.run, pick.start)
    steps = _seconds_of_stages(ours)
    if pick.of == "jobs":
        jobs = {stage["stage"]: float(stage["jobs"]) for stage in ours.answer["stages"] if stage["jobs"]}
        return Sample(value=sum(jobs.values()), details={f"jobs of {name}": count for name, count in jobs.items()}, steps=steps)
    details = {"CPU, s": ours.cpu, "peak, MiB": ours.answer["total"]["peak_bytes"] / MIB}
    if pick.of == "peak":
        total = ours.answer["total"]
        parts = {"of it driver, MiB": total["peak_driver_bytes"] / MIB, "of it JVM, MiB": total["peak_jvm_bytes"] / MIB}
        return Sample(value=total["peak_bytes"] / MIB, details=parts)
    if pick.of == "state":
        (size,) = (stage["state_bytes"] for stage in ours.answer["stages"] if stage["stage"] == "live_files")
        files = ours.answer["live_files"]
        return Sample(value=size / files, details={"state, bytes": size, "live files": files})
    if pick.of == "seconds":
        return Sample(value=ours.wall, details=details, steps=steps)
    if pick.of == "first run":
        other = {"first run, s": _find_run(measured, "gc-assets", "first", pick.start).wall}
    elif pick.of == "peer" or any(item.tool == "peer" for item in measured):
        theirs = _find_run(measured, "peer", "second" if pick.run == "unlisted" else pick.run, pick.start)
        other = {"peer, s": theirs.wall, "peer's CPU, s": theirs.cpu}
    elif recorded is not None:
        other = {"recorded, s": recorded}
    else:
        raise RuntimeError("no recorded seconds of the peer for this lake")
    return Sample(value=ours.wall / next(iter(other.values())), details={"ours, s": ours.wall, **details, **other}, steps=steps)


def pick_speed_up(pick: Pick, one: Sequence[Measurement], two: Sequence[Measurement]) -> Sample:
    """Return the seconds of one worker divided by those of two.

    Raises:
        RuntimeError: If they found different numbers of unreferenced files, or a run is missing.
    """
    slow, fast = (_find_run(measured, "gc-assets", pick.run, pick.start) for measured in (one, two))
    counts = [item.answer["unreferenced"] for item in (slow, fast)]
    if counts[0] != counts[1]:
        raise RuntimeError(f"{pick.run} run: one worker found {counts[0]} unreferenced files, two workers {counts[1]}")
    details = {"one worker, s": slow.wall, "two workers, s": fast.wall}
    return Sample(value=slow.wall / fast.wall, details=details, steps=_seconds_of_stages(fast))


def _find_run(measured: Sequence[Measurement], tool: str, run: str, start: str) -> Measurement:
    for item in measured:
        if (item.tool, item.run, item.cold) == (tool, run, start == "cold"):
            return item
    raise RuntimeError(f"there is no {start} {run} run of {tool}")


def _seconds_of_stages(item: Measurement) -> dict[str, float]:
    return {stage["stage"]: stage["wall"] for stage in item.answer.get("stages", [])}


def required_engines(picks: Collection[Pick]) -> list[str]:
    """Return the engines that these figures of a large lake need."""
    compared = [pick.of == "one worker" for pick in picks]
    return [*([TWO_CORES] if not all(compared) else []), *([ONE_WORKER, CLUSTER] if any(compared) else [])]


def measure_scale(subject: Callable[[Path, str], ScaleSubject], setup: Setup, rows: Sequence[Row]) -> Samples:
    """Measure a large lake once on each engine that the rows need.

    Args:
        subject: Returns the lake in a cache directory with one of the engines.
    """
    picks = {row.name: row.pick for row in rows if row.pick is not None}
    found = scale.measure((subject(setup.cache, engine) for engine in required_engines(picks.values())), setup.cache)
    return {
        name: pick_speed_up(pick, found[ONE_WORKER], found[CLUSTER]) if pick.of == "one worker" else pick_sample(pick, found[TWO_CORES])
        for name, pick in picks.items()
    }


def measure_runs(kind: str, size: str, setup: Setup, rows: Sequence[Row]) -> Samples:
    picks = {row.name: row.pick for row in rows if row.pick is not None}
    needed = required_passes(picks.values())
    launcher = setup.nessie_gc if kind == "nessie" else None
    if launcher is not None:
        needed = Passes(peer=True, warm=needed.warm, cold_second=needed.cold_second)
    measured = compare(kind, size, setup.cache, needed, launcher)
    recorded = peer_seconds(size) if kind == "nessie" else None
    return {name: pick_sample(pick, measured, recorded) for name, pick in picks.items()}


def _demo(setup: Setup, rows: Sequence[Row]) -> Samples:
    names = {row.name for row in rows}
    with tempfile.TemporaryDirectory(dir=setup.cache, prefix="run-") as directory:
        restore = "restore-cold" in names
        cold = commands.run_demo(Path(directory) / "demo", apply="apply-cold" in names, restore=restore)
    found: Samples = {}
    for name, one in {"plans": cold.plans, "apply-cold": cold.apply, "restore-cold": cold.restore}.items():
        if one is not None and name in names:
            # The CPU seconds of an apply omit those of its JVM.
            details = {} if name == "apply-cold" else {"CPU, s": one.cpu}
            found[name] = Sample(value=one.seconds, details=details, steps=one.steps)
    return found


def _demo_warm(setup: Setup, rows: Sequence[Row]) -> Samples:
    with tempfile.TemporaryDirectory(dir=setup.cache, prefix="run-") as directory:
        folder = Path(directory)
        demos = [ensure_demo(folder / name) for name in ("first", "second")]
        with Resident(APPLY_PROGRAM, folder / "log") as resident:
            _, answer = [resident.ask({"config": str(config)}) for config in demos]
    return {row.name: _apply_sample(answer, answer["total"]["wall"]) for row in rows}


def _moves(setup: Setup, rows: Sequence[Row], files: int = MOVES) -> Samples:
    with tempfile.TemporaryDirectory(dir=setup.cache, prefix="run-") as directory:
        folder = Path(directory)
        config = build_leftovers(folder, files)
        with Resident(APPLY_PROGRAM, folder / "log") as resident:
            answer = resident.ask({"config": str(config)})
    # The live filter keeps one garbage file in a million.
    if answer["moved"] != answer["planned"] or not files * 0.999 <= answer["moved"] <= files:
        raise RuntimeError(f"{answer['moved']:,} of {answer['planned']:,} planned files were moved, expected {files:,}")
    return {row.name: _apply_sample(answer, answer["moved"] / answer["total"]["wall"]) for row in rows}


def _apply_sample(answer: dict[str, Any], value: float) -> Sample:
    total = answer["total"]
    details = {"whole apply, s": total["wall"], "CPU, s": total["cpu"], "peak, MiB": total["peak_bytes"] / MIB}
    if answer["moving"]:
        details |= {"first to last move, s": answer["moving"], "files/s between them": answer["moved"] / answer["moving"]}
    return Sample(value=value, details=details, steps=answer["steps"])


def build_leftovers(folder: Path, files: int) -> Path:
    """Write a small, recent Iceberg lake with this number of crash leftovers. Return the path of
    its `lakes.yaml`.
    """
    lake = iceberg_lake.IcebergLake(folder / "lake")
    lake.now = datetime.now(UTC)
    size = iceberg_lake.Size(tables=1, commits=2, files_per_commit=100)
    iceberg_lake.build(lake, size)
    writer = lake.writer(lake.table_names()[0])
    missing, days = files - size.leftovers, 10
    for day in range(days):
        at = lake.now - timedelta(days=5 + day)
        for path in writer.data_paths(f"{at:%Y-%m-%d}", missing // days + (day < missing % days)):
            iceberg_lake.write_data_file(path, at)
    document = lake.config(folder / "state")
    document["storages"][0] |= {"mode": "apply", "quarantine": "trash", "gates": {"max_delete_share": 1.0, "max_delete_bytes": "1PB"}}
    config = folder / "lakes.yaml"
    config.write_text(json.dumps(document))
    return config


def _lakefs(_: Setup, rows: Sequence[Row]) -> Samples:
    command = [sys.executable, "-m", "benchmarks.lakefs_lake", "--format", "json"]
    found = [json.loads(line) for line in _output(command).splitlines()]
    runs = {run: {one["stage"]: one["seconds"] for one in found if one["run"] == run} for run in ("first", "second")}
    first, second = (sum(steps.values()) for steps in runs.values())
    return {row.name: Sample(value=second / first, details={"first, s": first, "second, s": second}, steps=runs["second"]) for row in rows}


def _make_test(_: Setup, rows: Sequence[Row]) -> Samples:
    started = perf_counter()
    _output(["make", "test"])
    return {row.name: Sample(value=perf_counter() - started) for row in rows}


def _mark_lines(_: Setup, rows: Sequence[Row]) -> Samples:
    files = (ROOT / "gc_assets" / "stages" / "mark").rglob("*.py")
    lines = sum(len(path.read_text().splitlines()) for path in files)
    return {row.name: Sample(value=lines) for row in rows}


def _output(command: Sequence[str]) -> str:
    """Return the output of a command of this checkout.

    Raises:
        RuntimeError: If the command failed. The message ends with its output.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-2000:]
        raise RuntimeError(f"{' '.join(command)} failed with exit code {done.returncode}: {output}")
    return done.stdout


GROUPS: Final[Mapping[str, Group]] = {
    "iceberg-s": Group(partial(measure_runs, "iceberg", "s"), 90, "iceberg-s", 10, 100 * MIB, 3_000),
    "iceberg-m": Group(partial(measure_runs, "iceberg", "m"), 280, "iceberg-m", 90, 500 * MIB, 60_000),
    "iceberg-l": Group(partial(measure_runs, "iceberg", "l"), 200, "iceberg-l", 240, 2 * GIB, 750_000, GIB),
    "icechunk-s": Group(partial(measure_runs, "icechunk", "s"), 40, "icechunk-s", 5, 100 * MIB, 3_000),
    "icechunk-l": Group(partial(measure_runs, "icechunk", "l"), 80, "icechunk-l", 240, 2 * GIB, 220_000, GIB),
    "nessie-s": Group(partial(measure_runs, "nessie", "s"), 50, "nessie-s", 30, 200 * MIB, 5_000),
    "nessie-m": Group(partial(measure_runs, "nessie", "m"), 70, "nessie-m", 150, 500 * MIB, 60_000),
    "nessie-l": Group(partial(measure_runs, "nessie", "l"), 100, "nessie-l", 600, 2 * GIB, 320_000),
    "nessie-d": Group(partial(measure_runs, "nessie", "d"), 70, "nessie-d", 300, GIB, 40_000),
    "nessie-r": Group(partial(measure_runs, "nessie", "r"), 70, "nessie-r", 300, GIB, 20_000),
    "scale-files": Group(
        partial(measure_scale, partial(ScaleSubject.of_files, SCALE_FILES)),
        190,
        one_table.directory_name(SCALE_FILES),
        90,
        4 * GIB,
        2_000,
        2 * GIB,
    ),
    "scale-tables": Group(
        partial(measure_scale, partial(ScaleSubject.of_tables, SCALE_TABLES)),
        965,
        many_tables.directory_name(SCALE_TABLES),
        400,
        6 * GIB,
        650_000,
        GIB,
    ),
    "lakefs": Group(_lakefs, 90, run_bytes=GIB),
    "demo": Group(_demo, 60),
    "demo-warm": Group(_demo_warm, 60),
    "moves": Group(_moves, 150, run_bytes=2 * GIB, run_files=320_000),
    "mark-lines": Group(_mark_lines, 1, run_bytes=0, run_files=0),
    "make-test": Group(_make_test, 1_000, run_bytes=4 * GIB, run_files=100_000),
}
