"""What of a plan can be undone and for how long, what cannot, and what becomes free and when.

The only place that says it. Whoever shows a plan to a person shows these lines. Reads no state and
no lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gc_assets.config.models import Config
from gc_assets.core.phases import PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import Amount, PlanHeader, Uploads
from gc_assets.core.units import format_bytes
from gc_assets.lakes.kind import LakeKind
from gc_assets.lakes.kinds import kind_of

_NOTHING: Final = "nothing"


@dataclass(frozen=True, slots=True)
class Reversibility:
    """Three sentences about one plan, for a person and for machines."""

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


def describe_reversibility(header: PlanHeader, config: Config, *, restored: bool = False) -> Reversibility:
    """Returns what a person has to know before and after saying yes. `restored` says that the
    plan's quarantined files were put back.
    """
    aside, purged = header.totals.get(QUARANTINE, Amount()), header.totals.get(PURGE, Amount())
    edits = [(lake, count, _kind(config, lake)) for lake, count in header.expiry_actions.items()]
    undoable = [_edits(lake, count, kind) for lake, count, kind in edits if kind is not None and kind.undoes_edits]
    days = next((item.quarantine_days for item in config.storages if item.name == header.storage), None)
    return Reversibility(
        _joined(_can(header, aside, undoable, days, restored=restored)),
        _joined(_cannot(header, purged, edits)),
        _joined(_free(Amount() if restored else aside, purged, header.uploads, days)),
    )


def summarize_reversibility(header: PlanHeader, config: Config, *, restored: bool = False) -> str:
    """Returns what becomes free now and later, what is final, and what can be undone until when."""
    aside = Amount() if restored else header.totals.get(QUARANTINE, Amount())
    purged, back = header.totals.get(PURGE, Amount()), header.totals.get(RESTORE, Amount())
    days = next((item.quarantine_days for item in config.storages if item.name == header.storage), None)
    wait = "when a later plan purges it" + (f", {days} days after this one is applied at the earliest" if days else "")
    at_once, later = purged.bytes + header.uploads.bytes, aside.bytes
    free = f"{format_bytes(at_once) if at_once else 'nothing'} becomes free at once"
    free += f" and {format_bytes(later)} {wait}" if later else ""
    kinds = {lake: _kind(config, lake) for lake in header.expiry_actions}
    final = [f"the purge of {purged.files:,} files"] if purged.files else []
    final += [f"the end of {header.uploads.count:,} unfinished uploads"] if header.uploads.count else []
    lasting = [lake for lake, kind in kinds.items() if kind is None or not kind.undoes_edits]
    final += [f"{header.expiry_actions[lake]:,} edits of the history of lake {lake}" for lake in lasting]
    undone = [f"{aside.files:,} files, until that purge"] if aside.files else []
    undone += [f"{header.expiry_actions[lake]:,} edits of the history of lake {lake}, until then" for lake in kinds if lake not in lasting]
    undone += [f"{back.files:,} files that only come back"] if back.files else []
    return f"{free}; final is {_joined_by_comma(final)}; can be undone: {_joined_by_comma(undone)}"


def restore_reversibility(back: Amount) -> Reversibility:
    """Returns the same about files that were put back by their names, whatever plans moved them."""
    return Reversibility(
        f"{_amount(back)} are back where they were; a later plan, approved by itself, may quarantine them again",
        "nothing of this; edits of history by the plans that moved them stay",
        _NOTHING,
    )


def apply_command(header: PlanHeader, config: Config) -> str:
    """Returns the command that applies the plan, in a storage of whatever mode."""
    modes = [item.mode for item in config.storages if item.name == header.storage]
    return f"gc-assets apply {header.plan_id[:12]}" + ("" if modes == ["apply"] else " --mode apply")


def reversibility_json(header: PlanHeader, config: Config) -> dict[str, str]:
    """Returns the same for JSON."""
    found = describe_reversibility(header, config)
    return {"can_be_undone": found.can_be_undone, "cannot_be_undone": found.cannot_be_undone, "becomes_free": found.becomes_free}


def _can(header: PlanHeader, aside: Amount, undoable: list[str], days: int | None, *, restored: bool) -> Iterator[str]:
    command = f"`gc-assets restore --plan {header.plan_id[:12]}"
    if aside.files and restored:
        yield "its files are back where they were"
    elif aside.files:
        until = "until a later plan, approved by itself, purges them"
        soonest = {None: "", 0: ", which may be at once"}.get(days, f", {days} days after quarantine at the earliest")
        yield f"{_amount(aside)} go to quarantine and come back by {command}` {until}{soonest}"
    if undoable:
        yield f"{_joined(undoable)} by {command} --history`"
    if (back := header.totals.get(RESTORE, Amount())).files:
        yield f"{_amount(back)} only come back from quarantine"


def _cannot(header: PlanHeader, purged: Amount, edits: Iterable[tuple[str, int, LakeKind | None]]) -> Iterator[str]:
    if purged.files:
        yield f"{_amount(purged)} are purged for good"
    if header.uploads.count:
        yield f"{header.uploads} are aborted for good, and what their writers had sent is gone"
    for lake, count, kind in edits:
        if kind is None:
            yield f"{_edits(lake, count, kind)}: the lake is not in lakes.yaml any more, so take them for final"
        elif not kind.undoes_edits:
            lost = f": {kind.edits.loss}" if kind.edits is not None and kind.edits.loss else ""
            yield f"{_edits(lake, count, kind)} are final{lost}"
    if header.quarantine == "deferred" and header.totals.get(QUARANTINE, Amount()).files:
        yield "quarantine is deferred, so files stay where they are and the plan that purges them deletes them there, for good"


def _free(aside: Amount, purged: Amount, uploads: Uploads, days: int | None) -> Iterator[str]:
    if purged.files:
        yield f"{format_bytes(purged.bytes)} at once, by the purge"
    if uploads.count:
        yield f"{format_bytes(uploads.bytes)} at once, by aborting unfinished uploads"
    if aside.files:
        when = "" if days is None else f", {days} days after this one is applied at the earliest"
        yield f"{format_bytes(aside.bytes)} by a later plan's purge{when}, and none of it before"


def _kind(config: Config, lake_name: str) -> LakeKind | None:
    return next((kind_of(lake) for lake in config.lakes if lake.name == lake_name), None)


def _edits(lake: str, count: int, kind: LakeKind | None) -> str:
    title = f" ({kind.title})" if kind is not None else ""
    return f"{count:,} edits of the history of lake {lake}{title}"


def _amount(amount: Amount) -> str:
    return f"{amount.files:,} files ({format_bytes(amount.bytes)})"


def _joined_by_comma(parts: Iterable[str]) -> str:
    return ", ".join(parts) or _NOTHING


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(parts) or _NOTHING
