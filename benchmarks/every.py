"""`python -m benchmarks all`: every row with its target, what was measured now, and a verdict, from one run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

import click
from pydantic import ValidationError

from benchmarks.measurings import MEASURINGS, Measuring, Place
from benchmarks.resident import ROOT
from benchmarks.results import Machine, Report, Result, Sample, changes
from benchmarks.tables import listed, slower, verdicts, where_time_goes
from benchmarks.targets import ROWS, Row, chosen
from gc_assets.resources.class_archive import archive_path
from gc_assets.resources.java import ensure_java_home

QUICK_SECONDS: Final = 120.0
Tell = Callable[[str], None]
Keep = Callable[[Sequence[Result]], None]


def measured(
    rows: Sequence[Row],
    place: Place,
    repeat: int,
    tell: Tell,
    *,
    quick: bool = False,
    measurings: Mapping[str, Measuring] = MEASURINGS,
    keep: Keep = lambda _: None,
) -> list[Result]:
    """The rows with what was found, in their order. Rows that are measured together follow each
    other's measuring, `repeat` times.

    What stops a measuring is told in its rows, and the others go on. `keep` is given what there is
    after each of them. After Ctrl-C the rest counts as failed.
    """
    found = {row.name: Result(row=row, outcome="not built", why=row.not_built) for row in rows if row.measuring is None}
    names = list(dict.fromkeys(row.measuring for row in rows if row.measuring is not None))
    try:
        for number, name in enumerate(names, 1):
            mine = [row for row in rows if row.measuring == name]
            found |= {
                result.row.name: result
                for result in _of_one(measurings[name], mine, place, repeat, _at(tell, name, number, len(names)), quick=quick)
            }
            keep([found[row.name] for row in rows if row.name in found])
    except KeyboardInterrupt:
        tell("interrupted")
    return [found.get(row.name, Result(row=row, outcome="failed", why="interrupted")) for row in rows]


def _of_one(measuring: Measuring, rows: Sequence[Row], place: Place, repeat: int, tell: Tell, *, quick: bool) -> list[Result]:
    why = _too_long(measuring, place.cache) if quick else None
    why = why or measuring.no_room(place.cache)
    if why is not None:
        tell(f"skipped: {why}")
        return [Result(row=row, outcome="skipped", why=why) for row in rows]
    builds = ", and before the first the lake is built" if measuring.builds(place.cache) else ""
    tell(f"{len(rows)} rows, {repeat} times about {measuring.seconds:.0f} s{builds}")
    samples: dict[str, list[Sample]] = {row.name: [] for row in rows}
    failure = ""
    for time in range(1, repeat + 1):
        started = perf_counter()
        try:
            for name, sample in measuring.measure(place, rows).items():
                samples[name].append(sample)
        except Exception as error:  # noqa: BLE001  (whatever stops one row, the others are measured)
            failure = f"{type(error).__name__}: {error}"
            tell(f"failed: {failure}")
            break
        told = ", ".join(f"{row.name} {samples[row.name][-1].value:.2f}" for row in rows if samples[row.name])
        tell(f"{time} of {repeat} took {perf_counter() - started:.0f} s: {told}")
    return list(_results(rows, samples, repeat, failure))


def _results(rows: Sequence[Row], samples: Mapping[str, Sequence[Sample]], repeat: int, failure: str) -> Iterator[Result]:
    for row in rows:
        there = tuple(samples[row.name])
        if len(there) == repeat:
            yield Result(row=row, samples=there)
        else:
            yield Result(row=row, outcome="failed", samples=there, why=failure or f"{len(there)} samples of {repeat}")


def _too_long(measuring: Measuring, cache: Path) -> str | None:
    seconds = measuring.seconds + measuring.builds(cache) * measuring.build_seconds
    return f"takes about {seconds:.0f} s; --quick measures what takes up to {QUICK_SECONDS:.0f} s" if seconds > QUICK_SECONDS else None


def _at(tell: Tell, name: str, number: int, of: int) -> Tell:
    return lambda text: tell(f"{datetime.now(UTC):%H:%M:%S} [{number}/{of}] {name}: {text}")


@click.command("all", short_help="Every row with its target and a verdict.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="The median of so many is taken; 1 is for a try.")
@click.option(
    "--only",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only rows whose name has this in it, or matches `a*b`; may be given again.",
)
@click.option("--quick", is_flag=True, help=f"Leave out what takes more than {QUICK_SECONDS:.0f} s a repeat, lakes to be built included.")
@click.option("--list", "list_", is_flag=True, help="Print the rows, and measure nothing.")
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), help="Write the run to this file, after each row, for a later --compare."
)
@click.option("--compare", "earlier", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Compare with a saved run.")
@click.option("--strict", is_flag=True, help="Exit code 1 also where a target is missed or a row was skipped.")
@click.option(
    "--nessie-gc",
    metavar="LAUNCHER",
    type=click.Path(path_type=Path, exists=True),
    help="Run nessie-gc by this launcher beside us, instead of its recorded figures.",
)
@click.option("--cache", type=click.Path(path_type=Path), default=ROOT / ".benchmarks", help="Where lakes are kept; default .benchmarks/.")
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
def all_command(
    repeat: int,
    patterns: tuple[str, ...],
    quick: bool,
    list_: bool,
    save: Path | None,
    earlier: Path | None,
    strict: bool,
    nessie_gc: Path | None,
    cache: Path,
    format_: str,
) -> None:
    """Measures every row, and prints it with its target and a verdict. Both sides of a ratio come from the same call.

    How far it is goes to standard error. The exit code is 1 where a row could not be measured; a missed target is none of that.
    """
    rows = chosen(ROWS, patterns)
    if not rows:
        raise click.UsageError(f"no row is named like {', '.join(patterns)}; --list prints them")
    if list_:
        click.echo("\n".join(listed(rows if patterns else ROWS, {name: one.seconds for name, one in MEASURINGS.items()})))
        return
    before = _read(earlier) if earlier is not None else None
    cache.mkdir(exist_ok=True)
    _compile()
    at, load = datetime.now(UTC), os.getloadavg()[0]

    def report(results: Sequence[Result]) -> Report:
        return Report(at=at, commit=_commit(), repeat=repeat, machine=_machine(load), results=tuple(results))

    def keep(results: Sequence[Result]) -> None:
        if save is not None:
            written = save.with_name(f".{save.name}.unfinished")
            written.write_text(report(results).model_dump_json(indent=1))
            written.replace(save)

    with _apart():
        place, tell = Place(cache, nessie_gc), partial(click.echo, err=True)
        found = measured(rows, place, repeat, tell, quick=quick, measurings=MEASURINGS, keep=keep)
    keep(found)
    now = report(found)
    compared = changes(before, now) if before is not None else None
    if format_ == "json":
        click.echo(now.model_dump_json(indent=1))
        if before is not None and compared is not None:
            click.echo("\n".join(slower(before, compared)), err=True)
    else:
        parts = [verdicts(now, compared), where_time_goes(now)]
        if before is not None and compared is not None:
            parts.append(slower(before, compared))
        click.echo("\n\n".join("\n".join(lines) for part in parts if (lines := list(part))))
    bad = {"failed", "missed", "skipped"} if strict else {"failed"}
    if any(result.verdict in bad for result in found):
        raise click.exceptions.Exit(1)


@contextmanager
def _apart() -> Generator[None]:
    """Sends what libraries print meanwhile to standard error: standard output is the report's."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)


def _read(path: Path) -> Report:
    try:
        return Report.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise click.UsageError(f"{path} is no run that --save wrote: {error.errors()[0]['msg']}") from None


def _compile() -> None:
    """A cold start is one of installed code, which is compiled."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", "gc_assets", "benchmarks"], cwd=ROOT, check=True)


def _machine(load_before: float) -> Machine:
    home = ensure_java_home()
    release = Path(home) / "release"
    version = re.search(r'JAVA_VERSION="([^"]+)"', release.read_text()) if release.is_file() else None
    return Machine(
        cores=os.cpu_count() or 0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
        java=version[1] if version is not None else "",
        class_archive=archive_path(home).is_file(),
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
