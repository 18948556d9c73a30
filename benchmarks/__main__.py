"""Command line of the benchmarks.

`python -m benchmarks all` measures every figure that has a target.

`python -m benchmarks iceberg|icechunk|nessie|s3 --size s|m|l [--peer]` measures one lake. Nessie
lakes also have the sizes `d` (deep), `r` (refs) and `w` (wide).

`python -m benchmarks scale --tables N --commits N --engine local[2]` measures an Iceberg lake of
many tables, and with `--files N` a lake of one large table.

nessie-gc is not in any package registry, so specify its launcher: `--peer LAUNCHER`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.comparison import Passes, compare
from benchmarks.many_tables import Size
from benchmarks.nessie_lake import peer_seconds
from benchmarks.resident import ROOT
from benchmarks.s3 import report
from benchmarks.s3.run import PARTS, measure
from benchmarks.scale import CLUSTER, ScaleSubject
from benchmarks.scale import measure as measure_scale
from benchmarks.suite import all_command
from benchmarks.tables import as_objects, format_stages, format_summary

# The value of `--peer` without a launcher. The peer is then a Python package.
PACKAGED = "-"
KINDS: Final = ("iceberg", "icechunk", "nessie", "s3", "scale")


def _of_kind(kind: str) -> click.Command:
    """Return the command that measures lakes of one kind."""

    @click.command(kind)
    @click.option("--size", type=click.Choice(["s", "m", "l", "d", "r", "w"]), default="s", show_default=True)
    @click.option(
        "--peer",
        is_flag=False,
        flag_value=PACKAGED,
        metavar="[LAUNCHER]",
        help="Also make a dry run of the peer on the same directory. A Nessie lake needs the launcher of nessie-gc.",
    )
    @click.option(
        "--part", "parts", type=click.Choice(PARTS), multiple=True, help="For s3: only this part. Can be repeated. Default: all parts."
    )
    @click.option("--tables", default=1_000, show_default=True, help="For scale: the number of tables.")
    @click.option("--commits", default=200, show_default=True, help="For scale: the number of commits in each table.")
    @click.option("--files", type=int, help="For scale: one table with this number of files. Only its metadata is written.")
    @click.option(
        "--engine",
        "engines",
        multiple=True,
        default=("local[2]",),
        show_default=True,
        help=f"For scale: a Spark master, or `{CLUSTER}` for two workers on this machine. Can be repeated.",
    )
    @click.option("--cold-only", is_flag=True, help="Skip the warm runs.")
    @click.option(
        "--cache", type=click.Path(path_type=Path), default=ROOT / ".benchmarks", help="Directory of the lakes. Default: .benchmarks/."
    )
    @click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
    def of_kind(**options: Any) -> None:
        """Build a lake once, measure a first run and a second run after one percent was added, and
        print the results.
        """
        _measure(kind, _Options(**options))

    return of_kind


@dataclass(frozen=True)
class _Options:
    """The options of a command."""

    size: str
    peer: str | None
    parts: tuple[str, ...]
    tables: int
    commits: int
    files: int | None
    engines: tuple[str, ...]
    cold_only: bool
    cache: Path
    format_: str


def _measure(kind: str, options: _Options) -> None:
    size, peer, cache, format_ = options.size, options.peer, options.cache, options.format_
    if kind == "scale":
        of_tables = partial(ScaleSubject.of_tables, Size(options.tables, options.commits))
        make = of_tables if options.files is None else partial(ScaleSubject.of_files, options.files)
        subjects = [make(cache, engine) for engine in options.engines]
        _scale(subjects, cache, format_)
        return
    launcher = Path(peer) if peer not in {None, PACKAGED} else None
    if (kind == "nessie") != (launcher is not None) and peer is not None:
        missing = "nessie-gc is not in any package registry. Use `--peer LAUNCHER`, or omit --peer to compare with its recorded seconds."
        raise click.UsageError(missing if kind == "nessie" else f"the peer of {kind} needs no launcher")
    if kind != "nessie" and size in {"d", "r", "w"}:
        raise click.UsageError(f"size {size} exists only for nessie; {kind} has s, m and l")
    if kind == "s3":
        results = measure(size, cache, options.parts or PARTS, peer=peer is not None)
        lines = [_machine(kind, size), *report.lines(results)]
        click.echo(json.dumps(results.as_object(), indent=1) if format_ == "json" else "\n".join(lines))
        return
    measured = compare(kind, size, cache, Passes(peer=peer is not None, warm=not options.cold_only), launcher)
    if format_ == "json":
        click.echo(json.dumps(as_objects(measured), indent=1))
        return
    click.echo(_machine(kind, size))
    click.echo("\n".join(format_summary(measured)))
    recorded = peer_seconds(size) if kind == "nessie" else None
    if recorded is not None:
        click.echo(f"\nnessie-gc, mark and sweep without its start, recorded once on two shared cores: {recorded:.1f} s for any run")
        for item in measured:
            if item.tool != "peer" and not item.cold:
                click.echo(f"{item.run} run, ours / recorded: {item.wall / recorded:.2f}")
    for item in measured:
        if item.tool != "peer":
            click.echo(f"\n{item.run} run, {'cold' if item.cold else 'warm'}:\n")
            click.echo("\n".join(format_stages(item)))


def _scale(subjects: list[ScaleSubject], cache: Path, format_: str) -> None:
    found = measure_scale(subjects, cache)
    if format_ == "json":
        click.echo(json.dumps({engine: as_objects(measured) for engine, measured in found.items()}, indent=1))
        return
    click.echo(_machine("scale", subjects[0].kind))
    for engine, measured in found.items():
        click.echo(f"{engine}:\n")
        click.echo("\n".join(format_summary(measured)))
        for item in measured:
            click.echo(f"\n{item.run} run:\n")
            click.echo("\n".join(format_stages(item)))
        click.echo("")


def _machine(kind: str, size: str) -> str:
    return f"{kind} {size}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end\n"


@click.group()
def main() -> None:
    """Compare runs of gc-assets with runs of its peers, on the same lakes."""


main.add_command(all_command)
for name in KINDS:
    main.add_command(_of_kind(name))


if __name__ == "__main__":
    main()
