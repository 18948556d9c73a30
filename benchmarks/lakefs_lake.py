"""`python -m benchmarks.lakefs_lake`: how fast a lakeFS repository's metadata is decoded, first night and second.

A generated repository: `entries` objects at the head, `commits` commits each of which rewrites one range of many, so that ranges are
shared as in lakeFS. Only metadata is on the disk; the server is the tests' small one, which is not measured.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from pyspark.sql import SparkSession

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.resources.spark import SparkRuntime
from gc_assets.stages.mark.commit_graph import commit_graph
from gc_assets.stages.mark.lake_refs import lake_refs
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.manifest_entries import manifest_entries
from gc_assets.stages.mark.reachable_snapshots import reachable_snapshots
from gc_assets.state.journal import PublishedTable
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET, Branch, Commit, FakeRepository, FakeServer
from tests.lakes.lakefs.tables import Entry, metarange_table, range_table

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
ENTRIES_A_RANGE = 5_000
# lakeFS's names: a partition and an object, both xids.
XID = "d7k67ohksdudjsb1{:04x}"

Range = tuple[str, bytes, bytes, int]
STAGES: tuple[tuple[str, Callable[[SparkSession, RunContext], PublishedTable]], ...] = (
    ("lake_refs", lambda _, night: lake_refs(night, "bench")),
    ("commit_graph", lambda spark, night: commit_graph(spark, night, "bench")),
    ("reachable_snapshots", lambda spark, night: reachable_snapshots(spark, night, "bench")[0]),
    ("manifest_entries", lambda spark, night: manifest_entries(spark, night, "bench")),
    ("live_files", lambda spark, night: live_files(spark, night, "bench")),
)


class GeneratedRepository:
    """The metadata of a repository, range by range."""

    def __init__(self, folder: Path, entries: int, commits: int) -> None:
        self.repository = FakeRepository("bench", folder / "bench")
        self._ranges = [self._range(number, 0) for number in range(-(-entries // ENTRIES_A_RANGE))]
        for number in range(commits):
            self.commit(number)

    def commit(self, number: int) -> None:
        """A commit that rewrites one range."""
        touched = number * 7 % len(self._ranges)
        self._ranges[touched] = self._range(touched, number + 1)
        metarange = self.repository.write_metadata(metarange_table(self._ranges))
        name, parents = f"commit-{number:05}", [f"commit-{number - 1:05}"] if number else []
        made = NOW - timedelta(days=300) + timedelta(days=number)
        self.repository.commits[name] = Commit(name, parents, int(made.timestamp()), metarange)
        self.repository.trees[name] = {}  # what a listing would show; the server's side is not measured
        self.repository.branches["main"] = Branch(name)

    def _range(self, number: int, version: int) -> Range:
        """One object in a hundred is another than in the version before."""
        first = number * ENTRIES_A_RANGE
        entries = [
            Entry(f"events/part-{first + place:09}.parquet", self._address(number, place, version if place % 100 == version % 100 else 0))
            for place in range(ENTRIES_A_RANGE)
        ]
        low, high = entries[0].path.encode(), entries[-1].path.encode()
        return self.repository.write_metadata(range_table(entries)), low, high, len(entries)

    def _address(self, number: int, place: int, version: int) -> str:
        return f"data/{XID.format(number)}/d7k67o{number:04x}{place:04x}{version:04x}0g"


def nights(folder: Path, entries: int, commits: int, cores: int) -> Iterator[tuple[str, str, float, dict[str, int]]]:
    """(night, stage, seconds, facts) of a first night and of one that follows one more commit."""
    started = time.perf_counter()
    generated = GeneratedRepository(folder, entries, commits)
    yield "", "generate", time.perf_counter() - started, {}
    spark = SparkRuntime(mode="session", master=f"local[{cores}]", remote="", conf={"spark.sql.shuffle.partitions": "8"}).session()
    spark.range(1).mapInArrow(lambda batches: batches, "id long").count()  # workers are up
    server = FakeServer(generated.repository)
    with server.running() as url:
        location = f"file://{generated.repository.namespace}/"
        credentials = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
        lake = {"name": "bench", "kind": "lakefs", "endpoint": url, "repository": "bench", "location": location, **credentials}
        for night_name, now in (("first", NOW), ("second", NOW + timedelta(days=1))):
            config = Config(
                state=str(folder / "state"),
                storages=(StorageConfig(name="blocks", location=location),),
                lakes=(LakeFsLakeConfig.model_validate(lake),),
            )
            night = RunContext.of(config, Clock(now), now.date())
            for name, stage in STAGES:
                started = time.perf_counter()
                summary = stage(spark, night).receipt.summary
                yield (
                    night_name,
                    name,
                    time.perf_counter() - started,
                    {key: summary[key] for key in ("decoded", "entries") if key in summary},
                )
            generated.commit(commits)


@click.command()
@click.option("--entries", default=1_000_000, show_default=True)
@click.option("--commits", default=200, show_default=True)
@click.option("--cores", default=1, show_default=True, help="Spark's local[N].")
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(entries: int, commits: int, cores: int, format_: str) -> None:
    """Prints what each stage of two nights took, and the entries decoded for a second of a core."""
    with tempfile.TemporaryDirectory(prefix="lakefs-bench-") as folder:
        for night, stage, seconds, summary in nights(Path(folder), entries, commits, cores):
            if format_ == "json":
                click.echo(json.dumps({"night": night, "stage": stage, "seconds": seconds, **summary}))
                continue
            rate = (
                f"  {summary['decoded']:,} containers, {summary['entries']:,} entries, {summary['entries'] / seconds / cores:,.0f}/s a core"
                if summary
                else ""
            )
            click.echo(f"{night:7} {stage:20} {seconds:8.2f} s{rate}")


if __name__ == "__main__":
    main()
