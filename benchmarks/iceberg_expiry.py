"""`python -m benchmarks.iceberg_expiry`: expiry of thousands of snapshots of one table, by us and by pyiceberg's own call.

Both work on sister tables with the same history. Requests are counted at the edges: statements that reach the catalog's database, and
objects asked for, read and written, whether through pyiceberg's FileIO or our own reader.
"""

from __future__ import annotations

import json
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

from benchmarks.counted import REQUESTS, CountedObjects, counted_statements
from benchmarks.iceberg_history import HistoryWriter, Snap
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.iceberg.registrations import Registration, build_graph
from gc_assets.lakes.protocol import ExpiryAction
from tests.lakes.iceberg.builder import LakeBuilder

AS_OF: Final = datetime(2026, 6, 1, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
NAME: Final = "db.long"


@dataclass(frozen=True, slots=True)
class Measured:
    """One call. `statements` reached the catalog; `read`, `asked` and `written` are objects."""

    who: str
    wall: float
    cpu: float
    statements: int
    read: int
    asked: int
    written: int
    left: int


def compare(expired: int, retained: int, tags: int) -> list[Measured]:
    """Raises `RuntimeError` where the two do not leave the same snapshots, or one leaves the wrong number."""
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = (_lake(Path(directory) / who, expired, retained, tags) for who in ("ours", "theirs"))
        lake = IcebergLake(ours.config(), CountedObjects())
        actions = _planned(lake)
        measured = [
            _measured("gc-assets", ours, lambda: _count(lake.expire(actions, AS_OF, AS_OF))),
            _measured("pyiceberg", theirs, lambda: _pyiceberg(theirs)),
        ]
        left = [{item.snapshot_id for item in lake.catalog.load_table(NAME).metadata.snapshots} for lake in (ours, theirs)]
        if left[0] != left[1] or len(left[0]) != retained:
            raise RuntimeError(f"{len(left[0]):,} and {len(left[1]):,} snapshots are left, expected the same {retained:,}")
        return measured


def _lake(root: Path, expired: int, retained: int, tags: int) -> LakeBuilder:
    builder = LakeBuilder(root)
    builder.properties["py-io-impl"] = "benchmarks.counted.CountedFileIO"
    builder.catalog = type(builder.catalog)(builder.catalog_name, **builder.properties)
    count = expired + retained
    start = AS_OF - 30 * timedelta(days=1) - expired * MINUTE  # the retained ones follow within the last five days
    stamps = [start + index * MINUTE if index < expired else AS_OF - (count - index) * MINUTE for index in range(count)]
    refs: dict[str, dict[str, Any]] = {"main": {"snapshot-id": count, "type": "branch"}}
    refs |= {f"t{index}": {"snapshot-id": expired + 1 + index, "type": "tag"} for index in range(tags)}
    snaps = [Snap(index + 1, index or None, stamp) for index, stamp in enumerate(stamps)]
    HistoryWriter(builder, AS_OF).table("long", snaps, refs, log=range(1, count + 1), without_lists=range(1, expired + 1))
    return builder


def _planned(lake: IcebergLake) -> list[ExpiryAction]:
    frozen = lake.freeze(AS_OF)
    registrations = [_registration(lake, source.table_name or "", source.address) for source in frozen.sources]
    return [ExpiryAction(**row) for row in lake.retain(frozen, build_graph(registrations), AS_OF, AS_OF).expiry.to_pylist()]


def _registration(lake: IcebergLake, name: str, address: str) -> Registration:
    return lake._registration(name, address)


def _count(outcomes: Iterator[Any]) -> None:
    found = Counter(outcome.verdict for outcome in outcomes)
    if set(found) != {"done"}:
        raise RuntimeError(f"expected every outcome to be done, found {dict(found)}")


def _pyiceberg(builder: LakeBuilder) -> None:
    table = type(builder.catalog)(builder.catalog_name, **builder.properties).load_table(NAME)
    table.maintenance.expire_snapshots().older_than(AS_OF - timedelta(days=5)).commit()


def _measured(who: str, builder: LakeBuilder, call: Callable[[], None]) -> Measured:
    with counted_statements():
        REQUESTS.clear()
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        counted = Counter(REQUESTS)
    left = len(builder.catalog.load_table(NAME).metadata.snapshots)
    return Measured(who, wall, cpu, counted["statements"], counted["read"], counted["asked"], counted["written"], left)


def lines(rounds: list[list[Measured]]) -> Iterator[str]:
    """The medians as a Markdown table."""
    yield "| who | wall s | CPU s | catalog statements | objects read | asked for | written | snapshots left |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for several in zip(*rounds, strict=True):
        wall, cpu = (statistics.median(getattr(item, name) for item in several) for name in ("wall", "cpu"))
        one = several[0]
        counts = " | ".join(f"{value:,}" for value in (one.statements, one.read, one.asked, one.written, one.left))
        yield f"| {one.who} | {wall:.2f} | {cpu:.2f} | {counts} |"


@click.command()
@click.option("--snapshots", default=5_000, show_default=True, help="Snapshots to expire.")
@click.option("--retained", default=100, show_default=True, help="Snapshots that stay.")
@click.option("--tags", default=50, show_default=True, help="Tags on those that stay.")
@click.option("--rounds", default=3, show_default=True, help="The median of so many is printed.")
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(snapshots: int, retained: int, tags: int, rounds: int, format_: str) -> None:
    """Expires most of a long history, as gc-assets does it and as pyiceberg does."""
    measured = [compare(snapshots, retained, tags) for _ in range(rounds)]
    if format_ == "json":
        click.echo(json.dumps([asdict(item) for several in measured for item in several], indent=1))
    else:
        click.echo("\n".join(lines(measured)))


if __name__ == "__main__":
    main()
