"""`python -m benchmarks.iceberg_expiry`: expire thousands of snapshots of one Iceberg table.

gc-assets and pyiceberg expire two tables with the same history. The benchmark counts the statements
that reach the database of the catalog, and the objects that pyiceberg's FileIO or our own reader
reads, checks and writes.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.counting import REQUESTS, CountingObjects, count_statements
from benchmarks.iceberg_history import HistoryWriter, Snap
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.iceberg.registrations import build_graph
from gc_assets.lakes.protocol import ExpiryAction
from tests.lakes.iceberg.builder import LakeBuilder

AS_OF: Final = datetime(2026, 6, 1, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
NAME: Final = "db.long"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One expiry.

    Attributes:
        statements: Statements that reached the catalog.
        read: Objects that were read. `heads` and `written` count objects too.
        left: Snapshots after the expiry.
        before_bytes: Size of the metadata.json before the expiry.
        after_bytes: Size of the metadata.json after it.
        peak_bytes: Peak resident memory of the process so far.
    """

    tool: str
    wall: float
    cpu: float
    statements: int
    read: int
    heads: int
    written: int
    left: int
    before_bytes: int
    after_bytes: int
    peak_bytes: int


def compare(expired: int, retained: int, tags: int, *, summary_bytes: int = 0, with_peer: bool = True) -> list[Measurement]:
    """Expire the same history with gc-assets and, if chosen, with pyiceberg.

    Raises:
        RuntimeError: If the two results have different snapshots, or a wrong number of them.
    """
    with tempfile.TemporaryDirectory() as directory:
        ours = _lake(Path(directory) / "ours", expired, retained, tags, summary_bytes)
        lake = IcebergLake(ours.config(), CountingObjects())
        measured = [_measure("gc-assets", ours, lambda: _require_done(lake.expire(_plan_actions(lake), AS_OF, AS_OF)))]
        builders = [ours]
        if with_peer:
            theirs = _lake(Path(directory) / "theirs", expired, retained, tags, summary_bytes)
            measured.append(_measure("pyiceberg", theirs, lambda: _expire_with_pyiceberg(theirs)))
            builders.append(theirs)
        left = [{item.snapshot_id for item in builder.catalog.load_table(NAME).metadata.snapshots} for builder in builders]
        if left[0] != left[-1] or len(left[0]) != retained:
            raise RuntimeError(f"{len(left[0]):,} and {len(left[-1]):,} snapshots are left, expected the same {retained:,}")
        return measured


def _lake(root: Path, expired: int, retained: int, tags: int, summary_bytes: int) -> LakeBuilder:
    builder = LakeBuilder(root)
    builder.properties["py-io-impl"] = "benchmarks.counting.CountingFileIO"
    builder.catalog = type(builder.catalog)(builder.catalog_name, **builder.properties)
    count = expired + retained
    start = AS_OF - 30 * timedelta(days=1) - expired * MINUTE  # the retained snapshots are from the last five days
    stamps = [start + index * MINUTE if index < expired else AS_OF - (count - index) * MINUTE for index in range(count)]
    refs: dict[str, dict[str, Any]] = {"main": {"snapshot-id": count, "type": "branch"}}
    refs |= {f"t{index}": {"snapshot-id": expired + 1 + index, "type": "tag"} for index in range(tags)}
    snaps = [Snap(index + 1, index or None, stamp) for index, stamp in enumerate(stamps)]
    summary = {f"writer-property-{number}": "x" * 77 for number in range(summary_bytes // 100)}
    HistoryWriter(builder, AS_OF, summary=summary).table("long", snaps, refs, log=range(1, count + 1), without_lists=range(1, expired + 1))
    return builder


def _plan_actions(lake: IcebergLake) -> list[ExpiryAction]:
    frozen = lake.freeze(AS_OF)
    registrations = [lake.read_registration(source.table_name or "", source.address) for source in frozen.sources]
    return [ExpiryAction(**row) for row in lake.retain(frozen, build_graph(registrations), AS_OF, AS_OF).expiry.to_pylist()]


def _require_done(outcomes: Iterator[Any]) -> None:
    found = Counter(outcome.verdict for outcome in outcomes)
    if set(found) != {"done"}:
        raise RuntimeError(f"expected every outcome to be done, found {dict(found)}")


def _expire_with_pyiceberg(builder: LakeBuilder) -> None:
    table = type(builder.catalog)(builder.catalog_name, **builder.properties).load_table(NAME)
    table.maintenance.expire_snapshots().older_than(AS_OF - timedelta(days=5)).commit()


def _measure(tool: str, builder: LakeBuilder, call: Callable[[], None]) -> Measurement:
    before = _metadata_bytes(builder)
    with count_statements():
        REQUESTS.clear()
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        counted = Counter(REQUESTS)
    left = len(builder.catalog.load_table(NAME).metadata.snapshots)
    requests = (counted["statements"], counted["read"], counted["head"], counted["written"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Measurement(tool, wall, cpu, *requests, left, before, _metadata_bytes(builder), peak)


def _metadata_bytes(builder: LakeBuilder) -> int:
    return Path(builder.catalog.load_table(NAME).metadata_location.removeprefix("file://")).stat().st_size


def format_table(rounds: list[list[Measurement]]) -> Iterator[str]:
    """Format the medians of the rounds as a Markdown table."""
    yield "| tool | wall s | CPU s | catalog statements | objects read | HEAD requests | written | snapshots left | metadata MB | peak MB |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for several in zip(*rounds, strict=True):
        wall, cpu = (statistics.median(getattr(item, name) for item in several) for name in ("wall", "cpu"))
        one = several[0]
        counts = " | ".join(f"{value:,}" for value in (one.statements, one.read, one.heads, one.written, one.left))
        sizes = f"{one.before_bytes / 1e6:.1f} to {one.after_bytes / 1e6:.1f} | {one.peak_bytes / 1e6:,.0f}"
        yield f"| {one.tool} | {wall:.2f} | {cpu:.2f} | {counts} | {sizes} |"


@click.command()
@click.option("--snapshots", default=5_000, show_default=True, help="Snapshots to expire.")
@click.option("--retained", default=100, show_default=True, help="Snapshots to retain.")
@click.option("--tags", default=50, show_default=True, help="Tags on retained snapshots.")
@click.option("--summary-bytes", default=0, show_default=True, help="Additional size of each snapshot in the metadata.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Also measure pyiceberg, which takes quadratic time.")
@click.option("--rounds", default=3, show_default=True, help="Measurements; their median is printed.")
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(snapshots: int, retained: int, tags: int, rounds: int, format_: str, summary_bytes: int, *, peer: bool) -> None:
    """Expire most of a long history with gc-assets and with pyiceberg."""
    measured = [compare(snapshots, retained, tags, summary_bytes=summary_bytes, with_peer=peer) for _ in range(rounds)]
    if format_ == "json":
        click.echo(json.dumps([asdict(item) for several in measured for item in several], indent=1))
    else:
        click.echo("\n".join(format_table(measured)))


if __name__ == "__main__":
    main()
