"""Lists a storage in rounds. A task that meets more than its share hands the rest back. A storage
that took no longer than a moment last night is listed in this process, and so is one of a single
task. All others are listed in executors. Where the storage has reports, the tasks read the newest
one.

Objects below `data/` of a lakeFS repository never change. So a directory there that is as it was
the night before is not listed again: its rows are carried over (the optimized run). As a check the
whole storage is listed every `full_listing`.
"""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import (
    MAX_SAMPLES,
    PARTS_DDL,
    Totals,
    collect,
    merge_written,
    parallelism,
    publish,
    read_table,
    report_parts,
    run_in_process,
    write_parts,
)
from gc_assets.engine.tasks import BudgetedTask, max_parallel_tasks
from gc_assets.stages.mark.lake_refs import read_side_rows
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import LAKE_REFS, STORAGE_INVENTORY
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, CUTS, CUTS_SIDE, DIRECTORIES, DIRECTORIES_SIDE, PROBLEMS, PROBLEMS_SIDE
from gc_assets.state.summaries import Problem, StorageInventorySummary, UnfinishedUploads
from gc_assets.stores.protocol import Directory, Lister, ListingTask, Unfinished

# About one second of listing for a task. What lies beyond goes back and is spread again.
BUDGET_ENTRIES: Final = 250_000
# What costs less to list here than a Spark job costs, where nobody knows how long it takes.
MAX_IN_PROCESS_ENTRIES: Final = 20_000
# Where it is known: as long as executors need for their start alone.
MAX_IN_PROCESS_SECONDS: Final = 2.0
# A directory modified later than this before the listing is read again the next night.
SETTLED_AFTER: Final = timedelta(minutes=1)
LISTED_DDL: Final = PARTS_DDL + ", leftover binary"


@log_progress(STORAGE_INVENTORY)
def storage_inventory(spark: SparkSession, context: RunContext, storage_name: str) -> PublishedTable:
    """Publishes every object of a storage, and what is no object (links, names that are not UTF-8,
    special files).

    Raises `StoreError` naming directories that could not be read: an inventory with a hole is never
    published.
    """
    state, lister = context.state, context.lister(storage_name)
    run = start_run(context, storage_name, STORAGE_INVENTORY)
    last = last_inventory(context, storage_name)
    baseline = find_baseline(context, last)
    known = _reusable_directories(context, storage_name, baseline) if baseline is not None else []
    unchanged, now = lister.unchanged(known), context.clock.now()
    listing = lister.plan(max_parallel_tasks(spark, parallelism(spark)), now, unchanged, now - SETTLED_AFTER, _cuts(context, last))
    tasks, report = listing.tasks, listing.report
    rows: list[Any] = []
    kept = [directory for directory in known if directory.key in unchanged]
    if baseline is not None and unchanged:
        rows += collect(
            read_table(spark, state, STORAGE_INVENTORY, baseline).mapInArrow(_CopyUnchanged(lister, unchanged, state.files, run), PARTS_DDL)
        )
    planned = finished = 0
    while tasks:
        log_activity(f"{len(tasks):,} places to list, {finished:,} listed")
        if planned == 0 and _was_listed_quickly(last):
            listed = _list_in_process(tasks, _RunListing(state.files, run, BUDGET_ENTRIES, MAX_IN_PROCESS_SECONDS))
        elif planned == 0 and len(tasks) == 1:
            listed = _list_in_process(tasks, _RunListing(state.files, run, MAX_IN_PROCESS_ENTRIES))
        else:
            listed = _list_in_executors(spark, tasks, _RunListing(state.files, run, BUDGET_ENTRIES))
        planned += len(tasks)
        rows += listed
        finished += sum(json.loads(row["facts"])["tasks"] for row in listed)
        tasks = [task for row in listed for task in pickle.loads(row["leftover"])]  # noqa: S301  (our own tasks' words)
    written = merge_written(rows)
    copied = write_parts(_directory_rows(kept), run, state.files, DIRECTORIES_SIDE) if kept else []
    written = replace(written, side={**written.side, DIRECTORIES_SIDE: (*written.side.get(DIRECTORIES_SIDE, ()), *copied)})
    problems = {name.removeprefix("problem_"): count for name, count in written.summary.items() if name.startswith("problem_")}
    samples = written.summary.get("problems", [])
    if written.summary.get("incomplete", 0):
        names = ", ".join(f"{item['key'] or '.'} ({item['detail']})" for item in samples if item["kind"] == "unreadable")
        raise StoreError(
            f"storage {storage_name}: {written.summary['incomplete']:,} places could not be listed, so nothing can be planned: {names}. "
            "Give the collector the right to read them, or mend what is said of them."
        )
    total = written.totals.get(("objects",), Totals())
    unfinished = context.store(storage_name).unfinished(context.clock.now() - context.storage(storage_name).grace)
    summary = StorageInventorySummary(
        objects=total.rows,
        bytes=total.size_bytes,
        problems=problems,
        problem_samples=tuple(Problem.model_validate(sample) for sample in samples),
        tasks=planned,
        listing_seconds=round(written.summary.get("seconds", 0.0), 2),
        location=context.storage(storage_name).location,
        flow="optimized" if baseline is not None else "clean",
        full_listing_on=baseline.summary(StorageInventorySummary).full_listing_on if baseline is not None else context.run_date,
        carried_directories=len(unchanged),
        carried_objects=written.summary.get("carried", 0),
        unfinished=_uploads(unfinished) if unfinished is not None else None,
        report=report.name if report is not None else None,
        report_as_of=report.as_of if report is not None else None,
    )
    balances = [
        Balance(name="listing tasks", expected=planned, found=finished),
        Balance(name="objects listed", expected=total.rows, found=written.rows),
        Balance(
            name="objects carried over", expected=sum(directory.objects for directory in kept), found=written.summary.get("carried", 0)
        ),
    ]
    if report is not None and report.rows is not None:
        balances.append(Balance(name=f"rows of report {report.name}", expected=report.rows, found=written.summary.get("report_rows", 0)))
    inputs = [baseline] if baseline is not None else []
    return publish(state, run, written, context.clock, inputs=inputs, balances=balances, summary=summary, unsafe=context.unsafe)


def _list_in_process(tasks: Sequence[ListingTask], work: _RunListing) -> list[Any]:
    """Runs the first round in this process, and returns what it reports (columns of `LISTED_DDL`)."""
    return run_in_process(work, [pa.RecordBatch.from_pydict({"task": pa.array([pickle.dumps(task) for task in tasks], pa.binary())})])


def _was_listed_quickly(last: PublishedTable | None) -> bool:
    """Says whether one process could have listed the storage in a moment last night."""
    seconds = last.summary(StorageInventorySummary).listing_seconds if last is not None else None
    return seconds is not None and seconds <= MAX_IN_PROCESS_SECONDS


def _list_in_executors(spark: SparkSession, tasks: Sequence[ListingTask], work: _RunListing) -> list[Any]:
    content = [(pickle.dumps(task),) for task in tasks]
    width = min(parallelism(spark), len(tasks))
    frame = spark.createDataFrame(content, "task binary").repartition(width)
    return collect(frame.mapInArrow(BudgetedTask(work, max_parallel_tasks(spark, width)), LISTED_DDL))


def last_inventory(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Returns the inventory of the night before, null where there is none of the same place."""
    last = context.state.latest(storage_name, STORAGE_INVENTORY.name, before=context.run_date)
    is_of_here = last is not None and last.summary(StorageInventorySummary).location == context.storage(storage_name).location
    return last if is_of_here else None


def find_baseline(context: RunContext, last: PublishedTable | None) -> PublishedTable | None:
    """Returns the last inventory where its unchanged directories need not be listed again.

    It is null where the whole storage is to be listed.
    """
    every = [lake.full_listing_every for lake in context.config.lakes if lake.full_listing_every is not None]
    if not every or last is None:
        return None
    age = context.run_date - last.summary(StorageInventorySummary).full_listing_on
    return last if age < min(every) else None


def _reusable_directories(context: RunContext, storage_name: str, baseline: PublishedTable) -> list[Directory]:
    """Returns the directories of an earlier listing that may be carried over.

    They lie below claims of lakes that need not be listed in full every night.
    """
    prefixes: list[str] = []
    for lake in context.config.lakes:
        refs = context.state.latest(lake.name, LAKE_REFS.name) if lake.full_listing_every is not None else None
        claims = read_side_rows(context, refs, CLAIMS_SIDE, CLAIMS) if refs is not None else []
        prefixes += [row["key"] for row in claims if row["storage"] == storage_name]
    rows = read_parts(context.state.files, baseline.paths(DIRECTORIES_SIDE), DIRECTORIES)
    listed = zip(*(rows.column(name).to_pylist() for name in DIRECTORIES.names), strict=True)
    return [Directory(*row) for row in listed if row[0].startswith(tuple(prefixes))]


def _uploads(found: Unfinished) -> UnfinishedUploads:
    return UnfinishedUploads(uploads=found.uploads, old=found.old, bytes=found.size_bytes, sized=found.sized, unknown=found.unknown)


def _cuts(context: RunContext, last: PublishedTable | None) -> list[str] | None:
    """Returns keys of the last inventory that are spread evenly over it. Null where there is none."""
    return read_parts(context.state.files, last.paths(CUTS_SIDE), CUTS).column("key").to_pylist() if last is not None else None


def _directory_rows(directories: Sequence[Directory]) -> pa.Table:
    return pa.Table.from_pylist([asdict(directory) for directory in directories], schema=DIRECTORIES)


@dataclass(frozen=True)
class _CopyUnchanged:
    """Copies the rows of unchanged directories from an earlier inventory; runs in executors."""

    lister: Lister
    unchanged: frozenset[str]
    files: Files
    run: TableRun

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, STORAGE_INVENTORY.schema)
        places = pa.array(sorted(self.unchanged), pa.string())
        objects = size_bytes = digest = 0
        for batch in batches:
            mine = self.lister.carried_objects(batch, places)
            writer.write(mine)
            objects += mine.num_rows
            size_bytes += pc.sum(mine.column("size_bytes")).as_py() or 0
            digest += _digest(mine)
        yield report_parts(writer.close(), digest, {("objects",): Totals(objects, size_bytes)}, {"carried": objects})


@dataclass(frozen=True)
class _RunListing:
    """Runs listing tasks and writes what they list. A task that comes after more than so many
    `seconds` is handed back as it is.
    """

    files: Files
    run: TableRun
    budget: int
    seconds: float = math.inf

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, STORAGE_INVENTORY.schema)
        problems = PartWriter(self.files, self.run.path, PROBLEMS, PROBLEMS_SIDE)
        directories = PartWriter(self.files, self.run.path, DIRECTORIES, DIRECTORIES_SIDE)
        cuts = PartWriter(self.files, self.run.path, CUTS, CUTS_SIDE)
        summary: dict[str, Any] = {"tasks": 0, "incomplete": 0, "problems": [], "report_rows": 0}
        leftover: list[ListingTask] = []
        objects = size_bytes = digest = 0
        began = time.perf_counter()
        for batch in batches:
            for content in batch.column("task").to_pylist():
                summary["tasks"] += 1
                task: ListingTask = pickle.loads(content)  # noqa: S301  (our own driver's words)
                if time.perf_counter() - began > self.seconds:
                    leftover.append(task)
                    continue
                for step in task.run(self.budget):
                    writer.write(step.objects)
                    objects += step.objects.num_rows
                    size_bytes += pc.sum(step.objects.column("size_bytes")).as_py() or 0
                    digest += _digest(step.objects)
                    leftover += step.leftover
                    summary["report_rows"] += step.report_rows
                    directories.write(pa.RecordBatch.from_pylist([asdict(item) for item in step.directories], schema=DIRECTORIES))
                    cuts.write(pa.RecordBatch.from_pydict({"key": step.cuts}, schema=CUTS))
                    problems.write(pa.RecordBatch.from_pylist([asdict(problem) for problem in step.problems], schema=PROBLEMS))
                    for problem in step.problems:
                        name = f"problem_{problem.kind}"
                        summary[name] = summary.get(name, 0) + 1
                        summary["incomplete"] += problem.is_incomplete
                        # What makes the inventory incomplete must be named, so it comes before
                        # harmless problems.
                        summary["problems"].insert(0 if problem.is_incomplete else len(summary["problems"]), asdict(problem))
                        del summary["problems"][MAX_SAMPLES:]
        summary["seconds"] = time.perf_counter() - began
        parts = [part for each in (writer, problems, directories, cuts) for part in each.close()]
        row = report_parts(parts, digest, {("objects",): Totals(objects, size_bytes)}, summary)
        yield row.append_column("leftover", pa.array([pickle.dumps(leftover)], pa.binary()))


def _digest(objects: pa.RecordBatch) -> int:
    """Order-free over (key, size, time); numeric, because a listing is the widest table there is."""
    if objects.num_rows == 0:
        return 0
    from pandas.core.util.hashing import hash_array  # slow to load, and of no use to who only reads an inventory

    keys = hash_array(objects.column("key").to_numpy(zero_copy_only=False), categorize=False)
    sizes = objects.column("size_bytes").to_numpy().view(np.uint64)
    times = objects.column("last_modified").cast(pa.int64()).to_numpy().view(np.uint64)
    odd = np.uint64(2)
    return int((keys * (sizes * odd + np.uint64(1)) + times * np.uint64(0x9E3779B97F4A7C15)).sum(dtype=np.uint64))
