"""Describe which effects of a plan can be undone and until when, and how much space it frees.

Commands and reports print these texts, which depend only on the plan's header and the
configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from gc_assets.config.models import Config
from gc_assets.core.commands import command
from gc_assets.core.phases import ABORT, ABSENT, CHANGED, DENIED, DONE, EXPIRE, FAILED, PHASES, PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import Amount, PlanHeader, PlanSummary, Uploads
from gc_assets.core.units import count_of, format_bytes
from gc_assets.lakes.kind import LakeKind
from gc_assets.lakes.kinds import kind_of

# Pseudo-outcome of an action that was begun but has no outcome yet, so it may have been executed.
UNKNOWN: Final = "unknown"
# For each outcome, only the most frequent reasons are listed.
MAX_REASONS: Final = 3
NOTHING_CHANGED: Final = "Nothing was changed."
_NOTHING: Final = "nothing"
_NO_REASONS: Final[Mapping[tuple[str, str], Mapping[str, int]]] = MappingProxyType({})
# Precedes the outcome if some of the actions do not have a record yet.
_RECORDED: Final = "recorded as "
# Maximum number of tables in one sentence.
_MAX_TABLES: Final = 5
_SUBJECTS: Final = {
    RESTORE: ("file", "restored"),
    EXPIRE: ("history edit", "made"),
    QUARANTINE: ("file", "moved to quarantine"),
    PURGE: ("file", "purged"),
    ABORT: ("upload", "aborted"),
}
# Phrases for each outcome, in the singular and the plural.
_FILE_TEXTS: Final = {
    ABSENT: ("was gone already", "were gone already"),
    CHANGED: ("is needed, changed or waits, so it was left alone", "are needed, changed or wait, so they were left alone"),
    DENIED: ("was denied", "were denied"),
    FAILED: ("failed", "failed"),
}
_RESTORE_TEXTS: Final = _FILE_TEXTS | {ABSENT: ("was lost in quarantine", "were lost in quarantine")}
_EDIT_TEXTS: Final = {
    ABSENT: ("had been made already", "had been made already"),
    CHANGED: ("is not required any more or waits, so it was not made", "are not required any more or wait, so they were not made"),
    DENIED: ("was denied", "were denied"),
    FAILED: ("failed", "failed"),
}


@dataclass(frozen=True, slots=True)
class Reversibility:
    """Sentences about which effects of a plan can be undone, for text and JSON output."""

    can_be_undone: str
    cannot_be_undone: str
    becomes_free: str

    @property
    def lines(self) -> tuple[str, str, str]:
        return (
            f"Can be undone: {self.can_be_undone}.",
            f"Cannot be undone: {self.cannot_be_undone}.",
            f"Becomes free: {self.becomes_free}.",
        )


def describe_reversibility(
    header: PlanHeader, config: Config, *, restored: bool = False, undone: bool = False, applied_at: datetime | None = None
) -> Reversibility:
    """Describe the effects of a plan, either for its approval or after it was applied.

    Args:
        restored: True if the plan's quarantined files were restored.
        undone: True if the plan's reversible history edits were undone.
        applied_at: The time at which the plan was applied, or None if it was not.
    """
    quarantined, purged = header.totals.get(QUARANTINE, Amount()), header.totals.get(PURGE, Amount())
    edits = [(lake, count, _kind(config, lake)) for lake, count in _history_edits(header).items()]
    reversible_edits = [_edits(lake, count, kind) for lake, count, kind in edits if kind is not None and kind.undoes_edits]
    reversible_edits += [text for lake, text in _describe_branch_edits(header) if _kind(config, lake) is not None]
    if undone:
        reversible_edits = []
    days = next((item.quarantine_days for item in config.storages if item.name == header.storage), None)
    return Reversibility(
        _join(_reversible_effects(header, quarantined, reversible_edits, days, restored=restored, applied=applied_at is not None)),
        _join(_final_effects(header, purged, edits)),
        _join(_freed_bytes(Amount() if restored else quarantined, purged, header.uploads, days, applied_at)),
    )


def describe_outcomes(
    header: PlanHeader, by_outcome: Mapping[tuple[str, str], int], reasons: Mapping[tuple[str, str], Mapping[str, int]] = _NO_REASONS
) -> Iterator[str]:
    """Describe what each phase of an apply has done, skipped and failed to do.

    Args:
        by_outcome: Number of files, edits or uploads, keyed by phase and outcome.
        reasons: Number of files, edits or uploads for each reason, keyed by phase and outcome.

    Yields:
        A sentence for each phase, followed by one for each of the most frequent reasons.
    """
    for phase in PHASES:
        counts = {outcome: count for (of, outcome), count in by_outcome.items() if of == phase and count}
        if not counts:
            continue
        subject, done = _SUBJECTS[phase]
        if phase == QUARANTINE and header.quarantine == "deferred":
            done = "marked as quarantined"
        texts = {EXPIRE: _EDIT_TEXTS, RESTORE: _RESTORE_TEXTS}.get(phase, _FILE_TEXTS)
        others = [f"{counts[outcome]:,} {text[counts[outcome] > 1]}" for outcome, text in texts.items() if outcome in counts]
        skipped = f"; {', '.join(others)}" if others else ""
        yield f"{phase.capitalize()}: {count_of(counts.get(DONE, 0), subject)} {done}{skipped}."
        for outcome in texts:
            yield from _describe_reasons(outcome, Counter(reasons.get((phase, outcome), {})))


def _describe_reasons(outcome: str, reasons: Counter[str]) -> Iterator[str]:
    listed = reasons.most_common(MAX_REASONS)
    for reason, count in listed:
        yield f"- {count:,} {outcome}: {reason.rstrip('.')}."
    if len(reasons) > len(listed):
        others = reasons.total() - sum(count for _, count in listed)
        yield f"- {others:,} {outcome} for {count_of(len(reasons) - len(listed), 'other reason')}."


@dataclass(frozen=True, slots=True)
class RecordedActions:
    """The actions recorded so far by an unfinished apply.

    Attributes:
        counts: Number of files and uploads, keyed by phase and outcome.
        edits: Number of history edits for each lake and outcome.
        tables: Names of the tables in which edits were made, keyed by lake.
        is_complete: False if the log was too large to read all of it in time.
    """

    counts: Mapping[tuple[str, str], int]
    edits: Mapping[str, Mapping[str, int]]
    tables: Mapping[str, tuple[str, ...]]
    is_complete: bool = True

    @property
    def is_empty(self) -> bool:
        """True if no action is recorded as done or unknown, so nothing can have changed yet."""
        changed = sum(count for (_, outcome), count in self.counts.items() if outcome in {DONE, UNKNOWN})
        return not changed and not any(by.get(DONE) or by.get(UNKNOWN) for by in self.edits.values())


def describe_recorded(header: PlanHeader, recorded: RecordedActions, config: Config) -> Iterator[str]:
    """Describe the changes made by an unfinished apply, beginning with irreversible ones."""
    if recorded.is_empty:
        yield NOTHING_CHANGED
        return
    at_least = "" if recorded.is_complete else "at least "
    for lake, planned in header.expiry_actions.items():
        yield from _describe_recorded_edits(header, lake, planned, recorded, config)
    for phase, is_final in ((PURGE, True), (ABORT, True), (QUARANTINE, False), (RESTORE, False)):
        subject, done = _SUBJECTS[phase]
        planned = header.uploads.count if phase == ABORT else header.totals.get(phase, Amount()).files
        count, unknown = recorded.counts.get((phase, DONE), 0), recorded.counts.get((phase, UNKNOWN), 0)
        if count or unknown:
            back = f" `{command('restore', plan=header.plan_id[:12])}` moves them back." if phase == QUARANTINE and count else ""
            final = " This cannot be undone." if is_final and count else ""
            moved = f"{at_least}{count:,} of {count_of(planned, subject)} {_RECORDED if unknown else ''}{done}"
            yield f"{phase.capitalize()}: {moved}.{final}{back}{_may_be_done(unknown, done.split()[0])}"


def _describe_recorded_edits(header: PlanHeader, lake: str, planned: int, recorded: RecordedActions, config: Config) -> Iterator[str]:
    by_outcome, kind = recorded.edits.get(lake, {}), _kind(config, lake)
    count, unknown = by_outcome.get(DONE, 0), by_outcome.get(UNKNOWN, 0)
    if not count and not unknown:
        return
    branches = header.branch_edits.get(lake, 0)
    undoes = kind is not None and (kind.undoes_edits or branches == planned)
    undone = "undoes them" if undoes or not branches else "undoes edits of branches, the others are final"
    undo = f" `{command('restore', plan=header.plan_id[:12], history=True)}` {undone}." if undoes or branches else " They are final."
    names = recorded.tables.get(lake, ())
    more = f" and {len(names) - _MAX_TABLES:,} more" if len(names) > _MAX_TABLES else ""
    tables = f" ({', '.join(names[:_MAX_TABLES])}{more})" if names else ""
    made = f"{count:,} of {count_of(planned, 'edit')} of the history of lake {lake} {_RECORDED if unknown else ''}made{tables}."
    yield f"{EXPIRE.capitalize()}: {made}{undo if count else ''}{_may_be_done(unknown, 'made')}"


def _may_be_done(count: int, done: str) -> str:
    were, them = ("was", "it") if count == 1 else ("were", "each of them")
    unknown = f" Whether {count:,} more {were} {done} is not recorded: the next apply checks {them}, and continues with the rest."
    return unknown if count else ""


def summarize_reversibility(header: PlanHeader, config: Config, *, restored: bool = False, applied_at: datetime | None = None) -> str:
    """Summarise in one sentence how much space becomes free and when, and what can be undone."""
    quarantined = Amount() if restored else header.totals.get(QUARANTINE, Amount())
    purged, restored_files = header.totals.get(PURGE, Amount()), header.totals.get(RESTORE, Amount())
    days = next((item.quarantine_days for item in config.storages if item.name == header.storage), None)
    wait = "when a later plan purges it" + (f", at the earliest {_purge_time(days, applied_at)}" if days else "")
    immediate, delayed = purged.bytes + header.uploads.bytes, quarantined.bytes
    free = f"{format_bytes(immediate) if immediate else 'nothing'} {'becomes free immediately' if applied_at is None else 'is free now'}"
    free += f" and {format_bytes(delayed)} {wait}" if delayed else ""
    history, final_edits = _history_edits(header), count_final_edits(header, config)
    final = [f"the purge of {count_of(purged.files, 'file')}"] if purged.files else []
    final += [f"the abort of {count_of(header.uploads.count, 'unfinished upload')}"] if header.uploads.count else []
    final += [_edits(lake, count, None) for lake, count in final_edits.items()]
    reversible = [f"{count_of(quarantined.files, 'file')} before that purge"] if quarantined.files else []
    undoable = [lake for lake in history if lake not in final_edits]
    reversible += [f"{_edits(lake, history[lake], None)} before it" for lake in undoable]
    reversible += [text for _, text in _describe_branch_edits(header)]
    reversible += [f"{count_of(restored_files.files, 'file')} only restored"] if restored_files.files else []
    return f"{free}; final: {_join(final, ', ')}; can be undone: {_join(reversible, ', ')}"


def describe_effects(files: Mapping[str, Amount], edits: int, final_edits: int, uploads: Uploads | None = None) -> tuple[str, str]:
    """Describe effects briefly enough for table cells.

    Args:
        files: Planned files, keyed by action.
        edits: Number of history edits.
        final_edits: Number of history edits that cannot be undone.
        uploads: Unfinished uploads to abort, if any.

    Returns:
        A description of the effects that cannot be undone, and one of those that can.
    """
    final = [*_count_files(PURGE, files), *_count_edits(final_edits)]
    final += [f"abort {count_of(uploads.count, 'upload')} ({format_bytes(uploads.bytes)})"] if uploads is not None and uploads.count else []
    reversible = [*_count_files(QUARANTINE, files), *_count_files(RESTORE, files), *_count_edits(edits - final_edits)]
    return ", ".join(final), ", ".join(reversible)


def describe_plan_effects(plan: PlanHeader | PlanSummary, config: Config) -> tuple[str, str]:
    """Describe the effects of a whole plan, like `describe_effects`."""
    final_edits = sum(count_final_edits(plan, config).values())
    return describe_effects(plan.totals, sum(plan.expiry_actions.values()), final_edits, plan.uploads)


def count_final_edits(plan: PlanHeader | PlanSummary, config: Config) -> dict[str, int]:
    """Count the history edits of a plan that cannot be undone, for each lake."""
    return {lake: count for lake, count in _history_edits(plan).items() if has_final_edits(config, lake)}


def has_final_edits(config: Config, lake_name: str) -> bool:
    """Return True if edits of the lake's history cannot be undone. Edits of branches always can."""
    kind = _kind(config, lake_name)
    return kind is None or not kind.undoes_edits


def confirm_question(header: PlanHeader, config: Config, by: str) -> str:
    """Return the question that a user answers to approve a plan.

    It lists everything that cannot be undone.
    """
    question, (final, reversible) = f"Approve this plan as {by}?", describe_plan_effects(header, config)
    if not header.has_work:
        return question
    can_be_undone = f" Can be undone: {reversible}." if reversible else ""
    return f"Cannot be undone: {final or _NOTHING}.{can_be_undone}\n{question}"


def restore_reversibility(restored_files: Amount) -> Reversibility:
    """Describe what can be undone after files were restored by key or prefix."""
    return Reversibility(
        f"{_amount(restored_files)} restored; a later plan with its own approval can quarantine them again",
        "nothing; history edits by the plans that moved them remain",
        _NOTHING,
    )


def apply_command(header: PlanHeader, config: Config) -> str:
    """Return the command that applies the plan, with `--mode apply` if the storage requires it."""
    modes = [item.mode for item in config.storages if item.name == header.storage]
    return command("apply", header.plan_id[:12], mode="apply" if modes != ["apply"] else False)


def reversibility_json(header: PlanHeader, config: Config, *, restored: bool = False, applied_at: datetime | None = None) -> dict[str, str]:
    """Return the sentences of `describe_reversibility` as a JSON object."""
    found = describe_reversibility(header, config, restored=restored, applied_at=applied_at)
    return {"can_be_undone": found.can_be_undone, "cannot_be_undone": found.cannot_be_undone, "becomes_free": found.becomes_free}


def _reversible_effects(
    header: PlanHeader, quarantined: Amount, reversible_edits: list[str], days: int | None, *, restored: bool, applied: bool
) -> Iterator[str]:
    plan = header.plan_id[:12]
    if quarantined.files and restored:
        yield "nothing more of its files, because they were restored"
    elif quarantined.files:
        earliest = "" if days is None else f", at the earliest {count_of(days, 'day')} after quarantine"
        moved = f"{_amount(quarantined)} {'in' if applied else 'to'} quarantine: `{command('restore', plan=plan)}` moves them back"
        yield f"{moved}, before a later plan with its own approval purges them{earliest}"
    if reversible_edits:
        yield f"{_join(reversible_edits)}: `{command('restore', plan=plan, history=True)}` reverts them"
    if (restored_files := header.totals.get(RESTORE, Amount())).files:
        yield f"{_amount(restored_files)} only restored from quarantine"


def _final_effects(header: PlanHeader, purged: Amount, edits: Iterable[tuple[str, int, LakeKind | None]]) -> Iterator[str]:
    if purged.files:
        yield f"{_amount(purged)} purged permanently"
    if header.uploads.count:
        yield f"{header.uploads} aborted permanently, with the data that their writers sent"
    for lake, count, kind in edits:
        if kind is None:
            yield f"{_edits(lake, count, kind)}: the lake is no longer in lakes.yaml, so this counts as final"
        elif not kind.undoes_edits:
            lost = f": {kind.edits.loss}" if kind.edits is not None and kind.edits.loss else ""
            yield f"{_edits(lake, count, kind)}{lost}"
    if header.quarantine == "deferred" and header.totals.get(QUARANTINE, Amount()).files:
        yield "quarantine is deferred, so files stay in place, and the plan that purges them deletes them there permanently"


def _freed_bytes(quarantined: Amount, purged: Amount, uploads: Uploads, days: int | None, applied_at: datetime | None) -> Iterator[str]:
    immediate = [f"{format_bytes(purged.bytes)} {{when}}, by the purge"] if purged.files else []
    immediate += [f"{format_bytes(uploads.bytes)} {{when}}, by aborting unfinished uploads"] if uploads.count else []
    if applied_at is None:
        yield from (text.format(when="immediately") for text in immediate)
    if quarantined.files:
        when = "" if days is None else f", at the earliest {_purge_time(days, applied_at)}"
        yield f"{format_bytes(quarantined.bytes)} when a later plan purges them{when}"
    if applied_at is not None and immediate:
        yield from () if quarantined.files else ("nothing more",)
        yield from (text.format(when="is free now") for text in immediate)


def _purge_time(days: int, applied_at: datetime | None) -> str:
    if applied_at is None:
        return f"{count_of(days, 'day')} after this plan is applied"
    return f"on {applied_at + timedelta(days=days):%Y-%m-%d}"


def _kind(config: Config, lake_name: str) -> LakeKind | None:
    return next((kind_of(lake) for lake in config.lakes if lake.name == lake_name), None)


def _count_files(action: str, files: Mapping[str, Amount]) -> Iterator[str]:
    amount = files.get(action, Amount())
    if amount.files:
        yield f"{action} {_amount(amount)}"


def _count_edits(count: int) -> Iterator[str]:
    if count:
        yield count_of(count, "history edit")


def _history_edits(header: PlanHeader | PlanSummary) -> dict[str, int]:
    """Count the history edits of each lake, without edits of branches."""
    counts = {lake: count - header.branch_edits.get(lake, 0) for lake, count in header.expiry_actions.items()}
    return {lake: count for lake, count in counts.items() if count > 0}


def _describe_branch_edits(header: PlanHeader) -> Iterator[tuple[str, str]]:
    """Yield each lake with a description of its planned branch edits."""
    for lake, count in header.idle_branches.items():
        yield lake, f"the deletion of {count_of(count, 'idle branch')} of lake {lake}"
    for lake, count in header.path_edits.items():
        paths = count_of(header.deleted_paths[lake], "path") if lake in header.deleted_paths else "paths"
        yield lake, f"the deletion of {paths} on {count_of(count, 'branch')} of lake {lake}"


def _edits(lake: str, count: int, kind: LakeKind | None) -> str:
    title = f" ({kind.title})" if kind is not None else ""
    return f"{count_of(count, 'edit')} of the history of lake {lake}{title}"


def _amount(amount: Amount) -> str:
    return f"{count_of(amount.files, 'file')} ({format_bytes(amount.bytes)})"


def _join(parts: Iterable[str], separator: str = "; ") -> str:
    return separator.join(parts) or _NOTHING
