"""Puts quarantined files back: all of a plan, below a prefix, or one key. Needs no approval and moves nothing that is taken."""

from __future__ import annotations

import getpass
import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import GateRefused, UsageError
from gc_assets.core.receipts import Balance, Published
from gc_assets.schemas import DELETION_LOG
from gc_assets.stages.acting import ACT_COLUMNS, Act, in_one_task
from gc_assets.stages.approvals import unfinished
from gc_assets.stages.deletion_plan import RESTORE
from gc_assets.stages.night import Night
from gc_assets.stages.quarantine_ledger import quarantine_ledger
from gc_assets.stages.tables import Totals, publish, spark_schema, write_frame
from gc_assets.stores.lease import acquire
from gc_assets.stores.write_ahead import open_log


def restore(
    spark: SparkSession, night: Night, storage_name: str, plan_id: str | None = None, prefix: str | None = None, key: str | None = None
) -> tuple[Published, dict[str, Totals]]:
    """The log and the books (outcome to rows and bytes) of putting quarantined files back.

    Plans of which a file came back no longer count as finished. Raises `UsageError` where nothing is named, `GateRefused` while a
    plan of the storage is half applied.
    """
    if plan_id is None and prefix is None and key is None:
        raise UsageError("restore needs --plan P, --prefix X or --key K; `gc-assets plans` lists what was applied")
    state, storage = night.state, night.storage(storage_name)
    begun = unfinished(state, storage_name)
    if begun:
        raise GateRefused(
            f"plan {begun[0]} of storage {storage_name} began and did not finish, so what it moved is not in the books yet. "
            f"Finish it with `gc-assets apply {begun[0][:12]}` (it resumes from its log), then restore."
        )
    chosen = quarantine_ledger(spark, state, storage_name)
    if plan_id is not None:
        chosen = chosen.filter(F.col("source_plan_id") == plan_id)
    if prefix is not None:
        chosen = chosen.filter(F.col("key").startswith(prefix))
    if key is not None:
        chosen = chosen.filter(F.col("key") == key)
    run = state.start(storage_name, DELETION_LOG.name, night.run_date, night.clock)
    restore_id = f"restore-{run.run_id}"
    lease = acquire(storage.location, restore_id, getpass.getuser(), night.clock)
    try:
        log = open_log(state.files, f"{storage_name}/restore/{restore_id}", restore_id, 1)
        rows = chosen.select(
            "key",
            F.lit(RESTORE).alias("action"),
            "size_bytes",
            "etag",
            F.lit(None).cast("string").alias("version_id"),
            "source_plan_id",
            "quarantine",
            "kind",
            F.lit(None).cast("string").alias("needed"),
            F.lit(False).alias("retry"),
            F.lit(True).alias("in_quarantine"),
        ).select(*ACT_COLUMNS)
        ordered = in_one_task(rows, RESTORE, F.lit(0))
        act = Act(storage.location, log, lease, night.clock, restore_id)
        totals = ["phase", "outcome", "source_plan_id"]
        written = write_frame(ordered.mapInArrow(act, spark_schema(DELETION_LOG.schema)), DELETION_LOG, run, state, totals)
    finally:
        lease.release()
    books: dict[str, Totals] = {}
    for (_, outcome, _), total in written.totals.items():
        books[outcome] = books.get(outcome, Totals()) + total
    for source in sorted({source for (_, outcome, source) in written.totals if outcome == "done"}):
        record = {"at": night.clock.now().isoformat(), "restore": restore_id}
        state.files.replace(f"{storage_name}/apply/{source}/restored.json", json.dumps(record).encode())
    facts = {
        "plan_id": restore_id,
        "books": {f"restore/{name}": {"files": t.rows, "bytes": t.size_bytes} for name, t in sorted(books.items())},
    }
    balances = [Balance(name="keys with an outcome", expected=sum(total.rows for total in books.values()), found=written.rows)]
    published = publish(state, run, written, night.clock, balances=balances, facts=facts, unsafe=night.unsafe)
    return published, books
