"""Explain why a file is kept, planned or deleted, based on the published tables of a run date.

For a live file, the explanation follows the file's witnesses (which show why it is live) through
containers and a commit to a ref. Neither Spark nor access to the lakes is required.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.claims import Claims
from gc_assets.core.commands import command
from gc_assets.core.deprecation import RenamedAttribute, warn_renamed_attribute
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.foreign import RULES, SIDE_FILE
from gc_assets.core.moments import format_time
from gc_assets.core.paths import is_address
from gc_assets.core.phases import ABSENT, PURGE, QUARANTINE, RESTORE
from gc_assets.core.printable import show_list
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.stages.mark.unknown_addresses import external_addresses
from gc_assets.stages.read.browse import read_matching_rows
from gc_assets.stages.read.chain import Link, chain, last_chain, read_key_rows
from gc_assets.stages.read.dropped_tables import accept_command, describe, find_dropped_table
from gc_assets.stages.read.key_search import MAX_MATCHES, find_keys
from gc_assets.stages.read.live_rows import LiveRows
from gc_assets.stages.records.ledger import newest_of_copies
from gc_assets.stages.records.plans import UNFINISHED, list_plans
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.dropped_tables import DROPPED, claims_with_dropped
from gc_assets.stages.sweep.foreign_files import FOREIGN, protected_keys
from gc_assets.state.arrow_types import STRING, TIMESTAMP
from gc_assets.state.listings import open_listing
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN, LAKE_REFS, LIVE_FILES, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.side_tables import DEFERRED_SIDE, EXTERNAL_SIDE, UPLOADS, UPLOADS_SIDE
from gc_assets.state.summaries import DeletionPlanSummary, OrphanFilesSummary, StorageInventorySummary

# A plan with one of these statuses can still change files.
_OPEN: Final = frozenset({"ready", "refused", "approved", UNFINISHED})


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a key is kept, planned or deleted, according to the tables of a run date.

    Attributes:
        verdict: One of live, planned, refused, rejected, expired, waiting, quarantined, restored,
            purged, lost, young, unowned, dropped, foreign, protected, external, unknown.
        chain: The objects from the ref to the file.
        summary: Data about the key from the published tables.
        history: All recorded actions on the key, oldest first.
        approval_events: Approvals and rejections of the plans that contain the key.
    """

    storage: str | None
    key: str
    verdict: str
    sentence: str
    chain: tuple[Link, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    history: tuple[dict[str, Any], ...] = ()
    approval_events: tuple[dict[str, Any], ...] = ()

    facts = RenamedAttribute("summary")

    @property
    def words(self) -> tuple[dict[str, Any], ...]:
        """Deprecated: use `approval_events`, whose key `decision` replaces `said`."""
        warn_renamed_attribute("Explanation.words", "approval_events")
        return tuple({**event, "said": event["decision"]} for event in self.approval_events)


def explain(context: RunContext, text: str, storage: str | None = None) -> list[Explanation]:
    """Explain the file at an address, or a key in each storage that contains it.

    The beginning or the end of a key, or a key shortened with an ellipsis, is accepted too if only
    one file matches. If no storage contains the key, the result has an explanation for each
    storage.

    Raises:
        StateError: If no tables are published for the run date.
        UsageError: If the storage does not exist or does not contain the address, or if more than
            one file matches.
    """
    if is_address(text):
        resolved = context.resolver().resolve_one(text)
        if resolved is None:
            external = _external_rows(context, text)
            reason = "no configured storage contains this address, so it is never swept"
            if external:
                reason += f"; lake {external[0]['lake']} needs it"
            if (unknown := external_addresses(context).find_reasons(pa.array([text]))[0].as_py()) is not None:
                reason += f". It may be another name of a file in a storage ({unknown}); then add its beginning to `aliases` in lakes.yaml"
            return [Explanation(None, text, "external", reason + ".")]
        if storage not in {None, resolved[0]}:
            raise UsageError(
                f"Cannot explain {text} in storage {storage}: the address is in storage {resolved[0]}. Pass --storage "
                f"{resolved[0]}, or leave out the option"
            )
        return [_explain(context, *resolved)]
    names = [item.name for item in context.config.storages] if storage is None else [context.storage(storage).name]
    found = [_explain(context, name, text) for name in names]
    known = [item for item in found if item.verdict != "unknown"]
    return known or _explain_part(context, names, text) or found


def _explain_part(context: RunContext, storages: Sequence[str], text: str) -> list[Explanation]:
    """Explain the file whose key begins or ends with a string, if there is exactly one.

    Raises:
        UsageError: If more than one file matches.
    """
    matches = [(storage, key) for storage in storages for key in find_keys(context, storage, text)]
    if len(matches) > 1:
        shown = "".join(f"\n  {storage}: {key}" for storage, key in matches[:MAX_MATCHES])
        count = f"at least {MAX_MATCHES}" if len(matches) >= MAX_MATCHES else str(len(matches))
        raise UsageError(
            f"Cannot explain {text}: it is ambiguous, because {count} keys begin or end with this text. Give a longer part of "
            f"one of these keys:{shown}"
        )
    return [_explain(context, storage, key) for storage, key in matches]


def _describe_path_edits(context: RunContext, storage: str, key: str) -> str:
    """Describe which paths of a file lifecycle rules delete on branches, if any."""
    table = table_with(TableRole.PATH_EDITS)
    paths = [path for published in context.find_lake_tables(table) for path in published.paths()]
    rows = read_matching_rows(context.state, table.schema, paths, "key", [key]).to_pylist()
    edits = [f"{row['path']} on branch {row['branch']} (rule {row['rule_id']})" for row in rows if row["storage"] == storage]
    return f" Lifecycle rules delete these paths of it by commits: {show_list(sorted(edits))}." if edits else ""


def _external_rows(context: RunContext, address: str) -> list[dict[str, Any]]:
    paths = [path for table in context.find_lake_tables(LIVE_FILES) for path in table.paths(EXTERNAL_SIDE)]
    return read_matching_rows(context.state, LIVE_FILES.schema, paths, "key", [address]).to_pylist()


def _explain(context: RunContext, storage: str, key: str) -> Explanation:
    if not context.find_lake_tables(LIVE_FILES):
        raise StateError(
            f"Cannot explain {key}: no tables are published for {context.run_date}; run "
            f"`{command('run', run_date=str(context.run_date))}` first"
        )
    entries = _read_log_entries(context, storage, key)
    history, summary = tuple(entries.to_pylist()), _read_rows(context, storage, key)
    last, main = _find_last_action(summary, entries), re.sub(SIDE_FILE, r"\1\2", key)
    live = LiveRows.of(context, {key, main})
    for row in live.find(storage, key):
        links = tuple(chain(context, row["lake"], row))
        sentence = f"It is live: {_describe_need(links)}."
        if last is not None and (last["phase"] == QUARANTINE or _is_lost(last)):
            sentence += f" But it {_describe_action(storage, key, last)[1].removeprefix('It ')}"
        sentence += _describe_path_edits(context, storage, key)
        return Explanation(storage, key, "live", sentence + _describe_uploads(summary), links, summary, history)
    if last is not None:
        verdict, sentence = _describe_action(storage, key, last)
    elif main != key and any(live.find(storage, main)) and "orphan" in summary and summary["orphan"] is None:
        verdict, sentence = "live", f"It is a side file of {main}, which is live, and stays with it."
    else:
        verdict, sentence = _not_live(context, storage, summary)
    plan_ids = {row["plan_id"] for row in history} | ({summary["plan_id"]} if summary.get("plan") is not None else set())
    approvals = tuple(_describe_approvals(context, storage, plan_ids)) if plan_ids else ()
    links = last_chain(context, live, storage, key)
    return Explanation(storage, key, verdict, sentence + _describe_uploads(summary), links, summary, history, approvals)


def _describe_uploads(summary: dict[str, Any]) -> str:
    """Describe how many unfinished uploads to the key the plan aborts, if any."""
    count = len(summary.get("uploads", ()))
    return f" Plan {summary['plan_id'][:12]} aborts {count_of(count, 'unfinished upload')} to it, permanently." if count else ""


def _describe_approvals(context: RunContext, storage: str, plan_ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the approvals and rejections of some plans, newest plan first, with a `text` to print."""
    for plan in list_plans(context.config, storage):
        if plan.header.plan_id in plan_ids:
            yield from ({**event.model_dump(), "text": str(event)} for event in plan.verdict.events)


def _describe_need(chain: tuple[Link, ...]) -> str:
    first = chain[0]
    return f"{first.what} {first.name} needs it" + (f" ({first.detail})" if first.detail else "")


def _describe_planned(summary: dict[str, Any], plan: dict[str, Any], orphan: dict[str, Any] | None) -> tuple[str, str]:
    refused = summary["plan_refused_by"]
    reason = plan["reason"]
    if (dropped := summary.get("dropped")) is not None and reason == DROPPED:
        reason += f": {dropped['name']} (not found by the run of {dropped['gone_since']:%Y-%m-%d %H:%M} UTC)"
    if orphan is not None and orphan["last_commit_id"] is not None:
        reason += f", last needed by commit {orphan['last_commit_id']}"
    sentence = f"No live commit needs it ({reason}): plan {summary['plan_id'][:12]} would {plan['action']} it"
    sentence += f", once it has edited the history of lake {orphan['held_by']}." if plan["after_expiry"] and orphan else "."
    status = summary["plan_status"]
    if status == "rejected":
        return "rejected", f"{sentence} The plan was rejected."
    if status == UNFINISHED:
        again = command("apply", summary["plan_id"][:12])
        sentence += f" An apply of the plan began and has not ended, so this may be done already. To continue it: `{again}`."
    if status not in {None, *_OPEN}:
        return "waiting", f"{sentence} But the plan is {status}, so it does not change the file any more. Run again."
    return ("refused", f"{sentence} The plan is refused by {', '.join(refused)}.") if refused else ("planned", sentence)


def _not_live(context: RunContext, storage: str, summary: dict[str, Any]) -> tuple[str, str]:
    plan, orphan, listed = summary.get("plan"), summary.get("orphan"), summary.get("inventory")
    if plan is not None:
        return _describe_planned(summary, plan, orphan)
    if orphan is not None and orphan["reason"] == FOREIGN:
        claim = orphan["lake"]
        return (
            "foreign",
            f"Lake {claim} claims its location, but it may belong to others ({RULES[orphan['foreign_rule']]}), so it is not planned.",
        )
    if orphan is None and (dropped := summary.get("dropped")) is not None and dropped["waits_for"] is not None:
        accept = accept_command(dropped["table_uuid"], dropped["waits_for"])
        way_out = f" If the {dropped['noun']} is not in use, accept it: `{accept}`." if accept is not None else ""
        return (
            "dropped",
            f"It belongs to {dropped['name']}, and waits: {dropped['waits_for']}.{way_out}",
        )
    if orphan is not None and orphan["held_by"] is not None:
        commit = orphan["last_commit_id"]
        return (
            "expired",
            f"Only expired history of lake {orphan['held_by']} needs it, last commit {commit}: another plan edits that history first.",
        )
    if orphan is not None:
        return (
            "waiting",
            f"It is garbage ({orphan['reason']}) but not in a plan of this date: it is already in quarantine, the plan leaves it out, or "
            "no plan was made.",
        )
    if listed is None:
        return "unknown", f"Storage {storage} did not contain this object when it was listed for {context.run_date}, and no lake needs it."
    claim = summary.get("claimed_by")
    if claim is None:
        return "unowned", "No lake claims its location, so it is counted and not deleted."
    if summary.get("protected"):
        return "protected", "`protect` in lakes.yaml matches its key, so it is not deleted."
    cutoff = summary.get("grace_cutoff")
    if cutoff is not None and listed["last_modified"] >= cutoff:
        return (
            "young",
            f"No live commit needs it, but it is younger than the grace period (last modified {format_time(listed['last_modified'])}).",
        )
    if summary.get("young_by_name"):
        return "young", f"No live commit needs it, but the time in its name is so recent that lake {claim} may still link it."
    if summary.get("deferred"):
        return (
            "waiting",
            "No configured lake needs it, but it is kept for now. See the notes and gates of the run for the reason, such as "
            "`foreign_metadata`.",
        )
    return "unknown", f"Lake {claim} claims its location, and the tables of this date are incomplete; finish the run of this date."


def _find_last_action(summary: dict[str, Any], entries: pa.Table) -> dict[str, Any] | None:
    """Find the last recorded action on a key. If a copy is in quarantine, its last action counts.

    Returns:
        The action, or None if a listing that was made after it contains the key again.
    """
    of_copies = newest_of_copies(entries)
    waiting = of_copies.filter(pc.equal(of_copies.column("phase"), QUARANTINE))
    last = (waiting if waiting.num_rows else of_copies).to_pylist()[-1:]
    listed_since = summary.get("inventory") is not None and any(word["at"] < summary["listed_at"] for word in last)
    return None if listed_since or not last else last[0]


def _is_lost(action: dict[str, Any]) -> bool:
    return action["phase"] == RESTORE and action["outcome"] == ABSENT


def _describe_action(storage: str, key: str, action: dict[str, Any]) -> tuple[str, str]:
    when, by = format_time(action["at"]), action["plan_id"][:12]
    if action["phase"] == PURGE:
        return "purged", f"It was purged at {when} by plan {by}."
    if _is_lost(action):
        return "lost", f"It was lost in quarantine: at {when}, a restore did not find it there. Restore it from a backup."
    if action["phase"] == RESTORE:
        return "restored", f"It was restored at {when}; the next run classifies it again."
    return (
        "quarantined",
        f"It has been in quarantine since {when}, by plan {by}. Undo: {command('restore', storage=storage, key=key)}",
    )


def _read_rows(context: RunContext, storage: str, key: str) -> dict[str, Any]:
    """Collect rows about the key from the storage's published tables for the run date."""
    summary: dict[str, Any] = {}
    inventory = context.find(STORAGE_INVENTORY, storage)
    if inventory is not None:
        listing = open_listing(context.state, inventory)
        summary["listed_at"] = inventory.summary(StorageInventorySummary).as_of or listing.receipt.created_at
        summary["inventory"] = _first(read_key_rows(context, STORAGE_INVENTORY.schema, listing, "key", key))
    orphans = context.find(ORPHAN_FILES, storage)
    if orphans is not None:
        summary["grace_cutoff"] = orphans.summary(OrphanFilesSummary).grace_cutoff
        summary["orphan"] = _first(read_key_rows(context, ORPHAN_FILES.schema, orphans, "key", key))
        deferred = read_matching_rows(context.state, ORPHAN_FILES.schema, orphans.paths(DEFERRED_SIDE), "key", [key])
        summary["deferred"] = bool(deferred.num_rows)
    plan = context.find(DELETION_PLAN, storage)
    if plan is not None:
        summary["plan"] = _first(read_key_rows(context, DELETION_PLAN.schema, plan, "key", key))
        summary["uploads"] = read_matching_rows(context.state, UPLOADS, plan.paths(UPLOADS_SIDE), "key", [key]).to_pylist()
        header = plan.summary(DeletionPlanSummary).header
        summary["plan_id"] = header.plan_id
        summary["plan_refused_by"] = [gate.name for gate in header.failed_gates]
        summary["plan_status"] = _find_status(context, storage, header.plan_id) if summary["plan"] is not None else None
    listed = summary.get("inventory")
    dropped = find_dropped_table(context, storage, key, listed["last_modified"]) if listed is not None else None
    if orphans is not None and dropped is not None:
        table = dropped.table
        summary["dropped"] = {
            "name": describe(context, dropped),
            "table_uuid": table.table_uuid,
            "noun": table.noun,
            "gone_since": table.gone_since,
            "waits_for": dropped.waits_for,
        }
    owner = _claims(context, storage).owner_of(key)
    summary["claimed_by"] = owner.lake if owner is not None else None
    protected = protected_keys(context, storage)
    summary["protected"] = owner is not None and protected is not None and re.search(protected, key) is not None
    if owner is not None and orphans is not None and summary.get("inventory") is not None:
        summary["young_by_name"] = not _is_old(context, owner.lake, key, summary, orphans.summary(OrphanFilesSummary))
    return summary


def _find_status(context: RunContext, storage: str, plan_id: str) -> str | None:
    plans = (plan for plan in list_plans(context.config, storage) if plan.header.plan_id == plan_id)
    return next((plan.status_at(context.clock.now()) for plan in plans), None)


def _is_old(context: RunContext, lake: str, key: str, summary: dict[str, Any], sweep: OrphanFilesSummary) -> bool:
    """Check whether a file is old enough to be a deletion candidate of the lake that claims it."""
    refs = context.find_lake_tables(LAKE_REFS)
    row = {"key": key, "last_modified": summary["inventory"]["last_modified"], "lake": lake}
    claimed = pa.RecordBatch.from_pylist([row], schema=pa.schema([("key", STRING), ("last_modified", TIMESTAMP), ("lake", STRING)]))
    return bool(Ages.of(context, sweep.grace_cutoff, refs, sweep.clock_lead).is_old(claimed)[0].as_py())


def _claims(context: RunContext, storage: str) -> Claims:
    """Read the claims on a storage. Tables that an interrupted run did not publish are skipped."""
    return claims_with_dropped(context, storage, [*context.find_lake_tables(LAKE_REFS), *context.find_lake_tables(LIVE_FILES)])


def _read_log_entries(context: RunContext, storage: str, key: str) -> pa.Table:
    """Read all actions on the key from `deletion_log`, oldest first.

    The result includes actions that were attempted without success.
    """
    found = [DELETION_LOG.schema.empty_table()]
    for source in context.state.segment_files(context.state.history(storage, DELETION_LOG.name)):
        rows = read_matching_rows(context.state, DELETION_LOG.schema, [source.path], "key", [key])
        found.append(replace_columns(rows, {"run_id": pc.fill_null(rows.column("run_id"), source.run_id)}))
    return pa.concat_tables(found).sort_by([("at", "ascending"), ("run_id", "ascending")])


def _first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return rows[0] if rows else None
