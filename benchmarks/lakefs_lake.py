"""`python -m benchmarks.lakefs_lake`: decode the metadata of a lakeFS repository, first and second
run.

The repository is generated: `entries` objects at the head, and `commits` commits that each rewrite
one of many ranges, so that ranges are shared as in lakeFS. Only metadata is on the disk. The
small server of the tests is used and is not measured.
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
ENTRIES_PER_RANGE = 5_000
# The form of object keys in lakeFS: a partition and an object, both xids.
XID = "d7k67ohksdudjsb1{:04x}"

Range = tuple[str, bytes, bytes, int]
STAGES: tuple[tuple[str, Callable[[SparkSession, RunContext], PublishedTable]], ...] = (
    ("lake_refs", lambda _, context: lake_refs(context, "bench")),
    ("commit_graph", lambda spark, context: commit_graph(spark, context, "bench")),
    ("reachable_snapshots", lambda spark, context: reachable_snapshots(spark, context, "bench")[0]),
    ("manifest_entries", lambda spark, context: manifest_entries(spark, context, "bench")),
    ("live_files", lambda spark, context: live_files(spark, context, "bench")),
)


class GeneratedRepository:
    """The metadata of a repository, range by range."""

    def __init__(self, folder: Path, entries: int, commits: int) -> None:
        self.repository = FakeRepository("bench", folder / "bench")
        self._ranges = [self._range(number, 0) for number in range(-(-entries // ENTRIES_PER_RANGE))]
        for number in range(commits):
            self.commit(number)

    def commit(self, number: int) -> None:
        """Rewrite one range and commit."""
        position = number * 7 % len(self._ranges)
        self._ranges[position] = self._range(position, number + 1)
        metarange = self.repository.write_metadata(metarange_table(self._ranges))
        name, parents = f"commit-{number:05}", [f"commit-{number - 1:05}"] if number else []
        committed_at = NOW - timedelta(days=300) + timedelta(days=number)
        self.repository.commits[name] = Commit(name, parents, int(committed_at.timestamp()), metarange)
        self.repository.trees[name] = {}  # the objects that a listing returns; the server is not measured
        self.repository.branches["main"] = Branch(name)

    def _range(self, number: int, version: int) -> Range:
        """Write a range. Each version changes one object in a hundred."""
        first = number * ENTRIES_PER_RANGE
        entries = [
            Entry(f"events/part-{first + offset:09}.parquet", self._address(number, offset, version * (offset % 100 == version % 100)))
            for offset in range(ENTRIES_PER_RANGE)
        ]
        low, high = entries[0].path.encode(), entries[-1].path.encode()
        return self.repository.write_metadata(range_table(entries)), low, high, len(entries)

    def _address(self, number: int, offset: int, version: int) -> str:
        return f"data/{XID.format(number)}/d7k67o{number:04x}{offset:04x}{version:04x}0g"


def measure_runs(folder: Path, entries: int, commits: int, cores: int) -> Iterator[tuple[str, str, float, dict[str, int]]]:
    """Measure a first run, and a second one after one more commit.

    Yields:
        Run, stage, seconds and summary of each stage.
    """
    started = time.perf_counter()
    generated = GeneratedRepository(folder, entries, commits)
    yield "", "generate", time.perf_counter() - started, {}
    spark = SparkRuntime(mode="session", master=f"local[{cores}]", remote="", conf={"spark.sql.shuffle.partitions": "8"}).session()
    spark.range(1).mapInArrow(lambda batches: batches, "id long").count()  # starts the workers
    server = FakeServer(generated.repository)
    with server.running() as url:
        location = f"file://{generated.repository.namespace}/"
        credentials = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
        lake = {"name": "bench", "kind": "lakefs", "endpoint": url, "repository": "bench", "location": location, **credentials}
        for run, now in (("first", NOW), ("second", NOW + timedelta(days=1))):
            config = Config(
                state=str(folder / "state"),
                storages=(StorageConfig(name="blocks", location=location),),
                lakes=(LakeFsLakeConfig.model_validate(lake),),
            )
            context = RunContext.of(config, Clock(now), now.date())
            for name, stage in STAGES:
                started = time.perf_counter()
                summary = stage(spark, context).receipt.summary
                yield (
                    run,
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
    """Print the seconds of each stage of two runs, and the entries decoded per second and core."""
    with tempfile.TemporaryDirectory(prefix="lakefs-bench-") as folder:
        for run, stage, seconds, summary in measure_runs(Path(folder), entries, commits, cores):
            if format_ == "json":
                click.echo(json.dumps({"run": run, "stage": stage, "seconds": seconds, **summary}))
                continue
            rate = (
                f"  {summary['decoded']:,} containers, {summary['entries']:,} entries, {summary['entries'] / seconds / cores:,.0f}/s a core"
                if summary
                else ""
            )
            click.echo(f"{run:7} {stage:20} {seconds:8.2f} s{rate}")


if __name__ == "__main__":
    main()
