"""`python -m benchmarks all` measures every row that has a target.

`python -m benchmarks iceberg|icechunk|nessie|s3 --size s|m|l [--peer]`; Nessie lakes also come as `d` (deep), `r` (refs) and `w` (wide).
`python -m benchmarks scale --tables N --commits N --engine local[2]` takes an Iceberg lake of many tables, and with
`--files N` one of one table.

Nessie's peer is nobody's package, so its launcher has to be named: `--peer LAUNCHER`.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.comparison import Passes, compare
from benchmarks.every import all_command
from benchmarks.many_tables import Size
from benchmarks.nessie_lake import peer_seconds
from benchmarks.resident import ROOT
from benchmarks.s3 import report
from benchmarks.s3.run import PARTS, measure
from benchmarks.scale import CLUSTER, Scaled
from benchmarks.scale import measure as measure_scale
from benchmarks.tables import as_objects, stages, summary

# `--peer` without a launcher: the peer comes as a package.
PACKAGED = "-"
KINDS: Final = ("iceberg", "icechunk", "nessie", "s3", "scale")


def _of_kind(kind: str) -> click.Command:
    """The command that measures lakes of a kind."""

    @click.command(kind)
    @click.option("--size", type=click.Choice(["s", "m", "l", "d", "r", "w"]), default="s", show_default=True)
    @click.option(
        "--peer",
        is_flag=False,
        flag_value=PACKAGED,
        metavar="[LAUNCHER]",
        help="Also run the peer, as a dry run, on the same directory; for a Nessie lake by this launcher of nessie-gc.",
    )
    @click.option(
        "--part", "parts", type=click.Choice(PARTS), multiple=True, help="Of s3 only this part; may be given again. Default: all."
    )
    @click.option("--tables", default=1_000, show_default=True, help="Of scale: how many tables.")
    @click.option("--commits", default=200, show_default=True, help="Of scale: how many commits each table has.")
    @click.option("--files", type=int, help="Of scale: instead of many tables one of so many files, of which only the metadata exists.")
    @click.option(
        "--engine",
        "engines",
        multiple=True,
        default=("local[2]",),
        show_default=True,
        help=f"Of scale: a Spark master, or `{CLUSTER}` for two workers on this machine; may be given again.",
    )
    @click.option("--full", is_flag=True, help="Of scale: also nights that compute all live files.")
    @click.option("--cold-only", is_flag=True, help="Leave the warm nights out.")
    @click.option(
        "--cache", type=click.Path(path_type=Path), default=ROOT / ".benchmarks", help="Where lakes are kept; default .benchmarks/."
    )
    @click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
    def of_kind(**options: Any) -> None:
        """Builds a lake once, runs the stages of a first night and of a second one after a change of one percent, and prints
        what they took.
        """
        _measure(kind, **options)

    return of_kind


def _measure(
    kind: str,
    size: str,
    peer: str | None,
    parts: tuple[str, ...],
    tables: int,
    commits: int,
    files: int | None,
    engines: tuple[str, ...],
    full: bool,
    cold_only: bool,
    cache: Path,
    format_: str,
) -> None:
    if kind == "scale":
        make = partial(Scaled.of_tables, Size(tables, commits)) if files is None else partial(Scaled.of_files, files)
        subjects = [make(cache, engine) for engine in engines]
        _scale([*subjects, *(subject.computing() for subject in subjects if full)], cache, format_)
        return
    launcher = Path(peer) if peer not in {None, PACKAGED} else None
    if (kind == "nessie") != (launcher is not None) and peer is not None:
        how = "name its launcher: `--peer LAUNCHER`; without it the recorded figures stand beside ours"
        raise click.UsageError(f"nessie-gc is on no registry; {how}" if kind == "nessie" else f"the peer of {kind} needs no launcher")
    if kind != "nessie" and size in {"d", "r", "w"}:
        raise click.UsageError(f"size {size} is a Nessie lake's; {kind} has s, m and l")
    if kind == "s3":
        results = measure(size, cache, parts or PARTS, peer=peer is not None)
        lines = [_machine(kind, size), *report.lines(results)]
        click.echo(json.dumps(results.as_object(), indent=1) if format_ == "json" else "\n".join(lines))
        return
    measured = compare(kind, size, cache, Passes(peer=peer is not None, warm=not cold_only), launcher)
    if format_ == "json":
        click.echo(json.dumps(as_objects(measured), indent=1))
        return
    click.echo(_machine(kind, size))
    click.echo("\n".join(summary(measured)))
    recorded = peer_seconds(size) if kind == "nessie" else None
    if recorded is not None:
        click.echo(f"\nnessie-gc, mark and sweep without its start, recorded once on two shared cores: {recorded:.1f} s on any night")
        for item in measured:
            if item.who != "peer" and not item.cold:
                click.echo(f"{item.night} night, ours / recorded: {item.wall / recorded:.2f}")
    for item in measured:
        if item.who != "peer":
            click.echo(f"\n{item.night} night, {'cold' if item.cold else 'warm'}:\n")
            click.echo("\n".join(stages(item)))


def _scale(subjects: list[Scaled], cache: Path, format_: str) -> None:
    found = measure_scale(subjects, cache)
    if format_ == "json":
        click.echo(json.dumps({engine: as_objects(measured) for engine, measured in found.items()}, indent=1))
        return
    click.echo(_machine("scale", subjects[0].kind))
    for engine, measured in found.items():
        click.echo(f"{engine}:\n")
        click.echo("\n".join(summary(measured)))
        for item in measured:
            click.echo(f"\n{item.night} night:\n")
            click.echo("\n".join(stages(item)))
        click.echo("")


def _machine(kind: str, size: str) -> str:
    return f"{kind} {size}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end\n"


@click.group()
def main() -> None:
    """Nights by us and by the peers, on lakes built once."""


main.add_command(all_command)
for name in KINDS:
    main.add_command(_of_kind(name))


if __name__ == "__main__":
    main()
