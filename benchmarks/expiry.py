"""`python -m benchmarks.expiry [--snapshots 10000]`: expire the history of an Icechunk repository.

gc-assets and the icechunk library expire copies of one repository, each in its own process. The
benchmark fails if a byte of the two results differs.
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

from benchmarks.cache import FINISHED, prepare_build
from benchmarks.resident import ROOT, Resident

KEPT_SNAPSHOTS: Final = 100
ROUNDS: Final = 3
MIB: Final = 1024 * 1024
# An opened file in the output of strace, even if the call ends on a later line. Directories are
# opened to list them.
_OPENED = re.compile(r'openat\([^,]*, "(?P<path>[^"]*)", O_(?P<access>RDONLY|RDWR)(?!\S*O_DIRECTORY)')


def ensure_history(cache: Path, snapshots: int) -> Path:
    """Return a cached repository with this number of snapshots on `main`, and its cut-off. Build it
    if needed.
    """
    root = cache.resolve() / f"icechunk-history-{snapshots}"
    if prepare_build(root):
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


def expire_copy(root: Path, side: str, copy: Path, wrapper: tuple[str, ...] = ()) -> dict[str, Any]:
    """Expire a copy of the repository with one of the two programs, and return its answer.

    Hard links are sufficient copies, because both programs replace files instead of changing them.
    """
    shutil.copytree(root / "repository", copy, copy_function=os.link)
    request = {"repository": str(copy), **json.loads((root / FINISHED).read_text())}
    with Resident([*wrapper, sys.executable, "-m", "benchmarks.expiry_programs", side], copy.parent / "log") as process:
        return process.ask(request)


def count_library_requests(root: Path, folder: Path) -> Counter[str]:
    """Count the objects that the library reads and writes, by strace. Empty without strace."""
    if shutil.which("strace") is None:
        return Counter()
    trace, copy = folder / "trace", folder / "traced"
    expire_copy(root, "library", copy, ("strace", "-f", "-qq", "-e", "trace=openat", "-o", str(trace)))
    opened = (_OPENED.search(line) for line in trace.read_text().splitlines())
    names = {"RDONLY": "GET", "RDWR": "PUT"}
    return Counter(names[found["access"]] for found in opened if found and found["path"].startswith(str(copy)))


@click.command()
@click.option(
    "--snapshots",
    type=click.IntRange(min=2 * KEPT_SNAPSHOTS),
    default=10_000,
    show_default=True,
    help="Snapshots in the history. The newest 100 are kept.",
)
@click.option("--cache", type=click.Path(path_type=Path), default=ROOT / ".benchmarks", help="Directory of lakes. Default: .benchmarks/.")
def main(snapshots: int, cache: Path) -> None:
    """Expire a long history with gc-assets and with the library, and print the usage of each."""
    root = ensure_history(cache, snapshots)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        folder = Path(directory)
        answers: dict[str, list[dict[str, Any]]] = {"ours": [], "library": []}
        for number in range(ROUNDS):
            for side, measured in answers.items():
                measured.append(expire_copy(root, side, folder / f"{side}-{number}"))
            if read_files(folder / f"ours-{number}") != read_files(folder / f"library-{number}"):
                raise click.ClickException("the repositories of gc-assets and the library differ after the expiry")
        library = count_library_requests(root, folder)
    click.echo(f"{snapshots:,} snapshots: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end\n")
    click.echo("| tool | wall s | CPU s | peak MiB | requests |")
    click.echo("|---|---:|---:|---:|---|")
    click.echo(format_line("gc-assets, plan", [item["plan"] for item in answers["ours"]], Counter()))
    click.echo(format_line("gc-assets, expire", [item["expire"] for item in answers["ours"]], Counter(answers["ours"][-1]["requests"])))
    click.echo(format_line("icechunk, expire_snapshots", [item["expire"] for item in answers["library"]], library))


def read_files(repository: Path) -> dict[str, bytes]:
    return {str(path.relative_to(repository)): path.read_bytes() for path in repository.rglob("*") if path.is_file()}


def format_line(tool: str, usages: list[dict[str, Any]], requests: Counter[str]) -> str:
    wall, cpu = (statistics.median(usage[name] for usage in usages) for name in ("wall", "cpu"))
    peak = max(usage["peak_bytes"] for usage in usages) / MIB
    return f"| {tool} | {wall:.2f} | {cpu:.2f} | {peak:,.0f} | {', '.join(f'{count:,} {name}' for name, count in requests.items())} |"


if __name__ == "__main__":
    main()
