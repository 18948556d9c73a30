"""The plan card, a summary in Markdown of what a plan would do and how to approve or apply it.

It must stay under 1,000 characters. Dagster shows longer Markdown only in a dialog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from gc_assets.assets.markdown import escape_markdown, wrap_markdown
from gc_assets.assets.page_actions import (
    CHOOSE_PLAN,
    apply_action,
    apply_config,
    approve_action,
    approve_config,
    next_actions,
    to_page_message,
)
from gc_assets.config.models import Config
from gc_assets.core.gates import without_override
from gc_assets.core.moments import format_minute
from gc_assets.core.outcomes import describe_not_done
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import GateResult, PlanHeader, Unreadable
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import count_of, format_bytes
from gc_assets.stages.read.plan_tables import TableAmounts
from gc_assets.stages.read.plan_text import describe_edits, nothing_to_apply
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.records.plans import PARTIALLY_APPLIED, UNFINISHED, StoredPlan

MAX_CHARACTERS: Final = 999
_FULL, _MEDIUM, _SHORT = 2, 1, 0
SHORT_ID: Final = 12
_MAX_NAME: Final = 40
_NAMED_TABLES: Final = 3
_NAMED_GATES: Final = 5
# How many characters the failed gates may take at each level of detail. Their complete messages are
# in the table `gates`.
_REASONS: Final = {_FULL: 420, _MEDIUM: 200, _SHORT: 0}
_MIN_REASON, _MAX_FINDING = 60, 200
# Splits the message of a gate into sentences.
_SENTENCES: Final = re.compile(r"(?<=[.]) +(?=[A-Z])")
_EDIT: Final = re.compile(r"(?P<verb>\D+) (?P<number>\d.*)")
# Instead of longer sentences, only numbers are shown. The sentences are in the report.
_MAX_SENTENCE: Final = 260


def plan_card(plan: StoredPlan, config: Config, now: datetime, tables: Sequence[TableAmounts]) -> str:
    """Write the plan card with as many details as fit.

    Args:
        plan: The plan.
        config: The configuration.
        now: The current time, which determines the plan's status.
        tables: The effects of the plan on each table.
    """
    cards = ["\n".join(_lines(plan, config, now, tables, detail)) for detail in (_FULL, _MEDIUM, _SHORT)]
    return next((card for card in cards if page_length(card) <= MAX_CHARACTERS), cards[-1])


def page_length(text: str) -> int:
    """Return the length of a string in UTF-16 code units, which Dagster's page counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _lines(plan: StoredPlan, config: Config, now: datetime, tables: Sequence[TableAmounts], detail: int) -> Iterator[str]:
    header, shown = plan.header, plan.effective_header
    status = plan.status_at(now) if header.has_work or header.failed_gates else "nothing to do"
    title = f"Plan `{header.plan_id[:SHORT_ID]}` of {header.run_date}: **{status}**"
    # The time is shown because the tab Overview keeps the card of the run, which may be outdated.
    yield from (mark_rehearsal(title, header.rehearsal) + "\\", f"as of {format_minute(now)}", "")
    yield from _amounts(shown)
    yield ""
    yield from map(_wrap, [*_items(plan, config, tables, detail), *_gates(plan, config, detail)])
    yield from _decision(plan, config, status, now, detail)


def _amounts(header: PlanHeader) -> Iterator[str]:
    rows = [
        f"| {action} | {count_of(amount.files, 'file')} | {format_bytes(amount.bytes)} |"
        for action in (QUARANTINE, PURGE, RESTORE)
        if (amount := header.totals.get(action)) is not None and amount.files
    ]
    edits = [_EDIT.fullmatch(text) for text in describe_edits([header])] if header.expiry_actions else []
    rows += [f"| {edit['verb']} | {edit['number']} | |" for edit in edits if edit is not None]
    if header.uploads.count:
        rows.append(f"| abort | {count_of(header.uploads.count, 'upload')} | {format_bytes(header.uploads.bytes)} |")
    if rows:
        yield from ("| action | number | size |", "|---|--:|--:|", *rows)


def _items(plan: StoredPlan, config: Config, tables: Sequence[TableAmounts], detail: int) -> Iterator[str]:
    header, shown = plan.header, plan.effective_header
    if plan.not_done:
        yield f"**Not done**: {describe_not_done(plan.not_done)}"
    if tables:
        yield f"**Tables**: {_name_tables(tables, short=detail == _SHORT)}"
    if header.unreadable:
        yield f"**Unreadable**, so its claimed files are not planned: {_name_unreadable(header.unreadable, short=detail == _SHORT)}"
    if header.listing_note is not None and detail != _SHORT:
        yield escape_markdown(header.listing_note)
    yield from map(escape_markdown, header.warnings)
    if shown.has_work:
        yield f"**Cannot be undone**: {_irreversible(shown, config, short=detail == _SHORT)}"


def _gates(plan: StoredPlan, config: Config, detail: int) -> Iterator[str]:
    """Yield lines about gates that an approval overrides, then about those that refuse the plan."""
    overridden = plan.overridden_gates
    if overridden:
        yield f"**Overridden** by {_cut(plan.verdict.approved_by or '')}: {_name_gates(overridden)}"
    refused = [gate for gate in plan.header.failed_gates if gate not in overridden]
    each = _REASONS[detail] // len(refused) if refused else 0
    if each < _MIN_REASON and refused:
        yield f"**Refused by** {count_of(len(refused), 'gate')}: {_name_gates(refused)}. The table `gates` contains the reasons"
    else:
        yield from (f"**Refused by** {_cut(gate.name)}: {_reason(gate, config, each)}" for gate in refused)


def _decision(plan: StoredPlan, config: Config, status: str, now: datetime, detail: int) -> Iterator[str]:
    """Yield lines about who has approved or rejected the plan, and what the user can do now."""
    header, verdict = plan.header, plan.verdict
    if status in {"ready", "refused"}:
        if verdict.approvals:
            yield _wrap(f"**Approved by** {_cut(verdict.approved_by or '')}: {len(verdict.approvals):,} of {verdict.needed:,} approvals")
        yield from _approval(header, config, now, detail)
    elif status == "approved":
        approved = f"**Approved by** {_cut(verdict.approved_by or '')}"
        if not header.has_work:
            yield _wrap(f"{approved}. {nothing_to_apply(header)}")
            return
        yield _wrap(approved)
        yield _wrap(f"**Apply before** {format_minute(header.apply_before)}: {apply_action(config, header, short=detail == _SHORT)}")
        if detail == _FULL:
            yield from _yaml(apply_config(config, header))
    elif status in {"applied", PARTIALLY_APPLIED, UNFINISHED} and detail != _SHORT:
        yield from map(_wrap, next_actions(config, plan))
    elif status == "rejected":
        yield _wrap(f"**Rejected by** {_cut(', '.join(event.by for event in verdict.rejections))}")
    elif status == "historical":
        yield _wrap("The refs were read after this run date, so the plan cannot be applied")


def _approval(header: PlanHeader, config: Config, now: datetime, detail: int) -> Iterator[str]:
    """Yield instructions for approving the plan, or the reason why that is impossible."""
    if not all(gate.overridable for gate in header.failed_gates):
        yield _wrap("**Cannot be approved**. Fix the causes, then launch the `run` job")
    elif now >= header.approve_before:
        yield _wrap(f"**Cannot be approved** since {format_minute(header.approve_before)}. Launch the `run` job for a new plan")
    else:
        before = f"**Approve before** {format_minute(header.approve_before)}"
        if detail == _FULL and header.failed_gates and "approve" in config.page_may:
            yield _wrap(f"{before}, in spite of the refusal: {CHOOSE_PLAN}, and change the configuration to this, with your name as `by`")
            yield from _yaml(approve_config(header))
        else:
            yield _wrap(f"{before}: {approve_action(config, header, short=detail == _SHORT)}")


def _yaml(lines: Iterator[str]) -> Iterator[str]:
    yield from ("", "```yaml", *lines, "```")


def _reason(gate: GateResult, config: Config, limit: int) -> str:
    """Shorten the message of a gate to about `limit` characters.

    The message begins with what was found and ends with what to do. Since the end is most useful,
    sentences are dropped from the middle, and the first sentence is cut if necessary.
    """
    finding, *others = _SENTENCES.split(to_page_message(without_override(gate), config))
    kept: list[str] = []
    for sentence in reversed(others):
        if len(sentence) + sum(map(len, kept)) > limit - _MIN_REASON:
            break
        kept.insert(0, sentence)
    cut = ["…"] if len(kept) < len(others) else []
    shown = _shorten(finding, min(_MAX_FINDING, max(_MIN_REASON, limit - sum(map(len, kept)))))
    return escape_markdown(" ".join([shown, *cut, *kept]))


def _name_gates(gates: Sequence[GateResult]) -> str:
    more = ", …" if len(gates) > _NAMED_GATES else ""
    return ", ".join(_cut(gate.name) for gate in gates[:_NAMED_GATES]) + more


def _name_tables(tables: Sequence[TableAmounts], *, short: bool) -> str:
    count = f"{len(tables):,}"
    if short:
        return count
    named = ", ".join(_cut(table.table or table.name) for table in tables[:_NAMED_TABLES])
    more = f" and {len(tables) - _NAMED_TABLES:,} more" if len(tables) > _NAMED_TABLES else ""
    return f"{named}{more}"


def _name_unreadable(items: Sequence[Unreadable], *, short: bool) -> str:
    if short:
        return f"{len(items):,}"
    more = f" and {len(items) - 1:,} more" if len(items) > 1 else ""
    return escape_markdown(f"{_shorten(items[0].name, 2 * _MAX_NAME)}{more}: {_shorten(items[0].why, _MAX_FINDING)}")


def _irreversible(header: PlanHeader, config: Config, *, short: bool) -> str:
    sentence = describe_reversibility(header, config).cannot_be_undone
    if not short and len(sentence) <= _MAX_SENTENCE:
        return escape_markdown(sentence)
    purged = header.totals.get(PURGE)
    parts = [f"the purge of {count_of(purged.files, 'file')}"] if purged is not None and purged.files else []
    parts += (
        [f"{count_of(sum(header.expiry_actions.values()), 'history edit')} of {count_of(len(header.expiry_actions), 'lake')}"]
        if header.expiry_actions
        else []
    )
    parts += [f"the abort of {count_of(header.uploads.count, 'upload')}"] if header.uploads.count else []
    return f"{', '.join(parts) or 'see the report'}. The report lists them"


def _wrap(line: str) -> str:
    """Format a line as a wrapped list item."""
    return f"- {wrap_markdown(line, '  ')}"


def _cut(name: str) -> str:
    return escape_markdown(_shorten(name, _MAX_NAME))


def _shorten(text: str, limit: int) -> str:
    line = text.splitlines()[0] if text else ""
    return line if line == text and len(line) <= limit else f"{line[: limit - 1]}…"
