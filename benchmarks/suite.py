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
from types import MappingProxyType
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
INTERRUPTED: Final = "interrupted"
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
    earlier: Mapping[str, Sequence[Sample]] = MappingProxyType({}),
    save_results: SaveResults = lambda _: None,
) -> list[Result]:
    """Measure rows, `repeat` times per group.

    If a group fails, its rows report the reason and the remaining groups are measured. After Ctrl-C
    all incomplete rows count as failed. Each row keeps the samples so far.

    Args:
        earlier: The samples of an interrupted run, by row. Only missing samples are measured.
        save_results: Called after each repeat with the results of all rows.

    Returns:
        One result per row, in the order of `rows`.
    """
    found = {row.name: _build_result(row, earlier.get(row.name, ()), repeat, INTERRUPTED) for row in rows}
    names = list(dict.fromkeys(row.group for row in rows if row.group is not None))
    try:
        for number, name in enumerate(names, 1):
            members, log_group = [found[row.name] for row in rows if row.group == name], _prefix_log(log, name, number, len(names))
            for results in _measure_group(groups[name], members, setup, repeat, log_group, quick=quick):
                found |= {result.row.name: result for result in results}
                save_results(list(found.values()))
    except KeyboardInterrupt:
        log("interrupted; --resume continues a run with --save")
    return list(found.values())


def _measure_group(group: Group, results: Sequence[Result], setup: Setup, repeat: int, log: Log, *, quick: bool) -> Iterator[list[Result]]:
    """Yield the results of incomplete rows after each repeat."""
    rows = [result.row for result in results if len(result.samples) < repeat]
    if not rows:
        log("already measured")
        return
    samples = {result.row.name: list(result.samples) for result in results}
    reason = _too_long(group, setup.cache) if quick else None
    reason = reason or group.missing_space(setup.cache)
    if reason is not None:
        log(f"skipped: {reason}")
        yield [Result(row=row, outcome="skipped", samples=tuple(samples[row.name]), reason=reason) for row in rows]
        return
    needs_build = ", after the lake is built" if group.needs_build(setup.cache) else ""
    log(f"{len(rows)} rows, {repeat} repeats of about {group.seconds:.0f} s{needs_build}")
    failure = ""
    for time in range(1 + min(len(samples[row.name]) for row in rows), repeat + 1):
        missing, started = [row for row in rows if len(samples[row.name]) < time], perf_counter()
        try:
            measured = group.measure(setup, missing)
            for row in missing:
                samples[row.name].append(measured[row.name])
        except Exception as error:  # noqa: BLE001  (after any failure the other groups are measured)
            failure = f"{type(error).__name__}: {error}"
            log(f"failed: {failure}")
        else:
            values = ", ".join(f"{row.name} {samples[row.name][-1].value:.2f}" for row in missing)
            log(f"{time} of {repeat} took {perf_counter() - started:.0f} s: {values}")
        yield [_build_result(row, samples[row.name], repeat, failure or INTERRUPTED) for row in rows]
        if failure:
            return


def _build_result(row: Row, samples: Sequence[Sample], repeat: int, reason: str) -> Result:
    """Return the result of a row, which is failed for this reason if samples are missing."""
    if row.group is None:
        return Result(row=row, outcome="not built", reason=row.not_built)
    if len(samples) >= repeat:
        return Result(row=row, samples=tuple(samples))
    return Result(row=row, outcome="failed", samples=tuple(samples), reason=reason)


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
    help="Write the results to this file after each repeat, for a later --compare or --resume.",
)
@click.option(
    "--resume", is_flag=True, help="Keep the samples in the file of --save, and measure only missing ones. Needs the same commit."
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
    resume: bool,
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
    began = read_commit()
    kept = _read_saved(save, began) if resume else ()
    others = [result for result in kept if result.row.name not in {row.name for row in rows}]
    cache.mkdir(exist_ok=True)
    compile_bytecode()
    at, load = datetime.now(UTC), os.getloadavg()[0]

    def report(results: Sequence[Result]) -> Report:
        now = read_commit()
        commit = began if now == began else f"{began}..{now}"
        return Report(at=at, commit=commit, repeat=repeat, machine=_machine(load), results=(*results, *others))

    def save_results(results: Sequence[Result]) -> None:
        if save is not None:
            written = save.with_name(f".{save.name}.unfinished")
            written.write_text(report(results).model_dump_json(indent=1))
            written.replace(save)

    with redirect_output():
        setup, log = Setup(cache, nessie_gc), partial(click.echo, err=True)
        samples = {result.row.name: result.samples for result in kept}
        found = measure_rows(rows, setup, repeat, log, quick=quick, groups=GROUPS, earlier=samples, save_results=save_results)
    save_results(found)
    _print_report(report(found), before, format_)
    bad = {"failed", "missed", "skipped"} if strict else {"failed"}
    if any(result.verdict in bad for result in found):
        raise click.exceptions.Exit(1)


def _print_report(now: Report, before: Report | None, format_: str) -> None:
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


def _read_saved(path: Path | None, commit: str) -> Sequence[Result]:
    """Return the results that a run of this commit has saved.

    Raises:
        click.UsageError: If no file was given, or if it has results of other code.
    """
    if path is None:
        raise click.UsageError("--resume needs --save FILE, the file of the interrupted run")
    if not path.exists():
        return ()
    saved = _read(path)
    if not commit or commit.endswith("+") or saved.commit != commit:
        raise click.UsageError(
            f"{path} was measured at commit {saved.commit or 'unknown'}, and this checkout is at {commit or 'unknown'}. --resume needs "
            "the same commit without changes (+). Check it out, or measure all rows with another file."
        )
    return saved.results


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


def read_commit() -> str:
    """Return the commit of the checkout, with `+` if tracked files have changed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
