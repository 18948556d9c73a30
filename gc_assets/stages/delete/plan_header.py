"""Build the header of a plan, which contains its totals, gate results and the id to approve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gc_assets.config.models import Config, Gates
from gc_assets.core import gates
from gc_assets.core.foreign import NEW_CLAIM
from gc_assets.core.phases import QUARANTINE
from gc_assets.core.plan import UNNAMED, Amount, BranchShare, GateResult, LeftOut, LiveCount, PlanHeader, Uploads, seal
from gc_assets.core.printable import MAX_LISTED, show_list
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import Totals, WrittenParts
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.stages.delete.expired_since import ExpiredSince
from gc_assets.stages.delete.foreign_findings import ForeignFindings
from gc_assets.stages.delete.live_set import check_live_set
from gc_assets.stages.delete.missing_files import digest_missing
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.records.accepted_runs import AcceptedRun, remembered_aliases
from gc_assets.stages.records.dead_tables import dead_tables
from gc_assets.stages.records.fencing_tokens import describe_unknown_leases
from gc_assets.stages.records.plans import list_damage
from gc_assets.stages.sweep.clock_lead import describe_clock_lead
from gc_assets.stages.sweep.live_filter import live_count
from gc_assets.stages.sweep.tail_matches import TailMatches
from gc_assets.state.side_tables import HELD_SIDE, WAITING_SIDE
from gc_assets.state.summaries import LakeRefsSummary, LifecyclePathsSummary, OrphanFilesSummary, StorageInventorySummary


@dataclass(frozen=True, slots=True)
class PlanContent:
    """Everything that a plan's header summarizes.

    Attributes:
        written: The plan's rows.
        expiry: The plan's history edits.
        aliases: Messages about planned files that are live under another address.
        unknown: Planned files that may be live under an unknown address.
        uploads: The unfinished uploads that the plan aborts.
        deferred: Files whose purge waits until all tables can be read.
        foreign: Foreign metadata that the plan has to consider.
        left_out: Files and edits that the plan leaves out, with the reasons.
        left_out_expired: The expired files in `left_out`.
        open_plans: Earlier plans that are still unfinished, with the reasons.
        expired_since: Live files of the last accepted run that the policy has expired since then.
        table_drops: The tables that lost the most live files for other reasons.
    """

    written: WrittenParts
    expiry: WrittenParts
    aliases: list[str]
    unknown: TailMatches
    uploads: Uploads
    deferred: Amount
    foreign: ForeignFindings
    left_out: tuple[LeftOut, ...] = ()
    left_out_expired: Totals = field(default_factory=Totals)
    open_plans: tuple[str, ...] = ()
    expired_since: ExpiredSince = field(default_factory=ExpiredSince)
    table_drops: tuple[str, ...] = ()


@dataclass(slots=True)
class _Counts:
    """A plan's rows, counted by action, by reason for the quarantine, and by action and kind."""

    by_action: dict[str, Totals] = field(default_factory=dict[str, Totals])
    by_reason: dict[str, Totals] = field(default_factory=dict[str, Totals])
    by_kind: dict[str, dict[str, Totals]] = field(default_factory=dict[str, dict[str, Totals]])
    after_expiry: Totals = field(default_factory=Totals)


def build_header(inputs: PlanInputs, content: PlanContent) -> PlanHeader:
    """Build a plan's header. The plan id in it is a digest of the whole plan."""
    context, storage = inputs.context, inputs.context.storage(inputs.storage)
    found, live = inputs.orphans.summary(OrphanFilesSummary), live_count(inputs.live, inputs.storage)
    counts = _count_rows(content.written)
    held = _held_files(content.written, found, counts, content.left_out_expired)
    return seal(
        context.config.plan_secret(),
        storage=inputs.storage,
        location=storage.location,
        quarantine=storage.quarantine,
        run_date=context.run_date,
        as_of=min(table.summary(LakeRefsSummary).as_of for table in inputs.refs),
        frozen_at=inputs.frozen_at,
        grace_cutoff=found.grace_cutoff,
        created_at=context.clock.now(),
        historical=any(table.summary(LakeRefsSummary).historical for table in inputs.refs),
        rehearsal=context.clock.is_rehearsal or any(table.summary(LakeRefsSummary).rehearsal for table in inputs.refs),
        unsafe=tuple(sorted({*context.unsafe, *(text for table in inputs.refs for text in table.receipt.unsafe)})),
        refs_digests={table.receipt.owner: table.summary(LakeRefsSummary).refs_digest for table in inputs.refs},
        policy_digest=context.config.policy_digest(),
        live_files=live.files,
        live_by_lake=dict(sorted(live.by_lake.items())),
        live_bytes=found.storage_breakdown.get("live", Amount()).bytes,
        totals={name: total.amount for name, total in sorted(counts.by_action.items())},
        by_reason={name: total.amount for name, total in sorted(counts.by_reason.items())},
        by_kind={
            action: {kind: total.amount for kind, total in sorted(totals.items())} for action, totals in sorted(counts.by_kind.items())
        },
        after_expiry=counts.after_expiry.amount,
        held_for_expiry=held.amount,
        unreadable=inputs.unreadable,
        left_out=content.left_out,
        warnings=(
            *_warn_of_gone_namespaces(context.config, found),
            *_warn_of_unedited_branches(content.expiry, context),
            *_warn_of_unused_patterns(found),
            *_warn_of_clock(inputs),
            *filter(None, [describe_unknown_leases(context, inputs.storage)]),
        ),
        aliases=remembered_aliases(context, inputs.storage),
        quarantined=Amount(files=content.written.side_rows(WAITING_SIDE)),
        expiry_actions=content.expiry.summary.get("lake", {}),
        edits_by_action=content.expiry.summary.get("action", {}),
        idle_branches=content.expiry.summary.get("idle_branches", {}),
        path_edits=content.expiry.summary.get("path_edits", {}),
        deleted_paths=content.expiry.summary.get("deleted_paths", {}),
        expiry_digest=f"{content.expiry.digest:016x}",
        gates=tuple(_check_gates(inputs, content, live, counts.by_action.get(QUARANTINE, Totals()).amount)),
        rows=content.written.rows,
        rows_digest=f"{content.written.digest:016x}",
        uploads=content.uploads,
        missing_digest=digest_missing(context.state, inputs.orphans),
        listed_at=inputs.listing.as_of if inputs.listing.is_earlier else None,
    )


def _count_rows(written: WrittenParts) -> _Counts:
    counts = _Counts()
    for (action, reason, after_expiry, kind), amount in written.totals.items():
        counts.by_action[action] = counts.by_action.get(action, Totals()) + amount
        of_action = counts.by_kind.setdefault(action, {})
        of_action[kind or UNNAMED] = of_action.get(kind or UNNAMED, Totals()) + amount
        if action == QUARANTINE:
            counts.by_reason[reason] = counts.by_reason.get(reason, Totals()) + amount
        if after_expiry == "true":
            counts.after_expiry += amount
    return counts


def _held_files(written: WrittenParts, found: OrphanFilesSummary, counts: _Counts, left_out: Totals) -> Totals:
    """Add up the expired files that stay, because this plan does not edit their history."""
    if HELD_SIDE not in written.side:
        return Totals()
    expired = [Totals(amount.files, amount.bytes) for name, amount in found.by_reason.items() if name.startswith("expired/")]
    planned = counts.by_reason.get("expired", Totals()) + left_out
    return sum(expired, Totals(-planned.rows, -planned.size_bytes))


def _check_spelling(found: OrphanFilesSummary) -> GateResult:
    samples = [name for name in found.stopped_samples if name.startswith("near_misses")]
    if found.misspelled is None:
        return gates.spelling(found.near_misses, samples)
    return gates.spelling(len(found.misspelled), found.misspelled, found.near_misses - len(found.misspelled), samples)


def _check_new_claims(found: OrphanFilesSummary) -> GateResult:
    new = [item for item in found.foreign if item.rule == NEW_CLAIM]
    older = found.foreign_by_rule.get(NEW_CLAIM, Amount())
    others = Amount(files=found.foreign_amount.files - older.files, bytes=found.foreign_amount.bytes - older.bytes)
    return gates.new_claims(len(new), older, [str(item) for item in new], others)


def _check_dropped(found: OrphanFilesSummary, limit: int) -> list[GateResult]:
    due = [str(item) for item in found.dropped if item.waits_for is None]
    return [gates.dropped_tables(found.dropped_due, limit, due, found.lost_tables)] if due else []


def _warn_of_gone_namespaces(config: Config, found: OrphanFilesSummary) -> Iterator[str]:
    """Warn about missing namespaces, because the account of gc-assets may have lost access to them."""
    gone = [f"{item.name} of lake {config.label_of(item.lake)} ({count_of(item.tables, 'table')})" for item in found.gone_namespaces]
    if gone:
        yield (
            f"{count_of(len(gone), 'namespace', 'are')} missing entirely: {show_list(gone)}. Before you approve, check that the "
            f"account of gc-assets can still see {'it' if len(gone) == 1 else 'them'}."
        )


def _warn_of_unedited_branches(expiry: WrittenParts, context: RunContext) -> Iterator[str]:
    """Warn about branches on which the last applies could not delete any path."""
    for lake in expiry.summary.get("path_edits", {}):
        found = context.table(table_with(TableRole.PATH_EDITS), lake).summary(LifecyclePathsSummary)
        yield from (f"{sentence[0].upper()}{sentence[1:]}." for sentence in found.unedited)


def _warn_of_unused_patterns(found: OrphanFilesSummary) -> Iterator[str]:
    """Warn about `protect` patterns that do not match any file and may be misspelled."""
    if found.unused_patterns:
        more = len(found.unused_patterns) - MAX_LISTED
        names = show_list([f"`{pattern}`" for pattern in found.unused_patterns]) + (f" and {more:,} more" if more > 0 else "")
        yield f"`protect` in lakes.yaml: no listed file matches {names}, so nothing is protected by it. Check the spelling."


def _warn_of_clock(inputs: PlanInputs) -> Iterator[str]:
    if inputs.clock_lead:
        yield describe_clock_lead(inputs.context.config.label_of(inputs.storage), inputs.frozen_at, inputs.clock_lead)


def _check_idle_branches(expiry: WrittenParts, limit: int) -> list[GateResult]:
    count = sum(expiry.summary.get("idle_branches", {}).values())
    return [gates.idle_branches(count, limit)] if count else []


def _check_deleted_paths(expiry: WrittenParts, limits: Gates) -> list[GateResult]:
    count = sum(expiry.summary.get("deleted_paths", {}).values())
    if not count:
        return []
    shares = [BranchShare(**item) for item in expiry.summary["branch_shares"]]
    is_configured = "max_deleted_path_share" in limits.model_fields_set
    return [gates.deleted_paths(count, limits.max_deleted_paths, shares, limits.max_deleted_path_share, configured=is_configured)]


def _check_gates(inputs: PlanInputs, content: PlanContent, live: LiveCount, planned: Amount) -> list[GateResult]:
    context = inputs.context
    found, limits = inputs.orphans.summary(OrphanFilesSummary), context.storage(inputs.storage).gates
    earlier = AcceptedRun.find_last(context, inputs.storage)
    samples, foreign = found.stopped_samples, content.foreign
    dead = [str(item) for item in dead_tables(context, inputs.storage)]
    listed = inputs.inventory.summary(StorageInventorySummary)
    stored = Amount(files=listed.objects, bytes=listed.bytes)
    return [
        check_live_set(
            context, inputs.storage, inputs.refs, inputs.live, content.written.rows + content.expiry.rows + content.uploads.count
        ),
        gates.live_drop(
            live,
            earlier.count(live) if earlier is not None else None,
            limits.max_live_drop,
            content.expired_since.count,
            (*content.expired_since.notes, *(earlier.describe_losses() if earlier is not None else ())),
            content.table_drops,
        ),
        gates.lakes_present(earlier.missing_lakes(live) if earlier is not None else []),
        gates.unreadable_tables(inputs.unreadable, limits.max_unreadable, content.deferred),
        gates.metadata_present(found.missing_metadata_count, found.missing_metadata),
        gates.live_listed(found.live_keys, found.live_unlisted_count, found.live_unlisted),
        gates.no_live_candidate(found.false_negatives, [name for name in samples if name.startswith("false_negatives")]),
        _check_spelling(found),
        gates.links(found.behind_links_count + len(content.aliases), [*found.behind_links, *content.aliases]),
        gates.unknown_addresses(content.unknown.addresses, content.unknown.files, content.unknown.samples, content.unknown.hidden),
        gates.storages_apart(context.overlapping_storages(inputs.storage)),
        gates.foreign_metadata(foreign.count, foreign.samples, found.junk_count, found.junk, dead, foreign.unknown, foreign.notes),
        _check_new_claims(found),
        *_check_dropped(found, limits.max_dropped_tables),
        *_check_idle_branches(content.expiry, limits.max_idle_branches),
        *_check_deleted_paths(content.expiry, limits),
        gates.unfinished_apply(content.open_plans),
        gates.damaged_histories(list_damage(context.state, [lake.name for lake in context.config.lakes])),
        gates.delete_bytes(planned, limits.max_delete_bytes),
        gates.delete_share(planned, stored, limits.max_delete_share, configured="max_delete_share" in limits.model_fields_set),
    ]
