"""List all objects of a storage, in rounds of listing tasks.

Each task has a budget of entries, and the entries beyond it are listed in the next round. Small
listings run in the driver process, that is, if the previous run listed the storage quickly, or if
there is only one task. All other listings run on executors. If the storage has inventory reports,
the tasks read the newest report instead.

Objects under `data/` of a lakeFS repository never change, so the rows of unchanged directories are
copied from the previous run. As a safeguard, the whole storage is listed at the interval
`full_listing`.

If the last listing is recent enough (`listing.every`, `--no-listing`), the storage is not listed,
and the rows of the last listing are used again (`listings.py`).
"""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.errors import StateError, StoreError
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import (
    MAX_SAMPLES,
    PARTS_DDL,
    Totals,
    WrittenParts,
    collect,
    merge_written,
    parallelism,
    publish,
    read_table,
    report_parts,
    run_in_process,
    write_parts,
)
from gc_assets.engine.tasks import BudgetedTask, has_run_no_job, max_parallel_tasks
from gc_assets.stages.mark.lake_refs import read_side_rows
from gc_assets.stages.sweep.listings import find_earlier_listing, listing_settings, require_newer_report
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.listings import open_listing
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import LAKE_REFS, STORAGE_INVENTORY
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, CUTS, CUTS_SIDE, DIRECTORIES, DIRECTORIES_SIDE, PROBLEMS, PROBLEMS_SIDE
from gc_assets.state.summaries import EarlierListing, Problem, StorageInventorySummary
from gc_assets.stores.listing import select_unchanged_objects
from gc_assets.stores.protocol import Directory, Lister, ListingTask, Report

# About one second of listing. A task returns the entries beyond its budget for the next round.
BUDGET_ENTRIES: Final = 250_000
# Up to this many entries, a listing in the driver is faster than a Spark job.
MAX_IN_PROCESS_ENTRIES: Final = 20_000
# If the previous listing took at most this long, listing in the driver is faster than starting
# executors.
MAX_IN_PROCESS_SECONDS: Final = 2.0
# The same limit before the first job of a local session, which also has to load classes and start
# Python workers.
MAX_FIRST_LISTING_SECONDS: Final = 15.0
# If a directory was modified less than this before the listing, the next run lists it again.
SETTLED_AFTER: Final = timedelta(minutes=1)
# Longer keys are shown in messages with this many characters of their beginning and end.
_MAX_KEY_END: Final = 100
LISTED_DDL: Final = PARTS_DDL + ", leftover binary"


@dataclass(frozen=True, slots=True)
class _Reuse:
    """Directories whose rows are copied from an earlier inventory instead of being listed."""

    baseline: PublishedTable | None
    keys: frozenset[str]
    directories: list[Directory]

    @classmethod
    def of(cls, context: RunContext, storage_name: str, lister: Lister, last: PublishedTable | None) -> Self:
        baseline = find_baseline(context, last)
        known = _reusable_directories(context, storage_name, baseline) if baseline is not None else []
        unchanged = lister.find_unchanged_directories(known)
        return cls(baseline, unchanged, [directory for directory in known if directory.key in unchanged])

    def copy(self, spark: SparkSession, context: RunContext, run: TableRun) -> list[Any]:
        """Copy the inventory rows of the reused directories to new parts (Parquet files) of `run`.

        Returns:
            The reports of the copying tasks (rows of `PARTS_DDL`).
        """
        if self.baseline is None or not self.keys:
            return []
        objects = read_table(spark, context.state, STORAGE_INVENTORY, self.baseline)
        return list(collect(objects.mapInArrow(_CopyUnchanged(self.keys, context.state.files, run), PARTS_DDL)))


@dataclass(slots=True)
class _Listing:
    """Reports of listing tasks (rows of `LISTED_DDL`), and how many tasks were planned and run."""

    rows: list[Any]
    planned: int = 0
    finished: int = 0


@log_progress(STORAGE_INVENTORY)
def storage_inventory(spark: SparkSession, context: RunContext, storage_name: str) -> PublishedTable:
    """List a storage, and publish its objects as `storage_inventory`.

    Links, special files and names that are not UTF-8 are published as problems, not as objects.

    Raises:
        StoreError: If a directory could not be read, because inventories must be complete.
    """
    state, lister = context.state, context.lister(storage_name)
    run = start_run(context, storage_name, STORAGE_INVENTORY)
    earlier, reason = find_earlier_listing(context, storage_name)
    if earlier is not None:
        return _publish_earlier(context, run, earlier)
    if reason is not None:
        log_activity(f"listing, because {reason}")
    last = last_inventory(context, storage_name)
    reuse, now = _Reuse.of(context, storage_name, lister, last), context.clock.now()
    plan = lister.plan(max_parallel_tasks(spark, parallelism(spark)), now, reuse.keys, now - SETTLED_AFTER, _cuts(context, last))
    if plan.report is not None:
        require_newer_report(context, storage_name, plan.report)
    copied = reuse.copy(spark, context, run)
    listing = _run_rounds(spark, state, run, plan.tasks, last)
    written = merge_written([*copied, *listing.rows])
    directories = write_parts(_directory_rows(reuse.directories), run, state.files, DIRECTORIES_SIDE) if reuse.directories else []
    written = replace(written, side={**written.side, DIRECTORIES_SIDE: (*written.side.get(DIRECTORIES_SIDE, ()), *directories)})
    _require_complete(storage_name, written)
    return publish(
        state,
        run,
        written,
        context.clock,
        inputs=[reuse.baseline] if reuse.baseline is not None else [],
        balances=_balances(written, reuse, listing, plan.report),
        summary=_summarize(context, storage_name, written, reuse, listing, plan.report).model_copy(
            update={"listed_at": now, "listed_because": reason}
        ),
        unsafe=context.unsafe,
    )


def _publish_earlier(context: RunContext, run: TableRun, earlier: PublishedTable) -> PublishedTable:
    """Publish a run without rows, which refers to the run that listed the storage."""
    listed = earlier.summary(StorageInventorySummary)
    log_activity(f"using the listing of {earlier.receipt.run_date}, with {listed.objects:,} objects")
    reference = EarlierListing(run_date=earlier.receipt.run_date, run_id=earlier.receipt.run_id)
    summary = listed.model_copy(update={"earlier": reference, "listed_because": None})
    return publish(context.state, run, WrittenParts((), 0), context.clock, inputs=[earlier], summary=summary, unsafe=context.unsafe)


def _run_rounds(spark: SparkSession, state: State, run: TableRun, tasks: Sequence[ListingTask], last: PublishedTable | None) -> _Listing:
    """Run listing tasks, and the leftover tasks that they return, until all are finished."""
    listing, seconds = _Listing([]), MAX_FIRST_LISTING_SECONDS if has_run_no_job(spark) else MAX_IN_PROCESS_SECONDS
    while tasks:
        log_activity(f"{len(tasks):,} prefixes to list, {listing.finished:,} listed")
        if listing.planned == 0 and _was_listed_within(seconds, last):
            listed = _list_in_process(tasks, _RunListing(state.files, run, BUDGET_ENTRIES, seconds))
        elif listing.planned == 0 and len(tasks) == 1:
            listed = _list_in_process(tasks, _RunListing(state.files, run, MAX_IN_PROCESS_ENTRIES))
        else:
            listed = _list_in_executors(spark, tasks, _RunListing(state.files, run, BUDGET_ENTRIES))
        listing.planned += len(tasks)
        listing.rows += listed
        listing.finished += sum(json.loads(row["summary"])["tasks"] for row in listed)
        tasks = [task for row in listed for task in pickle.loads(row["leftover"])]  # noqa: S301  (written by our own tasks)
    return listing


def _require_complete(storage_name: str, written: WrittenParts) -> None:
    if not written.summary.get("incomplete", 0):
        return
    samples = written.summary.get("problems", [])
    names = ", ".join(f"{_shorten(item['key']) or '.'} ({item['detail']})" for item in samples if item["kind"] == "unreadable")
    raise StoreError(
        f"Cannot list {written.summary['incomplete']:,} directories of storage {storage_name}, so no plan can be made: {names}. "
        "Grant the collector read access to them, or fix the reported errors."
    )


def _shorten(key: str) -> str:
    return key if len(key) <= 2 * _MAX_KEY_END else f"{key[:_MAX_KEY_END]}…{key[-_MAX_KEY_END:]}"


def _balances(written: WrittenParts, reuse: _Reuse, listing: _Listing, report: Report | None) -> list[Balance]:
    total = written.totals.get(("objects",), Totals())
    reused = sum(directory.objects for directory in reuse.directories)
    balances = [
        Balance(name="listing tasks", expected=listing.planned, found=listing.finished),
        Balance(name="objects listed", expected=total.rows, found=written.rows),
        Balance(name="objects reused", expected=reused, found=written.summary.get("reused", 0)),
    ]
    if report is not None and report.rows is not None:
        balances.append(Balance(name=f"rows of report {report.name}", expected=report.rows, found=written.summary.get("report_rows", 0)))
    return balances


def _summarize(
    context: RunContext, storage_name: str, written: WrittenParts, reuse: _Reuse, listing: _Listing, report: Report | None
) -> StorageInventorySummary:
    total, baseline = written.totals.get(("objects",), Totals()), reuse.baseline
    unfinished = context.store(storage_name).count_unfinished_uploads(context.clock.now() - context.storage(storage_name).grace)
    return StorageInventorySummary(
        objects=total.rows,
        bytes=total.size_bytes,
        problems={name.removeprefix("problem_"): count for name, count in written.summary.items() if name.startswith("problem_")},
        problem_samples=tuple(Problem.model_validate(sample) for sample in written.summary.get("problems", [])),
        tasks=listing.planned,
        listing_seconds=round(written.summary.get("seconds", 0.0), 2),
        location=context.storage(storage_name).location,
        flow="optimized" if baseline is not None else "clean",
        full_listing_on=baseline.summary(StorageInventorySummary).full_listing_on if baseline is not None else context.run_date,
        reused_directories=len(reuse.keys),
        reused_objects=written.summary.get("reused", 0),
        unfinished=unfinished,
        report=report.name if report is not None else None,
        report_as_of=report.as_of if report is not None else None,
        settings=listing_settings(context, storage_name),
        rehearsal=context.clock.is_rehearsal,
    )


def _list_in_process(tasks: Sequence[ListingTask], work: _RunListing) -> list[Any]:
    """Run one round of listing tasks in the driver, and return its report (`LISTED_DDL` columns)."""
    return run_in_process(work, [pa.RecordBatch.from_pydict({"task": pa.array([pickle.dumps(task) for task in tasks], pa.binary())})])


def _was_listed_within(limit: float, last: PublishedTable | None) -> bool:
    """Check whether the tasks of the previous listing took at most `limit` seconds in total."""
    seconds = last.summary(StorageInventorySummary).listing_seconds if last is not None else None
    return seconds is not None and seconds <= limit


def _list_in_executors(spark: SparkSession, tasks: Sequence[ListingTask], work: _RunListing) -> list[Any]:
    content = [(pickle.dumps(task),) for task in tasks]
    width = min(parallelism(spark), len(tasks))
    frame = spark.createDataFrame(content, "task binary").repartition(width)
    return collect(frame.mapInArrow(BudgetedTask(work, max_parallel_tasks(spark, width)), LISTED_DDL))


def last_inventory(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the listing used by the previous run, or None if the storage's location has changed."""
    last = context.state.latest(storage_name, STORAGE_INVENTORY.name, before=context.run_date)
    try:
        last = open_listing(context.state, last) if last is not None else None
    except StateError:  # the listing was removed from the state, so everything is listed
        return None
    is_same_location = last is not None and last.summary(StorageInventorySummary).location == context.storage(storage_name).location
    return last if is_same_location else None


def find_baseline(context: RunContext, last: PublishedTable | None) -> PublishedTable | None:
    """Return the last inventory if the rows of its unchanged directories can be reused.

    If it returns None, the whole storage has to be listed.
    """
    every = [lake.full_listing_every for lake in context.config.lakes if lake.full_listing_every is not None]
    if not every or last is None or context.state.is_overtaken(last):
        return None
    age = context.run_date - last.summary(StorageInventorySummary).full_listing_on
    return last if age < min(every) else None


def _reusable_directories(context: RunContext, storage_name: str, baseline: PublishedTable) -> list[Directory]:
    """Return directories of an earlier listing whose rows may be copied.

    These directories are under claims of lakes that do not require a full listing in every run.
    """
    prefixes: list[str] = []
    for lake in context.config.lakes:
        refs = context.state.latest(lake.name, LAKE_REFS.name) if lake.full_listing_every is not None else None
        claims = read_side_rows(context, refs, CLAIMS_SIDE, CLAIMS) if refs is not None else []
        # lakeFS rewrites ranges in place, which does not change the directory.
        claims = [row for row in claims if not context.kind(lake.name).files.is_metadata_claim(row["address"])]
        prefixes += [row["key"] for row in claims if row["storage"] == storage_name]
    rows = read_parts(context.state.files, baseline.paths(DIRECTORIES_SIDE), DIRECTORIES)
    listed = zip(*(rows.column(name).to_pylist() for name in DIRECTORIES.names), strict=True)
    return [Directory(*row) for row in listed if row[0].startswith(tuple(prefixes))]


def _cuts(context: RunContext, last: PublishedTable | None) -> list[str] | None:
    """Return keys that divide the last inventory evenly, or None if there is no inventory."""
    return read_parts(context.state.files, last.paths(CUTS_SIDE), CUTS).column("key").to_pylist() if last is not None else None


def _directory_rows(directories: Sequence[Directory]) -> pa.Table:
    return pa.Table.from_pylist([asdict(directory) for directory in directories], schema=DIRECTORIES)


@dataclass(frozen=True)
class _CopyUnchanged:
    """Copy the rows of unchanged directories from an earlier inventory, on Spark executors."""

    unchanged: frozenset[str]
    files: Files
    run: TableRun

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, STORAGE_INVENTORY.schema)
        places = pa.array(sorted(self.unchanged), pa.string())
        objects = size_bytes = digest = 0
        for batch in batches:
            mine = select_unchanged_objects(batch, places)
            writer.write(mine)
            objects += mine.num_rows
            size_bytes += pc.sum(mine.column("size_bytes")).as_py() or 0
            digest += _digest(mine)
        yield report_parts(writer.close(), digest, {("objects",): Totals(objects, size_bytes)}, {"reused": objects})


@dataclass(frozen=True)
class _RunListing:
    """Run listing tasks, and write the objects that they list.

    Listing tasks that would start more than `seconds` after the first one are returned without
    being run.
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
                task: ListingTask = pickle.loads(content)  # noqa: S301  (written by our own driver)
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
                    cuts.write(pa.RecordBatch.from_pydict({"key": step.split_keys}, schema=CUTS))
                    problems.write(pa.RecordBatch.from_pylist([asdict(problem) for problem in step.problems], schema=PROBLEMS))
                    for problem in step.problems:
                        name = f"problem_{problem.kind}"
                        summary[name] = summary.get(name, 0) + 1
                        summary["incomplete"] += problem.is_incomplete
                        # Problems that make the inventory incomplete must be reported, so they
                        # precede harmless ones.
                        summary["problems"].insert(0 if problem.is_incomplete else len(summary["problems"]), asdict(problem))
                        del summary["problems"][MAX_SAMPLES:]
        summary["seconds"] = time.perf_counter() - began
        parts = [part for each in (writer, problems, directories, cuts) for part in each.close()]
        row = report_parts(parts, digest, {("objects",): Totals(objects, size_bytes)}, summary)
        yield row.append_column("leftover", pa.array([pickle.dumps(leftover)], pa.binary()))


def _digest(objects: pa.RecordBatch) -> int:
    """Return an order-independent digest over key, size and time.

    It is numeric because an inventory has more rows than any other table.
    """
    if objects.num_rows == 0:
        return 0
    from pandas.core.util.hashing import hash_array  # slow to import, and not needed to read an inventory

    keys = hash_array(objects.column("key").to_numpy(zero_copy_only=False), categorize=False)
    sizes = objects.column("size_bytes").to_numpy().view(np.uint64)
    times = objects.column("last_modified").cast(pa.int64()).to_numpy().view(np.uint64)
    odd = np.uint64(2)
    return int((keys * (sizes * odd + np.uint64(1)) + times * np.uint64(0x9E3779B97F4A7C15)).sum(dtype=np.uint64))
