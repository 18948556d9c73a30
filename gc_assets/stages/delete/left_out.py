"""Find files and history edits that a plan leaves out.

A plan leaves out actions that cannot succeed at present, and edits of history that another lake
keeps. It lists each group with the reason. The files stay in place, and later plans try again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import Claims
from gc_assets.core.commands import command
from gc_assets.core.plan import Amount, LeftOut, Unreadable
from gc_assets.core.printable import MAX_LISTED, show_list
from gc_assets.core.units import count_of
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import Totals, WrittenParts
from gc_assets.lakes.protocol import as_preflight
from gc_assets.stages.delete.checked_tables import find_checked_tables
from gc_assets.stages.delete.foreign_findings import ForeignFindings, read_prefixes
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.mark.shared_tables import EDIT_COLUMNS, EditKey, SharedTables, edit_keys, list_expiry_tables, read_expiry
from gc_assets.stages.records.denials import denied_histories, find_denial, retry_advice
from gc_assets.stages.records.plans import LIVE_LISTED
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_PLAN, ORPHAN_FILES
from gc_assets.state.side_tables import (
    CLAIMS,
    CLAIMS_SIDE,
    DEFERRED_SIDE,
    DENIED_SIDE,
    LEFT_OUT_SIDES,
    MISSING_FILES_SIDE,
    NAMED_TWICE_SIDE,
    NEAR_MISSES_SIDE,
    TOO_LONG_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, OrphanFilesSummary

# A lake and the UUID of one of its tables, or None if the lake is a single repository.
History = tuple[str, str | None]
# Edits of history that another lake keeps, identified by their keys, for each lake.
KeptEdits = Mapping[str, frozenset[EditKey]]
_MAX_EXAMPLES: Final = 5
_KEPT: Final = pa.schema([ORPHAN_FILES.schema.field(name) for name in ("key", "size_bytes")])


@dataclass(frozen=True, slots=True)
class ExpirySource:
    """The files in the state that contain a lake's planned edits and its claims.

    Attributes:
        edits: Paths of Parquet files with the columns of `expiry_plan`.
        rows: Number of edits in them.
        claims: Paths of Parquet files with the `CLAIMS` columns.
    """

    lake: str
    edits: tuple[str, ...]
    rows: int
    claims: tuple[str, ...]

    @classmethod
    def of(cls, context: RunContext, lake: str, claims: Sequence[str]) -> ExpirySource:
        tables = list_expiry_tables(context, lake)
        edits = [path for table, side in tables for path in table.paths(side)]
        return cls(lake, tuple(edits), sum(part.rows for table, side in tables for part in table.parts(side)), tuple(claims))


def expiry_sources(inputs: PlanInputs) -> list[ExpirySource]:
    """Locate the planned edits and the claims of each lake.

    Some kinds of lakes only have branches or paths deleted, and no history edited. Their claims may
    be known only from table metadata, so the claims found by the mark are included.
    """
    owners = {table.receipt.owner: table.paths(CLAIMS_SIDE) for table in inputs.refs}
    for table in inputs.live:
        if not inputs.context.kind(table.receipt.owner).edits_history:
            owners[table.receipt.owner] += table.paths(CLAIMS_SIDE)
    return [ExpirySource.of(inputs.context, owner, claims) for owner, claims in owners.items()]


def select_editable(rows: pa.Table, lake: str, claims: pa.Table, storage: str, unreadable: Sequence[Unreadable]) -> pa.Table:
    """Select edits of readable tables that have a claim in the storage.

    If an edit has no table, any claim of the lake in the storage is sufficient.

    Args:
        rows: Edits of one lake (rows of `expiry_plan`).
        claims: The claims of the lake in all storages (`CLAIMS` columns).
    """
    claimed = claims.filter(pc.equal(claims.column("storage"), storage))
    is_claimed = pc.is_in(rows.column("table_uuid"), claimed.column("table_uuid").drop_null().unique())
    is_of_lake = pc.and_(pc.is_null(rows.column("table_uuid")), bool(claimed.num_rows))
    mine = rows.filter(pc.or_(is_claimed, is_of_lake))
    uuids = mine.column("table_uuid").to_pylist()
    return mine.filter(pa.array([not any(item.covers(lake, uuid) for item in unreadable) for uuid in uuids], pa.bool_()))


def find_kept_by_others(inputs: PlanInputs) -> tuple[KeptEdits, list[LeftOut]]:
    """Find edits of history that another lake keeps.

    Returns:
        The edits of each lake, and descriptions of them for the plan.
    """
    context, kept, found = inputs.context, dict[str, frozenset[EditKey]](), list[LeftOut]()
    shared = SharedTables.of(context, [lake.name for lake in context.config.lakes])
    for source in () if shared.is_empty else expiry_sources(inputs):
        if not source.rows:
            continue
        lake, rows = source.lake, read_expiry(context, source.lake, EDIT_COLUMNS)
        rows = select_editable(rows, lake, read_parts(context.state.files, list(source.claims), CLAIMS), inputs.storage, inputs.unreadable)
        by_others = shared.find_kept_edits(lake, rows)
        kept[lake] = frozenset(by_others)
        names = dict(zip(rows.column("table_uuid").to_pylist(), rows.column("table_name").to_pylist(), strict=True))
        groups = Counter((key[0], by.reason) for key, by in by_others.items())
        found += [
            LeftOut(name=_describe_history(lake, uuid, names), edits=edits, reason=reason) for (uuid, reason), edits in groups.items()
        ]
    return kept, found


def without_kept(rows: pa.Table, lake: str, kept: KeptEdits) -> pa.Table:
    """Remove edits of history that another lake keeps from rows of `expiry_plan`."""
    mine = kept.get(lake)
    return rows.filter(pa.array([key not in mine for key in edit_keys(rows)], pa.bool_())) if mine else rows


def find_impossible_edits(inputs: PlanInputs, kept: KeptEdits) -> dict[History, LeftOut]:
    """Find histories that cannot be edited, with the reasons.

    Either the catalog denied the last edit, or a preflight check reports that the lake cannot edit
    the table. Tables that passed the check for the last plan are skipped, unless they have changed.
    Edits in `kept` are not counted.
    """
    files = inputs.context.state.files
    if any(table.summary(LakeRefsSummary).historical for table in inputs.refs):
        return {}  # the plan cannot be applied
    found: dict[History, LeftOut] = {}
    for source in expiry_sources(inputs):
        if not source.rows:
            continue
        lake, rows = source.lake, read_parts(files, list(source.edits), EXPIRY_PLAN.schema, EDIT_COLUMNS)
        rows = select_editable(rows, lake, read_parts(files, list(source.claims), CLAIMS), inputs.storage, inputs.unreadable)
        rows = without_kept(rows, lake, kept)
        edits = Counter(rows.column("table_uuid").to_pylist())
        names = dict(zip(rows.column("table_uuid").to_pylist(), rows.column("table_name").to_pylist(), strict=True))
        for uuid, reason in _find_reasons(inputs, lake, names).items():
            found[lake, uuid] = LeftOut(name=_describe_history(lake, uuid, names), edits=edits[uuid], reason=reason)
    return found


def _describe_history(lake: str, uuid: str | None, names: Mapping[str | None, str | None]) -> str:
    return f"lake {lake}" if uuid is None else f"table {names[uuid] or uuid} of lake {lake}"


def _find_reasons(inputs: PlanInputs, lake: str, names: Mapping[str | None, str | None]) -> dict[str | None, str]:
    context = inputs.context
    reasons = {uuid: reason for uuid, reason in denied_histories(context, lake).items() if uuid in names}
    preflight = as_preflight(context.lake(lake))
    if preflight is None:
        return reasons
    done = reasons.keys() | find_checked_tables(context, inputs.storage, lake)
    remaining = {uuid: name for uuid, name in names.items() if uuid not in done and uuid is not None and name is not None}
    if remaining:
        log_activity(f"checking whether lake {lake} can edit {count_of(len(remaining), 'table')}")
        reasons.update(preflight.find_uneditable(remaining))
    return reasons


def sum_left_out(inputs: PlanInputs, written: WrittenParts, run: TableRun, foreign: ForeignFindings) -> tuple[list[LeftOut], Totals]:
    """Sum up the files that the plan leaves out.

    Returns:
        A description of each group, and the total of the expired files in all groups.
    """
    context, storage = inputs.context, inputs.storage
    describe = {
        DENIED_SIDE: lambda: _describe_denied(context, storage),
        TOO_LONG_SIDE: lambda: _describe_too_long(context, storage),
        MISSING_FILES_SIDE: lambda: ". ".join(_describe_missing(inputs.lacking_files, inputs.doubtful, foreign)),
    }
    found, expired = list[LeftOut](), Totals()
    for side in LEFT_OUT_SIDES:
        if side not in written.side:
            continue
        rows = read_parts(context.state.files, written.paths(run, side), DELETION_PLAN.schema, ["reason", "size_bytes"])
        found.append(
            LeftOut(
                name="files",
                files=rows.num_rows,
                bytes=pc.sum(rows.column("size_bytes")).as_py() or 0,
                reason=describe[side](),
            )
        )
        old = rows.filter(pc.equal(rows.column("reason"), "expired"))
        expired += Totals(old.num_rows, pc.sum(old.column("size_bytes")).as_py() or 0)
    return found, expired


def describe_unlisted(inputs: PlanInputs, waiting: Amount) -> list[LeftOut]:
    """Describe quarantined files whose purge waits for a new listing.

    A purge is final, and metadata written since the last listing may refer to these files.
    """
    if not inputs.listing.is_earlier or inputs.blocks_purges or not waiting.files:
        return []
    reason = (
        "a purge needs a listing by the same run, which finds metadata and files of others. "
        f"The next run that lists the storage plans them: {command('run', listing=True)}"
    )
    return [LeftOut(name="quarantined files due for purge", files=waiting.files, bytes=waiting.bytes, reason=reason)]


def describe_kept(inputs: PlanInputs) -> Iterator[LeftOut]:
    """Describe the candidates that the sweep kept, because of other objects or of their own names."""
    found = inputs.orphans.summary(OrphanFilesSummary)
    prefixes = read_prefixes(inputs.context, inputs.orphans, inputs.storage, around_junk=True)
    if prefixes:
        why = (
            f"they may belong to another table, because {count_of(found.junk_count, 'object', 'are')} next to them and named like metadata "
            "without being metadata"
        )
        yield from _sum_kept(inputs, DEFERRED_SIDE, why, "Repair these objects, or remove them", prefixes, found.junk)
    why = "the listing contains several rows with the same key, so it is unknown which one is right"
    yield from _sum_kept(inputs, NAMED_TWICE_SIDE, why, "Correct the inventory report, or list the storage without it", name="listed rows")
    if not found.misspelled:  # otherwise the gate `spelling` refuses the plan
        why = "they differ only in spelling from a live file, or from a file that expired history still needs"
        yield from _sum_kept(inputs, NEAR_MISSES_SIDE, why, "Delete them manually if they are not needed")


def _sum_kept(
    inputs: PlanInputs,
    side: str,
    why: str,
    advice: str,
    prefixes: Iterable[str] = ("",),
    samples: Sequence[str] = (),
    *,
    name: str = "files",
) -> Iterator[LeftOut]:
    """Sum up the candidates under the given prefixes in a side table of the sweep.

    Args:
        samples: The objects to name. By default, some of the candidates.
    """
    orphans, shields, total, keys = inputs.orphans, Claims.of_shields(prefixes), Totals(), list[str]()
    for rows in ParquetScan.of(inputs.context.state.files, _KEPT, orphans.path, orphans.parts(side)).read_batches():
        kept = rows.filter(pc.is_null(shields.resolve(rows.column("key"))[0]))
        total += Totals(kept.num_rows, pc.sum(kept.column("size_bytes")).as_py() or 0)
        keys += kept.column("key")[: MAX_LISTED - len(keys)].to_pylist()
    if total.rows:
        reason = f"{why}: {show_list(samples or list(dict.fromkeys(keys)), '; ')}. {advice}"
        yield LeftOut(name=name, files=total.rows, bytes=total.size_bytes, reason=reason)


def _describe_denied(context: RunContext, storage: str) -> str:
    error = find_denial(context, storage)
    example = f" (for example {error})" if error else ""
    return f"the store denied these actions to an earlier apply{example}; {retry_advice(context.config, storage)}"


def _describe_too_long(context: RunContext, storage: str) -> str:
    mode = context.storage(storage).quarantine
    limits = context.store(storage).key_limits(mode)
    found = limits.describe() if limits is not None else "too many bytes"
    return (
        f"their keys have {found}, so their names in the trash would be too long; "
        "set another `quarantine` for the storage, or delete them manually"
    )


def _describe_examples(items: Sequence[Unreadable]) -> str:
    examples = "; ".join(f"{item.name}: {item.why}" for item in items[:_MAX_EXAMPLES])
    return examples if len(items) <= _MAX_EXAMPLES else f"{examples}; and {len(items) - _MAX_EXAMPLES:,} more"


def _describe_missing(missing: Sequence[Unreadable], doubtful: Sequence[Unreadable], foreign: ForeignFindings) -> Iterator[str]:
    found, junk = _describe_examples(missing), _describe_examples(doubtful)
    if missing:
        yield (
            f"their tables or lakes have lost files ({found}). Restore these files. If only live data files are lost, approve "
            f"the plan of the storage that lost them with `--override {LIVE_LISTED}`, then run again"
        )
    if doubtful:
        yield (
            f"{'Or they' if missing else 'they'} are under claims of {count_of(len(doubtful), 'table')} with an unreadable file named like "
            f"metadata in another storage, which may belong to another table ({junk}). Make the file readable, or remove it"
        )
    if foreign.prefixes:
        yield (
            f"{'Or they' if missing or doubtful else 'they'} may belong to tables of no configured lake. The `foreign_metadata` gate "
            "or a note of the run lists their metadata. Add the catalog of these tables to lakes.yaml, or accept dead tables with "
            "`gc-assets accept`"
        )
