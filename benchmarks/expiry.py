"""`python -m benchmarks.expiry [--snapshots 10000]`: the history of one Icechunk repository expires, by us and by the library.

Both work on copies of the same repository, in processes of their own; the benchmark fails where the copies differ in a byte afterwards.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click
import icechunk
import zarr

from benchmarks.cache import FINISHED, is_to_build
from benchmarks.resident import ROOT, Resident

KEPT_SNAPSHOTS: Final = 100
ROUNDS: Final = 3
MIB: Final = 1024 * 1024
# A file that is opened, as strace prints it, also where the call ends on a later line. Directories are opened to list them.
_OPENED = re.compile(r'openat\([^,]*, "(?P<path>[^"]*)", O_(?P<access>RDONLY|RDWR)(?!\S*O_DIRECTORY)')


def ensure_history(cache: Path, snapshots: int) -> Path:
    """A repository below `cache` whose `main` has that many snapshots, written by the library; beside it the cut-off."""
    root = cache.resolve() / f"icechunk-history-{snapshots}"
    if is_to_build(root):
        root.mkdir(parents=True)
        icechunk.set_logs_filter("error")
        repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(root / "repository")))
        for number in range(1, snapshots):
            session = repository.writable_session("main")
            zarr.open_group(session.store, mode="a").attrs["number"] = number
            session.commit(f"number {number}")
        times = sorted(snapshot.written_at for snapshot in repository.ancestry(branch="main"))
        (root / FINISHED).write_text(json.dumps({"cutoff": times[-KEPT_SNAPSHOTS].isoformat()}))
    return root


def expired(root: Path, side: str, copy: Path, wrapper: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a side answers about a fresh copy of the repository. Links do as a copy: both sides put new files in the place of old ones."""
    shutil.copytree(root / "repository", copy, copy_function=os.link)
    request = {"repository": str(copy), **json.loads((root / FINISHED).read_text())}
    with Resident([*wrapper, sys.executable, "-m", "benchmarks.expiry_sides", side], copy.parent / "log") as process:
        return process.ask(request)


def requests_of_the_library(root: Path, below: Path) -> Counter[str]:
    """The objects that the library reads and writes, seen from outside by strace; empty where there is none."""
    if shutil.which("strace") is None:
        return Counter()
    trace, copy = below / "trace", below / "traced"
    expired(root, "library", copy, ("strace", "-f", "-qq", "-e", "trace=openat", "-o", str(trace)))
    opened = (_OPENED.search(line) for line in trace.read_text().splitlines())
    names = {"RDONLY": "GET", "RDWR": "PUT"}
    return Counter(names[found["access"]] for found in opened if found and found["path"].startswith(str(copy)))


@click.command()
@click.option(
    "--snapshots",
    type=click.IntRange(min=2 * KEPT_SNAPSHOTS),
    default=10_000,
    show_default=True,
    help="Length of the history; the newest 100 are kept.",
)
@click.option("--cache", type=click.Path(path_type=Path), default=ROOT / ".benchmarks", help="Where it is kept; default .benchmarks/.")
def main(snapshots: int, cache: Path) -> None:
    """Expires a long history by us and by the library, and prints what each took."""
    root = ensure_history(cache, snapshots)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        below = Path(directory)
        answers: dict[str, list[dict[str, Any]]] = {"ours": [], "library": []}
        for number in range(ROUNDS):
            for side, measured in answers.items():
                measured.append(expired(root, side, below / f"{side}-{number}"))
            if contents(below / f"ours-{number}") != contents(below / f"library-{number}"):
                raise click.ClickException("the two repositories differ after the expiry")
        library = requests_of_the_library(root, below)
    click.echo(f"{snapshots:,} snapshots: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end\n")
    click.echo("| who | wall s | CPU s | peak MiB | requests |")
    click.echo("|---|---:|---:|---:|---|")
    click.echo(line("gc-assets, plan", [item["plan"] for item in answers["ours"]], Counter()))
    click.echo(line("gc-assets, expire", [item["expire"] for item in answers["ours"]], Counter(answers["ours"][-1]["requests"])))
    click.echo(line("icechunk, expire_snapshots", [item["expire"] for item in answers["library"]], library))


def contents(repository: Path) -> dict[str, bytes]:
    return {str(path.relative_to(repository)): path.read_bytes() for path in repository.rglob("*") if path.is_file()}


def line(who: str, usages: list[dict[str, Any]], requests: Counter[str]) -> str:
    wall, cpu = (statistics.median(usage[name] for usage in usages) for name in ("wall", "cpu"))
    peak = max(usage["peak_bytes"] for usage in usages) / MIB
    return f"| {who} | {wall:.2f} | {cpu:.2f} | {peak:,.0f} | {', '.join(f'{count:,} {name}' for name, count in requests.items())} |"


if __name__ == "__main__":
    main()
