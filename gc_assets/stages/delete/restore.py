"""Puts quarantined files back: all of a plan, those below a prefix, or one key.

Needs no approval. A file whose name is taken stays in quarantine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.phases import DONE, QUARANTINE, RESTORE
from gc_assets.stages.books.leases import refuse_rehearsal, take_lease
from gc_assets.stages.books.ledger import first_of_each_key, newest_first, quarantine_ledger, quarantined
from gc_assets.stages.books.plans import plans, record_restored, unfinished
from gc_assets.stages.delete.act import ACT_COLUMNS, ACTED, Act, in_one_task
from gc_assets.stages.engine import Sharing
from gc_assets.stages.night import Night
from gc_assets.stages.progress import begin, counting, doing, logged
from gc_assets.stages.tables import Totals, parallelism, publish, spark_schema, write_frame
from gc_assets.state.facts import DeletionLogFacts
from gc_assets.state.journal import Published
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.execution import outcome_rows, releasing, user_name
from gc_assets.stores.protocol import Outcome
from gc_assets.stores.write_ahead import WriteAheadLog, open_log


@logged(DELETION_LOG)
def restore(
    spark: SparkSession, night: Night, storage_name: str, plan_id: str | None = None, prefix: str | None = None, key: str | None = None
) -> tuple[Published, dict[str, Totals]]:
    """Puts quarantined files back, and returns the log and the books (outcome to rows and bytes).

    Of several copies of one name the newest goes back. The others stay, and `--plan` names each. By
    the real clock the copies that rehearsals quarantined come back too; a rehearsal has only its
    own.

    A finished plan is used up once a file of it came back. A plan that is half applied stays half
    applied, and what its write-ahead log moved comes back too.

    Raises `UsageError` where nothing is named, `GateRefused` while another run holds the storage's
    lease, where it is lost, and for a rehearsal that the storage does not allow. What was put back
    under a lost lease counts for nothing: restore it again.
    """
    if plan_id is None and prefix is None and key is None:
        raise UsageError("restore needs --plan P, --prefix X or --key K; `gc-assets plans` lists what was applied")
    refuse_rehearsal(night, storage_name)
    state, store = night.state, night.store(storage_name)
    run = begin(night, storage_name, DELETION_LOG)
    restore_id = f"restore-{run.run_id}"
    lease = take_lease(night, storage_name, store, restore_id, user_name())
    with releasing(lease):
        begun = unfinished(state, storage_name)
        named = [plan_id] if plan_id is not None else []
        moved = _moved_by(spark, night, storage_name, {*begun, *named}, lease.token)
        chosen = quarantine_ledger(spark, state, storage_name, moved, rehearsal=True if night.clock.is_rehearsal else None)
        if plan_id is not None:
            chosen = chosen.filter(F.col("source_plan_id") == plan_id)
        if prefix is not None:
            chosen = chosen.filter(F.col("key").startswith(prefix))
        if key is not None:
            chosen = chosen.filter(F.col("key") == key)
        chosen = first_of_each_key(chosen, newest_first())
        log = open_log(state.files, f"{storage_name}/restore/{restore_id}", restore_id, 1)
        rows = chosen.select(
            "key",
            F.lit(RESTORE).alias("action"),
            "size_bytes",
            "etag",
            "version_id",
            "source_plan_id",
            "quarantine",
            "kind",
            F.lit(None).cast("string").alias("needed"),
            F.lit(False).alias("retry"),
            F.lit(True).alias("in_quarantine"),
            F.lit(None).cast("string").alias("refused"),
        ).select(*ACT_COLUMNS)
        doing("putting files back")
        ordered = in_one_task(rows, RESTORE, F.col("key"))
        act = Act(store, log, lease, night.clock, restore_id, run.run_id)
        totals = ["phase", "outcome", "source_plan_id"]
        with counting("files on record", log.rows_on_record, _files_of(night, storage_name, plan_id)):
            written = write_frame(ordered.mapInArrow(Sharing(act, 1), ACTED), DELETION_LOG, run, state, totals, counted=True)
        books: dict[str, Totals] = {}
        for (_, outcome, _), total in written.totals.items():
            books[outcome] = books.get(outcome, Totals()) + total
        lease.check()  # whoever took it over may have moved the same files since
        for source in sorted({source for (_, outcome, source) in written.totals if outcome == "done"} - set(begun)):
            record_restored(state, storage_name, source, night.clock.now(), restore_id)
        facts = DeletionLogFacts(
            plan_id=restore_id,
            books={f"{RESTORE}/{name}": total.amount for name, total in sorted(books.items())},
        )
        balances = [Balance(name="keys with an outcome", expected=sum(total.rows for total in books.values()), found=written.rows)]
        # On record before the lease is free: the next holder must know what is back in its place.
        published = publish(state, run, written, night.clock, balances=balances, facts=facts, unsafe=night.unsafe)
    return published, books


def _files_of(night: Night, storage_name: str, plan_id: str | None) -> int | None:
    """Returns how many files a plan was to quarantine, so many at most are put back. Null where no
    plan is named.
    """
    named = (plan.header for plan in plans(night.config, storage_name) if plan.header.plan_id == plan_id)
    header = next(named, None) if plan_id is not None else None
    return header.totals[QUARANTINE].files if header is not None and QUARANTINE in header.totals else None


def nothing_to_restore(night: Night, storage_name: str, key: str, plan_id: str | None = None) -> bool:
    """Says whether no copy of a key is in quarantine, without Spark.

    False does not promise that there is one: what a plan that began and did not end has moved is in
    no published log yet. Raises `GateRefused` as `restore` does for a rehearsal.
    """
    refuse_rehearsal(night, storage_name)
    if unfinished(night.state, storage_name):
        return False
    copies = quarantined(night.state, storage_name, rehearsal=True if night.clock.is_rehearsal else None, key=key)
    sources = copies.column("source_plan_id").to_pylist()
    return plan_id not in sources if plan_id is not None else not sources


def _moved_by(spark: SparkSession, night: Night, storage_name: str, plan_ids: Collection[str], token: int) -> list[DataFrame]:
    """Returns rows of `deletion_log` for what these plans' write-ahead logs moved to quarantine, or
    may have moved.

    Raises `StateError` for a log whose plan is not in the state.
    """
    files, found = night.state.files, list[DataFrame]()
    known = {plan.header.plan_id: plan.header for plan in plans(night.config, storage_name) if plan.header.plan_id in plan_ids}
    for plan_id in sorted(plan_ids):
        directory = f"{storage_name}/apply/{plan_id}"
        if not any(item.name == "log.json" for item in files.list(directory)):
            continue  # it never came to a file
        if plan_id not in known:
            raise StateError(f"{files.root}/{directory} is the log of a plan that the state does not hold; restore the state from a backup")
        log = open_log(files, directory, plan_id, known[plan_id].rows)
        shares = spark.range(0, log.shares, 1, min(log.shares, parallelism(spark)))
        moved = _Moved(log, known[plan_id].quarantine, night.clock.now(), token, known[plan_id].rehearsal)
        found.append(shares.mapInArrow(moved, spark_schema(DELETION_LOG.schema)))
    return found


@dataclass(frozen=True)
class _Moved:
    """Reads the quarantined files of each share of a log.

    What may have moved counts as moved just now, under the lease `token`. Runs in executors.
    """

    log: WriteAheadLog
    quarantine: str
    now: datetime
    token: int
    rehearsal: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column("id").to_pylist():
                told = self.log.quarantined(share)
                moved = (outcome or Outcome(planned, DONE, None, self.now, self.token) for planned, outcome in told)
                yield outcome_rows(moved, self.log.plan_id, self.quarantine, rehearsal=self.rehearsal)
