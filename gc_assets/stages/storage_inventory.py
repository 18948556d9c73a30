"""Lists a storage in executors, in rounds: a task that meets more than its share hands the rest back."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.core.util.hashing import hash_array
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.core.files import Files
from gc_assets.core.parts import PartWriter
from gc_assets.core.receipts import Balance, Published, Run
from gc_assets.schemas import PROBLEMS, STORAGE_INVENTORY
from gc_assets.stages.night import Night
from gc_assets.stages.tables import MAX_SAMPLES, PARTS_DDL, Totals, collect, merge_written, parallelism, publish, report_parts
from gc_assets.stores.listing import plan_listing
from gc_assets.stores.local import local_path
from gc_assets.stores.protocol import ListingTask

# About one second of listing for a task; what is beyond goes back and is spread again.
BUDGET_ENTRIES: Final = 250_000
PROBLEMS_SIDE: Final = "_problems"
LISTED_DDL: Final = PARTS_DDL + ", leftover binary"


def storage_inventory(spark: SparkSession, night: Night, storage_name: str) -> Published:
    """Every object of a storage, with what was met that is no object (links, names that are not UTF-8, special files).

    Raises `StoreError` naming directories that could not be read: an inventory with a hole is never published.
    """
    state, storage = night.state, night.storage(storage_name)
    run = state.start(storage_name, STORAGE_INVENTORY.name, night.run_date, night.clock)
    width = parallelism(spark)
    tasks: Sequence[ListingTask] = plan_listing(local_path(storage.location), width)
    rows: list[Any] = []
    planned = finished = 0
    while tasks:
        planned += len(tasks)
        work = spark.createDataFrame([(pickle.dumps(task),) for task in tasks], "task binary").repartition(min(width, len(tasks)))
        listed = collect(work.mapInArrow(_List(state.files, run), LISTED_DDL))
        rows += listed
        finished += sum(json.loads(row["facts"])["tasks"] for row in listed)
        tasks = [task for row in listed for task in pickle.loads(row["leftover"])]  # noqa: S301  (our own tasks' words)
    written = merge_written(rows)
    problems = {name.removeprefix("problem_"): count for name, count in written.facts.items() if name.startswith("problem_")}
    samples = written.facts.get("problems", [])
    if written.facts.get("incomplete", 0):
        names = ", ".join(f"{item['key'] or '.'} ({item['detail']})" for item in samples if item["kind"] == "unreadable")
        raise StoreError(
            f"storage {storage_name}: {written.facts['incomplete']:,} places could not be listed, so nothing can be planned: {names}. "
            "Give the collector the right to read them, or move them out of the storage."
        )
    total = written.totals.get(("objects",), Totals())
    facts = {"objects": total.rows, "bytes": total.size_bytes, "problems": problems, "problem_samples": samples, "tasks": planned}
    balances = [
        Balance(name="listing tasks", expected=planned, found=finished),
        Balance(name="objects listed", expected=total.rows, found=written.rows),
    ]
    return publish(state, run, written, night.clock, balances=balances, facts=facts, unsafe=night.unsafe)


@dataclass(frozen=True)
class _List:
    """Runs listing tasks and writes what they list; runs in executors."""

    files: Files
    run: Run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(self.files, self.run.path, STORAGE_INVENTORY.schema)
        problems = PartWriter(self.files, self.run.path, PROBLEMS, PROBLEMS_SIDE)
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
                    problems.write(pa.RecordBatch.from_pylist([asdict(problem) for problem in step.problems], schema=PROBLEMS))
                    for problem in step.problems:
                        name = f"problem_{problem.kind}"
                        facts[name] = facts.get(name, 0) + 1
                        facts["incomplete"] += problem.is_incomplete
                        # What makes the inventory incomplete must be named, so it comes before the harmless.
                        facts["problems"].insert(0 if problem.is_incomplete else len(facts["problems"]), asdict(problem))
                        del facts["problems"][MAX_SAMPLES:]
        row = report_parts([*writer.close(), *problems.close()], digest, {("objects",): Totals(objects, size_bytes)}, facts)
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
