"""`python -m benchmarks all`: measure every row, and compare it with its target."""

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

from benchmarks.groups import GROUPS, Group, Setup
from benchmarks.resident import ROOT
from benchmarks.results import Machine, Report, Result, Sample, changes
from benchmarks.tables import format_changes, format_longest_steps, format_rows, format_verdicts
from benchmarks.targets import ROWS, Row, select_rows
from gc_assets.resources.class_archive import archive_path
from gc_assets.resources.java import ensure_java_home

QUICK_SECONDS: Final = 120.0
Log = Callable[[str], None]
SaveResults = Callable[[Sequence[Result]], None]


def measure_rows(
    rows: Sequence[Row],
    setup: Setup,
    repeat: int,
    log: Log,
    *,
    quick: bool = False,
    groups: Mapping[str, Group] = GROUPS,
    save_results: SaveResults = lambda _: None,
) -> list[Result]:
    """Measure rows, `repeat` times per group.

    If a group fails or is interrupted, its rows report the reason and the remaining groups are
    measured. After Ctrl-C all remaining rows count as failed.

    Args:
        save_results: Called after each group with all results so far.

    Returns:
        One result per row, in the order of `rows`.
    """
    found = {row.name: Result(row=row, outcome="not built", reason=row.not_built) for row in rows if row.group is None}
    names = list(dict.fromkeys(row.group for row in rows if row.group is not None))
    try:
        for number, name in enumerate(names, 1):
            members = [row for row in rows if row.group == name]
            found |= {
                result.row.name: result
                for result in _measure_group(groups[name], members, setup, repeat, _prefix_log(log, name, number, len(names)), quick=quick)
            }
            save_results([found[row.name] for row in rows if row.name in found])
    except KeyboardInterrupt:
        log("interrupted")
    return [found.get(row.name, Result(row=row, outcome="failed", reason="interrupted")) for row in rows]


def _measure_group(group: Group, rows: Sequence[Row], setup: Setup, repeat: int, log: Log, *, quick: bool) -> list[Result]:
    reason = _too_long(group, setup.cache) if quick else None
    reason = reason or group.missing_space(setup.cache)
    if reason is not None:
        log(f"skipped: {reason}")
        return [Result(row=row, outcome="skipped", reason=reason) for row in rows]
    needs_build = ", after the lake is built" if group.needs_build(setup.cache) else ""
    log(f"{len(rows)} rows, {repeat} repeats of about {group.seconds:.0f} s{needs_build}")
    samples: dict[str, list[Sample]] = {row.name: [] for row in rows}
    failure = ""
    for time in range(1, repeat + 1):
        started = perf_counter()
        try:
            for name, sample in group.measure(setup, rows).items():
                samples[name].append(sample)
        except Exception as error:  # noqa: BLE001  (after any failure the other groups are measured)
            failure = f"{type(error).__name__}: {error}"
            log(f"failed: {failure}")
            break
        values = ", ".join(f"{row.name} {samples[row.name][-1].value:.2f}" for row in rows if samples[row.name])
        log(f"{time} of {repeat} took {perf_counter() - started:.0f} s: {values}")
    return list(_results(rows, samples, repeat, failure))


def _results(rows: Sequence[Row], samples: Mapping[str, Sequence[Sample]], repeat: int, failure: str) -> Iterator[Result]:
    for row in rows:
        found = tuple(samples[row.name])
        if len(found) == repeat:
            yield Result(row=row, samples=found)
        else:
            yield Result(row=row, outcome="failed", samples=found, reason=failure or f"{len(found)} samples of {repeat}")


def _too_long(group: Group, cache: Path) -> str | None:
    seconds = group.seconds + group.needs_build(cache) * group.build_seconds
    return f"takes about {seconds:.0f} s; --quick allows {QUICK_SECONDS:.0f} s" if seconds > QUICK_SECONDS else None


def _prefix_log(log: Log, name: str, number: int, of: int) -> Log:
    return lambda text: log(f"{datetime.now(UTC):%H:%M:%S} [{number}/{of}] {name}: {text}")


@click.command("all", short_help="Every row with its target and a verdict.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Measurements per row; the value is their median.")
@click.option(
    "--only",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only rows whose name contains this or matches `a*b`. Can be repeated.",
)
@click.option(
    "--quick", is_flag=True, help=f"Skip rows that take more than {QUICK_SECONDS:.0f} s per repeat, including the build of their lake."
)
@click.option("--list", "list_", is_flag=True, help="Print the rows without measuring them.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the results to this file after each group, for a later --compare.",
)
@click.option("--compare", "earlier", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Compare with a saved run.")
@click.option("--strict", is_flag=True, help="Also exit with 1 if a row misses its target or was skipped.")
@click.option(
    "--nessie-gc",
    metavar="LAUNCHER",
    type=click.Path(path_type=Path, exists=True),
    help="Launcher of nessie-gc. Without it, rows compare with its recorded seconds.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), default=ROOT / ".benchmarks", help="Directory of the lakes. Default: .benchmarks/."
)
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
    """Measure every row and compare it with its target. Both sides of a ratio come from the same
    call.

    Progress goes to standard error. The exit code is 1 if a row failed.
    """
    rows = select_rows(ROWS, patterns)
    if not rows:
        raise click.UsageError(f"no row matches {', '.join(patterns)}; --list prints the rows")
    if list_:
        click.echo("\n".join(format_rows(rows if patterns else ROWS, {name: one.seconds for name, one in GROUPS.items()})))
        return
    before = _read(earlier) if earlier is not None else None
    cache.mkdir(exist_ok=True)
    compile_bytecode()
    at, load = datetime.now(UTC), os.getloadavg()[0]

    def report(results: Sequence[Result]) -> Report:
        return Report(at=at, commit=_commit(), repeat=repeat, machine=_machine(load), results=tuple(results))

    def save_results(results: Sequence[Result]) -> None:
        if save is not None:
            written = save.with_name(f".{save.name}.unfinished")
            written.write_text(report(results).model_dump_json(indent=1))
            written.replace(save)

    with redirect_output():
        setup, log = Setup(cache, nessie_gc), partial(click.echo, err=True)
        found = measure_rows(rows, setup, repeat, log, quick=quick, groups=GROUPS, save_results=save_results)
    save_results(found)
    now = report(found)
    compared = changes(before, now) if before is not None else None
    if format_ == "json":
        click.echo(now.model_dump_json(indent=1))
        if before is not None and compared is not None:
            click.echo("\n".join(format_changes(before, compared)), err=True)
    else:
        parts = [format_verdicts(now, compared), format_longest_steps(now)]
        if before is not None and compared is not None:
            parts.append(format_changes(before, compared))
        click.echo("\n\n".join("\n".join(lines) for part in parts if (lines := list(part))))
    bad = {"failed", "missed", "skipped"} if strict else {"failed"}
    if any(result.verdict in bad for result in found):
        raise click.exceptions.Exit(1)


@contextmanager
def redirect_output() -> Generator[None]:
    """Redirect the standard output of libraries to standard error. Standard output is for the
    report.
    """
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
        raise click.UsageError(f"{path} was not written by --save: {error.errors()[0]['msg']}") from None


def compile_bytecode() -> None:
    """Compile the code first: an installed package is compiled."""
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
