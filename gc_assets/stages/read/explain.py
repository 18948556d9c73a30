"""Says why one file is kept, planned or gone, from the published tables of a run date.

The witness of a live file is walked up: file, containers, commit, and down the history from a ref
that reaches the commit. Arrow lookups, no Spark, no lake.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import Claims
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.paths import is_address
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.browse import read_matching_rows
from gc_assets.stages.read.chain import Link, chain, lake_rows, last_chain, read_key_rows
from gc_assets.stages.records.ledger import newest_entries
from gc_assets.stages.records.plans import list_plans
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.stages.sweep.probe import SIDE_FILE
from gc_assets.state.arrow_types import STRING, TIMESTAMP
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN, LAKE_REFS, LIVE_FILES, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import EXTERNAL_SIDE, UPLOADS, UPLOADS_SIDE
from gc_assets.state.summaries import DeletionPlanSummary, OrphanFilesSummary, StorageInventorySummary


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the tables of a run date say of one key.

    `verdict` is one of live, planned, refused, expired, waiting, quarantined, restored, purged,
    young, unowned, external, unknown. `words` are what people said of the plans that name the key.
    """

    storage: str | None
    key: str
    verdict: str
    sentence: str
    chain: tuple[Link, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    history: tuple[dict[str, Any], ...] = ()
    words: tuple[dict[str, Any], ...] = ()


def explain(context: RunContext, text: str, storage: str | None = None) -> list[Explanation]:
    """Returns one explanation. For a key and several storages it returns one for each storage that
    knows the key, or for all if none does.

    Raises `StateError` where the run date has no tables, `UsageError` for a storage that does not
    exist.
    """
    if is_address(text):
        place = context.resolver().resolve_one(text)
        if place is None:
            external = [row for lake in context.config.lakes for row in lake_rows(context, lake.name, "key", text, EXTERNAL_SIDE)]
            why = "no configured storage holds this address, so it is never swept"
            if external:
                why += f"; lake {external[0]['lake']} needs it"
            return [Explanation(None, text, "external", why + ".")]
        if storage not in {None, place[0]}:
            raise UsageError(f"{text} lies in storage {place[0]}, not in {storage}")
        return [_explain(context, *place)]
    names = [item.name for item in context.config.storages] if storage is None else [context.storage(storage).name]
    found = [_explain(context, name, text) for name in names]
    return [item for item in found if item.verdict != "unknown"] or found


def _explain(context: RunContext, storage: str, key: str) -> Explanation:
    published = [table for lake in context.config.lakes if (table := context.find(LIVE_FILES, lake.name))]
    if not published:
        raise StateError(f"there is nothing to explain by for {context.run_date}; run `gc-assets run --run-date {context.run_date}` first")
    words = _words(context, storage, key)
    history, summary = tuple(words.to_pylist()), _facts(context, storage, key)
    last = _last_act(summary, words)
    for lake in context.config.lakes:
        for row in lake_rows(context, lake.name, "key", key):
            if row["storage"] == storage:
                links = tuple(chain(context, lake.name, row))
                sentence = f"It is live: {_because(links)}."
                if last is not None and last["phase"] == QUARANTINE:
                    sentence += f" But it {_done(storage, key, last)[1].removeprefix('It ')}"
                return Explanation(storage, key, "live", sentence + _uploads(summary), links, summary, history)
    if last is not None:
        verdict, sentence = _done(storage, key, last)
    elif (main := _main_file(context, storage, key)) is not None and "orphan" in summary and summary["orphan"] is None:
        verdict, sentence = "live", f"It is a side file of {main}, which is live, and stays with it."
    else:
        verdict, sentence = _not_live(context, storage, summary)
    judged = {row["plan_id"] for row in history} | ({summary["plan_id"]} if summary.get("plan") is not None else set())
    said = tuple(_said_of(context, storage, judged)) if judged else ()
    return Explanation(storage, key, verdict, sentence + _uploads(summary), last_chain(context, storage, key), summary, history, said)


def _uploads(summary: dict[str, Any]) -> str:
    """Returns a sentence on what the plan does to unfinished uploads to the key, if it has any."""
    count = len(summary.get("uploads", ()))
    return f" Plan {summary['plan_id'][:12]} aborts {count:,} unfinished uploads to it, for good." if count else ""


def _said_of(context: RunContext, storage: str, plan_ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields what people said of these plans, newest plan first, in words too (`text`)."""
    for plan in list_plans(context.config, storage):
        if plan.header.plan_id in plan_ids:
            yield from ({**word.model_dump(), "text": str(word)} for word in plan.verdict.events)


def _main_file(context: RunContext, storage: str, key: str) -> str | None:
    """Returns the live file that the key is a side file of."""
    main = re.sub(SIDE_FILE, r"\1\2", key)
    rows = [row for lake in context.config.lakes for row in lake_rows(context, lake.name, "key", main)] if main != key else []
    return main if any(row["storage"] == storage for row in rows) else None


def _because(chain: tuple[Link, ...]) -> str:
    first = chain[0]
    return f"{first.what} {first.name} needs it" + (f" ({first.detail})" if first.detail else "")


def _not_live(context: RunContext, storage: str, summary: dict[str, Any]) -> tuple[str, str]:
    plan, orphan, listed = summary.get("plan"), summary.get("orphan"), summary.get("inventory")
    if plan is not None:
        refused = summary["plan_refused_by"]
        why = plan["reason"]
        if orphan is not None and orphan["last_commit_id"] is not None:
            why += f", last needed by commit {orphan['last_commit_id']}"
        sentence = f"No live commit needs it ({why}): plan {summary['plan_id'][:12]} would {plan['action']} it"
        sentence += f", once it has edited the history of lake {orphan['held_by']}." if plan["after_expiry"] and orphan else "."
        return ("refused", f"{sentence} The plan is refused by {', '.join(refused)}.") if refused else ("planned", sentence)
    if orphan is not None and orphan["held_by"] is not None:
        commit = orphan["last_commit_id"]
        return "expired", f"Only expired history of lake {orphan['held_by']} needs it, last commit {commit}: another plan edits that first."
    if orphan is not None:
        return "waiting", f"It is garbage ({orphan['reason']}) and in no plan of this date: it is quarantined already, or no plan was made."
    if listed is None:
        return "unknown", f"Storage {storage} had no such object when it was listed for {context.run_date}, and no lake names it."
    claim = summary.get("claimed_by")
    if claim is None:
        return "unowned", "No lake claims the place where it lies, so it is counted and left alone."
    cutoff = summary.get("grace_cutoff")
    if cutoff is not None and listed["last_modified"] >= cutoff:
        return (
            "young",
            f"No live commit needs it, but it is younger than the grace period (last modified {listed['last_modified'].isoformat()}).",
        )
    if summary.get("young_by_name"):
        return "young", f"No live commit needs it, but by its name it was handed out so lately that lake {claim} may yet link it."
    return "unknown", f"Lake {claim} claims its place and no table of this date says more; run the date again to the end."


def _last_act(summary: dict[str, Any], words: pa.Table) -> dict[str, Any] | None:
    """Returns what the logs say last of the key: of a copy in quarantine where there is one, else
    of any copy.

    Null where the storage was listed since and the listing shows the key.
    """
    of_copies = newest_entries(words, ("key", "by"))
    waiting = of_copies.filter(pc.equal(of_copies.column("phase"), QUARANTINE))
    last = (waiting if waiting.num_rows else of_copies).to_pylist()[-1:]
    seen_since = summary.get("inventory") is not None and any(word["at"] < summary["listed_at"] for word in last)
    return None if seen_since or not last else last[0]


def _done(storage: str, key: str, act: dict[str, Any]) -> tuple[str, str]:
    when, by = act["at"].isoformat(), act["plan_id"][:12]
    if act["phase"] == PURGE:
        return "purged", f"It was purged at {when} by plan {by}."
    if act["phase"] == RESTORE:
        return "restored", f"It was put back at {when}; the next night judges it afresh."
    return (
        "quarantined",
        f"It is in quarantine since {when}, by plan {by}. Undo: gc-assets restore --storage {storage} --key {shlex.quote(key)}",
    )


def _facts(context: RunContext, storage: str, key: str) -> dict[str, Any]:
    """Returns the key's rows in those of the storage's tables of the run date that were published."""
    summary: dict[str, Any] = {}
    inventory = context.find(STORAGE_INVENTORY, storage)
    if inventory is not None:
        summary["listed_at"] = inventory.summary(StorageInventorySummary).report_as_of or inventory.receipt.created_at
        summary["inventory"] = _first(read_key_rows(context, STORAGE_INVENTORY.schema, inventory, "key", key))
    orphans = context.find(ORPHAN_FILES, storage)
    if orphans is not None:
        summary["grace_cutoff"] = orphans.summary(OrphanFilesSummary).grace_cutoff
        summary["orphan"] = _first(read_key_rows(context, ORPHAN_FILES.schema, orphans, "key", key))
    plan = context.find(DELETION_PLAN, storage)
    if plan is not None:
        summary["plan"] = _first(read_key_rows(context, DELETION_PLAN.schema, plan, "key", key))
        summary["uploads"] = read_matching_rows(context.state, UPLOADS, plan.paths(UPLOADS_SIDE), "key", [key]).to_pylist()
        header = plan.summary(DeletionPlanSummary).header
        summary["plan_id"] = header.plan_id
        summary["plan_refused_by"] = [gate.name for gate in header.failed_gates]
    owner = _claims(context, storage).owner_of(key)
    summary["claimed_by"] = owner.lake if owner is not None else None
    if owner is not None and orphans is not None and summary.get("inventory") is not None:
        summary["young_by_name"] = not _is_old(context, owner.lake, key, summary)
    return summary


def _is_old(context: RunContext, lake: str, key: str, summary: dict[str, Any]) -> bool:
    """Says whether the lake that claims the key lets it be a candidate by its age."""
    refs = [table for item in context.config.lakes if (table := context.find(LAKE_REFS, item.name))]
    row = {"key": key, "last_modified": summary["inventory"]["last_modified"], "lake": lake}
    claimed = pa.RecordBatch.from_pylist([row], schema=pa.schema([("key", STRING), ("last_modified", TIMESTAMP), ("lake", STRING)]))
    return bool(Ages.of(context, summary["grace_cutoff"], refs).is_old(claimed)[0].as_py())


def _claims(context: RunContext, storage: str) -> Claims:
    """Returns the claims by the tables that are there.

    A night may have stopped before it made them all.
    """
    tables = [context.find(table, lake.name) for table in (LAKE_REFS, LIVE_FILES) for lake in context.config.lakes]
    return claims_of(context, storage, [table for table in tables if table is not None])


def _words(context: RunContext, storage: str, key: str) -> pa.Table:
    """Returns what was ever done to the key, or tried, oldest first (columns of `deletion_log`)."""
    found = [DELETION_LOG.schema.empty_table()]
    for source in context.state.segment_files(context.state.history(storage, DELETION_LOG.name)):
        rows = read_matching_rows(context.state, DELETION_LOG.schema, [source.path], "key", [key])
        run_id = pc.fill_null(rows.column("run_id"), source.run_id)
        found.append(rows.set_column(rows.schema.get_field_index("run_id"), DELETION_LOG.schema.field("run_id"), run_id))
    return pa.concat_tables(found).sort_by([("at", "ascending"), ("run_id", "ascending")])


def _first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return rows[0] if rows else None
