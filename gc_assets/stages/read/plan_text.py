"""Format the one-line summary of plans that commands and reports share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import Amount, PlanHeader, PlanSummary
from gc_assets.core.units import count_of, format_bytes
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, DELETE_PATHS, DELETE_REF, EDIT_PARENT, REMOVE_SCHEMA, REMOVE_SNAPSHOT, REMOVE_SPEC

# Verb and noun that describe each expiry action.
_EDITS: Final = {
    REMOVE_SNAPSHOT: ("expire", "snapshot"),
    EDIT_PARENT: ("edit", "snapshot"),
    DELETE_REF: ("delete", "ref"),
    DELETE_IDLE_BRANCH: ("delete", "idle branch"),
    DELETE_PATHS: ("delete paths on", "branch"),
    REMOVE_SCHEMA: ("remove", "unused schema"),
    REMOVE_SPEC: ("remove", "unused partition spec"),
}


def summarize_plans(plans: Iterable[PlanHeader | PlanSummary]) -> str:
    """Summarise the actions of one or more plans in a line.

    For example: `Plan: quarantine 50 files (46.8 kB), expire 13 snapshots, purge 0, restore 0`
    """
    listed = list(plans)
    parts = [_files(QUARANTINE, listed), *describe_edits(listed), *(_files(action, listed) for action in (PURGE, RESTORE))]
    if uploads := sum(plan.uploads.count for plan in listed):
        parts.append(f"abort {count_of(uploads, 'unfinished upload')}")
    return f"Plan: {', '.join(parts)}"


def nothing_to_apply(plan: PlanHeader) -> str:
    """Describe the effect of approving a refused plan that does not contain any actions."""
    effect = "The next run counts from this one" if "live_drop" in plan.summary.refused_by else "Later runs use its overrides"
    return f"{effect}; there is nothing to apply"


def describe_edits(plans: Iterable[PlanHeader | PlanSummary]) -> Iterator[str]:
    """Yield the number of history edits for each action, as a phrase such as `expire 13 snapshots`."""
    by_action, paths, unknown = Counter[str](), 0, 0
    for plan in plans:
        by_action.update(plan.edits_by_action)
        paths += sum(plan.deleted_paths.values())
        unknown += sum(plan.expiry_actions.values()) - sum(plan.edits_by_action.values())
    if not by_action and not unknown:
        yield "expire 0"
    for action, (verb, noun) in _EDITS.items():
        if action == DELETE_PATHS and paths:
            yield f"delete {count_of(paths, 'path')} on {count_of(by_action[action], 'branch')}"
        elif count := by_action[action]:
            yield f"{verb} {count_of(count, noun)}"
    if unknown:  # plans of releases before 0.4 contain no actions
        yield f"make {count_of(unknown, 'history edit')}"


def _files(action: str, plans: Iterable[PlanHeader | PlanSummary]) -> str:
    amount = Amount.total(plan.totals.get(action, Amount()) for plan in plans)
    return f"{action} {count_of(amount.files, 'file')} ({format_bytes(amount.bytes)})" if amount.files else f"{action} 0"
