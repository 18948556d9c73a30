"""Lists a storage in executors, in rounds: a task that meets more than its share hands the rest back.

Below `data/` of a lakeFS repository objects never change, so a partition whose directory is as it was the night before is not listed
again: its rows are carried over (the optimized run). The whole is listed every `full_listing`, as a check.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.core.util.hashing import hash_array
from pyspark.sql import SparkSession

from gc_assets.config import LakeFsLakeConfig
from gc_assets.core.errors import StoreError
from gc_assets.core.files import Files
from gc_assets.core.parts import PartWriter, read_parts
from gc_assets.core.receipts import Balance, Published, Run
from gc_assets.schemas import CLAIMS, DIRECTORIES, LAKE_REFS, PROBLEMS, STORAGE_INVENTORY
from gc_assets.stages.lake_refs import CLAIMS_SIDE, side_rows
from gc_assets.stages.night import Night
from gc_assets.stages.tables import (
    MAX_SAMPLES,
    PARTS_DDL,
    Totals,
    collect,
    merge_written,
    parallelism,
    publish,
    put,
    read_table,
    report_parts,
)
from gc_assets.stores.listing import carried_objects, plan_listing, unchanged_directories
from gc_assets.stores.local import local_path
from gc_assets.stores.protocol import Directory, ListingTask

# About one second of listing for a task; what is beyond goes back and is spread again.
BUDGET_ENTRIES: Final = 250_000
PROBLEMS_SIDE: Final = "_problems"
DIRECTORIES_SIDE: Final = "_leaf_directories"
# A directory modified later than this before the listing is read again the next night.
SETTLED_AFTER: Final = timedelta(minutes=1)
LISTED_DDL: Final = PARTS_DDL + ", leftover binary"


def storage_inventory(spark: SparkSession, night: Night, storage_name: str) -> Published:
    """Every object of a storage, with what was met that is no object (links, names that are not UTF-8, special files).

    Raises `StoreError` naming directories that could not be read: an inventory with a hole is never published.
    """
    state, storage = night.state, night.storage(storage_name)
    run = state.start(storage_name, STORAGE_INVENTORY.name, night.run_date, night.clock)
    width = parallelism(spark)
    before = carried_from(night, storage_name)
    known = _known(night, storage_name, before) if before is not None else []
    carried = unchanged_directories(local_path(storage.location), known)
    tasks: Sequence[ListingTask] = plan_listing(
        local_path(storage.location), width, carried, _nanoseconds(night.clock.now() - SETTLED_AFTER)
    )
    rows: list[Any] = []
    kept = [directory for directory in known if directory.key in carried]
    if before is not None and carried:
        rows += collect(read_table(spark, state, STORAGE_INVENTORY, before).mapInArrow(_Carry(carried, state.files, run), PARTS_DDL))
    planned = finished = 0
    while tasks:
        planned += len(tasks)
        work = spark.createDataFrame([(pickle.dumps(task),) for task in tasks], "task binary").repartition(min(width, len(tasks)))
        listed = collect(work.mapInArrow(_List(state.files, run), LISTED_DDL))
        rows += listed
        finished += sum(json.loads(row["facts"])["tasks"] for row in listed)
        tasks = [task for row in listed for task in pickle.loads(row["leftover"])]  # noqa: S301  (our own tasks' words)
    written = merge_written(rows)
    again = put(_directory_rows(kept), run, state.files, DIRECTORIES_SIDE) if kept else []
    written = replace(written, side={**written.side, DIRECTORIES_SIDE: (*written.side.get(DIRECTORIES_SIDE, ()), *again)})
    problems = {name.removeprefix("problem_"): count for name, count in written.facts.items() if name.startswith("problem_")}
    samples = written.facts.get("problems", [])
    if written.facts.get("incomplete", 0):
        names = ", ".join(f"{item['key'] or '.'} ({item['detail']})" for item in samples if item["kind"] == "unreadable")
        raise StoreError(
            f"storage {storage_name}: {written.facts['incomplete']:,} places could not be listed, so nothing can be planned: {names}. "
            "Give the collector the right to read them, or move them out of the storage."
        )
    total = written.totals.get(("objects",), Totals())
    facts = {
        "objects": total.rows,
        "bytes": total.size_bytes,
        "problems": problems,
        "problem_samples": samples,
        "tasks": planned,
        "location": storage.location,
        "flow": "optimized" if before is not None else "clean",
        "full_listing_on": before.receipt.facts["full_listing_on"] if before is not None else night.run_date.isoformat(),
        "carried_directories": len(carried),
        "carried_objects": written.facts.get("carried", 0),
    }
    balances = [
        Balance(name="listing tasks", expected=planned, found=finished),
        Balance(name="objects listed", expected=total.rows, found=written.rows),
        Balance(name="objects carried over", expected=sum(directory.objects for directory in kept), found=written.facts.get("carried", 0)),
    ]
    inputs = [before] if before is not None else []
    return publish(state, run, written, night.clock, inputs=inputs, balances=balances, facts=facts, unsafe=night.unsafe)


def carried_from(night: Night, storage_name: str) -> Published | None:
    """The inventory whose unchanged partitions need not be listed again; null where the whole storage is listed."""
    lakes = [lake for lake in night.config.lakes if isinstance(lake, LakeFsLakeConfig)]
    before = night.state.latest(storage_name, STORAGE_INVENTORY.name, before=night.run_date)
    if not lakes or before is None or before.receipt.facts.get("location") != night.storage(storage_name).location:
        return None
    age = night.run_date - date.fromisoformat(before.receipt.facts["full_listing_on"])
    return before if age < min(lake.full_listing for lake in lakes) else None


def _known(night: Night, storage_name: str, before: Published) -> list[Directory]:
    """The directories of an earlier listing that lie below `data/` of a lakeFS repository."""
    prefixes: list[str] = []
    for lake in night.config.lakes:
        refs = night.state.latest(lake.name, LAKE_REFS.name) if isinstance(lake, LakeFsLakeConfig) else None
        claims = side_rows(night, refs, CLAIMS_SIDE, CLAIMS) if refs is not None else []
        prefixes += [row["key"] for row in claims if row["storage"] == storage_name]
    rows = read_parts(night.state.files, before.paths(DIRECTORIES_SIDE), DIRECTORIES)
    listed = zip(*(rows.column(name).to_pylist() for name in DIRECTORIES.names), strict=True)
    return [Directory(*row) for row in listed if row[0].startswith(tuple(prefixes))]


def _nanoseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


def _directory_rows(directories: Sequence[Directory]) -> pa.Table:
    return pa.Table.from_pylist([asdict(directory) for directory in directories], schema=DIRECTORIES)


@dataclass(frozen=True)
class _Carry:
    """Copies the rows of unchanged directories from an earlier inventory; runs in executors."""

    carried: frozenset[str]
    files: Files
    run: Run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, STORAGE_INVENTORY.schema)
        places = pa.array(sorted(self.carried), pa.string())
        objects = size_bytes = digest = 0
        for batch in batches:
            mine = carried_objects(batch, places)
            writer.write(mine)
            objects += mine.num_rows
            size_bytes += pc.sum(mine.column("size_bytes")).as_py() or 0
            digest += _digest(mine)
        yield report_parts(writer.close(), digest, {("objects",): Totals(objects, size_bytes)}, {"carried": objects})


@dataclass(frozen=True)
class _List:
    """Runs listing tasks and writes what they list; runs in executors."""

    files: Files
    run: Run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, STORAGE_INVENTORY.schema)
        problems = PartWriter(self.files, self.run.path, PROBLEMS, PROBLEMS_SIDE)
        directories = PartWriter(self.files, self.run.path, DIRECTORIES, DIRECTORIES_SIDE)
        facts: dict[str, Any] = {"tasks": 0, "incomplete": 0, "problems": []}
        leftover: list[ListingTask] = []
        objects = size_bytes = digest = 0
        for batch in batches:
            for content in batch.column("task").to_pylist():
                facts["tasks"] += 1
                for step in pickle.loads(content).run(BUDGET_ENTRIES):  # noqa: S301  (our own driver's words)
                    writer.write(step.objects)
                    objects += step.objects.num_rows
                    size_bytes += pc.sum(step.objects.column("size_bytes")).as_py() or 0
                    digest += _digest(step.objects)
                    leftover += step.leftover
                    directories.write(pa.RecordBatch.from_pylist([asdict(item) for item in step.directories], schema=DIRECTORIES))
                    problems.write(pa.RecordBatch.from_pylist([asdict(problem) for problem in step.problems], schema=PROBLEMS))
                    for problem in step.problems:
                        name = f"problem_{problem.kind}"
                        facts[name] = facts.get(name, 0) + 1
                        facts["incomplete"] += problem.is_incomplete
                        # What makes the inventory incomplete must be named, so it comes before the harmless.
                        facts["problems"].insert(0 if problem.is_incomplete else len(facts["problems"]), asdict(problem))
                        del facts["problems"][MAX_SAMPLES:]
        row = report_parts(
            [*writer.close(), *problems.close(), *directories.close()], digest, {("objects",): Totals(objects, size_bytes)}, facts
        )
        yield row.append_column("leftover", pa.array([pickle.dumps(leftover)], pa.binary()))


def _digest(objects: pa.RecordBatch) -> int:
    """Order-free over (key, size, time); numeric, because a listing is the widest table there is."""
    if objects.num_rows == 0:
        return 0
    keys = hash_array(objects.column("key").to_numpy(zero_copy_only=False), categorize=False)
    sizes = objects.column("size_bytes").to_numpy().view(np.uint64)
    times = objects.column("last_modified").cast(pa.int64()).to_numpy().view(np.uint64)
    odd = np.uint64(2)
    return int((keys * (sizes * odd + np.uint64(1)) + times * np.uint64(0x9E3779B97F4A7C15)).sum(dtype=np.uint64))
