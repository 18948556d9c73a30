"""The card of a plan: what it would change, as Markdown that Dagster shows without a click.

Dagster's page shows Markdown below 1,000 characters in place, and longer text in a dialog.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from gc_assets.assets.markdown import escape_markdown
from gc_assets.assets.page_actions import apply_action, approve_action, to_page_message
from gc_assets.config.models import Config
from gc_assets.core.outcomes import describe_not_done
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import PlanHeader
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import count_of, format_bytes
from gc_assets.stages.read.plan_tables import TableAmounts
from gc_assets.stages.read.plan_text import describe_edits
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.records.plans import StoredPlan

MAX_CHARACTERS: Final = 999
SHORT_ID: Final = 12
_MAX_NAME: Final = 40
_NAMED_TABLES: Final = 3
_NAMED_GATES: Final = 5
_EXPLAINED_GATES: Final = 2
_MAX_REASON: Final = 120
_WIDTH: Final = 50
_CODE: Final = re.compile(r"`[^`]*`")
_BLANK: Final = "\0"
_EDIT: Final = re.compile(r"(?P<verb>\D+) (?P<number>\d.*)")
# Longer sentences are replaced by the numbers. The report contains them.
_MAX_SENTENCE: Final = 260


def plan_card(plan: StoredPlan, config: Config, now: datetime, tables: Sequence[TableAmounts]) -> str:
    """Return the card of a plan.

    Args:
        plan: The plan.
        config: The configuration.
        now: The time for which the status is shown.
        tables: The planned amounts by table.
    """
    status = plan.status_at(now) if plan.header.has_work or plan.header.failed_gates else "nothing to do"
    text = "\n".join(_lines(plan, config, status, tables))
    return text if page_length(text) <= MAX_CHARACTERS else "\n".join(_lines(plan, config, status, tables, short=True))


def page_length(text: str) -> int:
    """Return the length that JavaScript counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _lines(plan: StoredPlan, config: Config, status: str, tables: Sequence[TableAmounts], *, short: bool = False) -> Iterator[str]:
    header, shown = plan.header, plan.effective_header
    title = f"Plan `{header.plan_id[:SHORT_ID]}` of {header.run_date}: **{status}**"
    yield mark_rehearsal(title, header.rehearsal)
    yield ""
    yield from _amounts(shown)
    yield from ("", *(_wrap(line) for line in _items(plan, config, status, tables, short=short)))


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


def _items(plan: StoredPlan, config: Config, status: str, tables: Sequence[TableAmounts], *, short: bool) -> Iterator[str]:
    header, shown = plan.header, plan.effective_header
    if plan.not_done:
        yield f"**Not done**: {describe_not_done(plan.not_done)}"
    if tables:
        yield f"**Tables**: {_name_tables(tables, short=short)}"
    if header.listing_note is not None and not short:
        yield escape_markdown(header.listing_note)
    if shown.has_work:
        yield f"**Cannot be undone**: {_irreversible(shown, config, short=short)}"
    yield from _refusals(header, config, short=short)
    if status in {"ready", "refused"}:
        yield f"**Approve before** {_minute(header.approve_before)}: {approve_action(config, header, short=short)}"
    elif status == "approved":
        yield f"**Apply before** {_minute(header.apply_before)}: {apply_action(config, header, short=short)}"
        yield f"**Approved by** {_cut(plan.verdict.approved_by or '')}"
    elif status == "rejected":
        yield f"**Rejected by** {_cut(', '.join(event.by for event in plan.verdict.rejections))}"
    elif status == "historical":
        yield "This date was not frozen on its own date, so the plan cannot be applied"


def _refusals(header: PlanHeader, config: Config, *, short: bool) -> Iterator[str]:
    failed = header.failed_gates
    if len(failed) > _EXPLAINED_GATES or (failed and short):
        names = ", ".join(_cut(gate.name) for gate in failed[:_NAMED_GATES])
        yield f"**Refused by** {count_of(len(failed), 'gate')}: {names}" + (", …" if len(failed) > _NAMED_GATES else "")
    else:
        yield from (f"**Refused by** {_cut(gate.name)}: {_reason(gate.message, config)}" for gate in failed)


def _reason(message: str, config: Config) -> str:
    return escape_markdown(_shorten(to_page_message(message, config), _MAX_REASON))


def _name_tables(tables: Sequence[TableAmounts], *, short: bool) -> str:
    count = f"{len(tables):,}"
    if short:
        return count
    named = ", ".join(_cut(table.table or table.name) for table in tables[:_NAMED_TABLES])
    more = f" and {len(tables) - _NAMED_TABLES:,} more" if len(tables) > _NAMED_TABLES else ""
    return f"{named}{more}"


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
    return f"{', '.join(parts) or 'see the report'}. The report names them"


def _wrap(line: str) -> str:
    """Return a list item with hard breaks.

    The page does not wrap the card, because the cell is as wide as the widest table of the
    partition.
    """
    unbroken = _CODE.sub(lambda code: code[0].replace(" ", _BLANK), line)
    parts = textwrap.wrap(unbroken, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "- " + "\\\n  ".join(part.replace(_BLANK, " ") for part in parts)


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _cut(name: str) -> str:
    return escape_markdown(_shorten(name, _MAX_NAME))


def _shorten(text: str, limit: int) -> str:
    line = text.splitlines()[0] if text else ""
    return line if line == text and len(line) <= limit else f"{line[: limit - 1]}…"
