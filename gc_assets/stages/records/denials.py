"""Find actions that a store or catalog denied, so that later plans leave them out for a while.

A store may refuse to change an object, for example because of a missing permission or an object
lock. A catalog may refuse all commits to a table. The outcome of such a plan row or history edit is
`denied`, so that the apply does not retry it.

Plans made within `RETRY_AFTER` leave the action out and show the reason. It is planned again
earlier if the object is replaced, the quarantine mode changes, or a user runs `gc-assets retry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import RootModel
from pyspark.sql import DataFrame, SparkSession

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.commands import command
from gc_assets.core.errors import UsageError
from gc_assets.core.phases import ABORT, DENIED, DONE
from gc_assets.core.suggest import did_you_mean
from gc_assets.core.user_names import require_name
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import MAX_SMALL_ROWS, is_small
from gc_assets.engine.tables import frame_from_arrow, parallelism, spark_schema
from gc_assets.stages.records.user_records import UserRecord, UserRecords
from gc_assets.state.arrow_types import BOOL, STRING, TIMESTAMP
from gc_assets.state.compaction import SegmentFile
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_LOG, EXPIRY_LOG

RETRY_AFTER: Final = timedelta(days=7)
DENIED_OBJECTS: Final = pa.schema(
    [
        ("key", STRING),
        ("etag", STRING),
        ("version_id", STRING),
        ("phase", STRING),
        ("quarantine", STRING),
        ("error", STRING),
        ("at", TIMESTAMP),
        ("rehearsal", BOOL),
        ("permanent", BOOL),
    ]
)


class Retry(UserRecord):
    """A user's request to plan again everything that was denied in a storage or lake so far."""

    comment: str = ""


class _Retries(RootModel[tuple[Retry, ...]]):
    """All requests for one storage or lake, oldest first."""


_RETRIES: Final = UserRecords(_Retries, "retries.json", "request the retry again")


def request_retry(config: Config, clock: Clock, name: str, by: str, comment: str = "") -> Retry:
    """Record a request to plan again everything that was denied in a storage or lake.

    Raises:
        UsageError: If `by` is empty, or no storage or lake has this name.
    """
    require_name(by, "a retry", comment)
    known = {item.label: item.name for item in (*config.storages, *config.lakes)}
    if name not in known:
        raise UsageError(f"unknown storage or lake {name!r}{did_you_mean(name, known) or ';'} configured: {', '.join(known)}")
    record = Retry(by=by.strip(), at=clock.now(), comment=comment, rehearsal=clock.is_rehearsal)
    _RETRIES.append(State.of(config), known[name], record)
    return record


def retry_advice(config: Config, name: str) -> str:
    """Explain when plans contain denied actions again, and how a user can retry them earlier."""
    again = command("retry", config.label_of(name), by="WHO")
    return f"planned again {RETRY_AFTER.days} days after the denial, or after `{again}`"


def denied_since(context: RunContext, name: str) -> datetime:
    """Return the time before which denials in a storage or lake are ignored."""
    clock = context.clock
    retries = [item.at for item in _RETRIES.read(context.state, name) if item.rehearsal == clock.is_rehearsal]
    return max([clock.now() - RETRY_AFTER, *retries])


def denied_histories(context: RunContext, lake: str) -> dict[str | None, str]:
    """Find tables of which the catalog denied the most recent history edit.

    Returns:
        The reasons, keyed by table UUID.
    """
    state, since, now = context.state, denied_since(context, lake), context.clock.now()
    found: dict[str | None, str] = {}
    newest: dict[str | None, datetime] = {}
    for run in _runs_since(state.history(lake, EXPIRY_LOG.name), since):
        rows = read_parts(state.files, state.open(run).paths(), EXPIRY_LOG.schema, ["table_uuid", "outcome", "error", "at"])
        for row in rows.to_pylist():
            uuid, at = row["table_uuid"], row["at"]
            # Rows with times in the future belong to rehearsals.
            if row["outcome"] not in {DONE, DENIED} or not newest.get(uuid, since) <= at <= now or at == since:
                continue
            newest[uuid] = at
            if row["outcome"] == DENIED:
                found[uuid] = f"denied on {at:%Y-%m-%d}: {row['error']}; {retry_advice(context.config, lake)}"
            else:
                found.pop(uuid, None)
    return found


def denied_objects(spark: SparkSession, context: RunContext, storage: str) -> DataFrame | None:
    """Read the actions on objects of a storage that were denied recently.

    Returns:
        A frame with the `DENIED_OBJECTS` columns, or None if there is no recent log. An object may
        occur more than once. Unless the session is small, the frame is evaluated lazily.
    """
    reader = _open_reader(context, storage)
    if not reader.parts:
        return None
    if is_small(spark) and reader.rows <= MAX_SMALL_ROWS:
        return frame_from_arrow(spark, reader.read_all())
    numbers = spark.range(0, len(reader.parts), 1, max(1, min(len(reader.parts), parallelism(spark))))
    return numbers.mapInArrow(reader, spark_schema(DENIED_OBJECTS))


def find_denial(context: RunContext, storage: str) -> str | None:
    """Return the error of a recently denied object as an example, or None if no object was denied."""
    reader = _open_reader(context, storage)
    tables = map(reader.read_part, reversed(reader.parts))
    return next((str(table.column("error")[-1].as_py()) for table in tables if table.num_rows), None)


def denied_uploads(context: RunContext, storage: str) -> set[tuple[str, str | None]]:
    """Return the key and upload id of each unfinished upload whose abort was denied recently."""
    rows = _open_reader(context, storage).read_all()
    mine = rows.filter(pc.equal(rows.column("phase"), ABORT))
    return set(zip(mine.column("key").to_pylist(), mine.column("version_id").to_pylist(), strict=True))


def _open_reader(context: RunContext, storage: str) -> _DeniedReader:
    state, since = context.state, denied_since(context, storage)
    logs = _runs_since(state.history(storage, DELETION_LOG.name), since)
    files = tuple(state.segment_files(logs))
    return _DeniedReader(state.files, files, sum(log.rows for log in logs), since, context.clock.is_rehearsal)


@dataclass(frozen=True)
class _DeniedReader:
    """Takes part numbers of deletion logs, and yields rows with the `DENIED_OBJECTS` columns."""

    files: Files
    parts: tuple[SegmentFile, ...]
    rows: int
    since: datetime
    rehearsal: bool

    def read_all(self) -> pa.Table:
        return pa.concat_tables([DENIED_OBJECTS.empty_table(), *map(self.read_part, self.parts)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self.read_part(self.parts[number]).to_batches()

    def read_part(self, part: SegmentFile) -> pa.Table:
        rows = read_parts(self.files, [part.path], DELETION_LOG.schema, DENIED_OBJECTS.names)
        is_recent = pc.greater(rows.column("at"), pa.scalar(self.since, TIMESTAMP))
        is_mine = pc.equal(pc.fill_null(rows.column("rehearsal"), False), self.rehearsal)
        return rows.filter(pc.and_(pc.and_(pc.fill_null(rows.column("permanent"), False), is_recent), is_mine)).cast(DENIED_OBJECTS)


def _runs_since(runs: Sequence[PastRun], since: datetime) -> list[PastRun]:
    """Select runs that may have rows after a time, judging by the start time in their run ids."""
    return [run for run in runs if run.run_id >= f"{since - timedelta(days=1):%Y%m%dT%H%M%SZ}"]
