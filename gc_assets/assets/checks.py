"""Asset checks for published tables.

Checks examine the published files, not what a stage returned. A failed check only stops its own
Dagster run. The stages that delete files therefore do not rely on checks, and repeat every test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

from gc_assets.assets.page_actions import to_page_message
from gc_assets.assets.plan_metadata import gates_table
from gc_assets.core.errors import StateError
from gc_assets.core.plan import Unreadable
from gc_assets.core.printable import to_message
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark.content_roots import has_live_roots
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.records import plans as approvals
from gc_assets.stages.sweep.live_filter import ProbeFilter
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES
from gc_assets.state.summaries import DeletionLogSummary, LiveFilesSummary, ManifestEntriesSummary, OrphanFilesSummary

# Only a sample of a larger table is hashed, so that the driver does not read a large lake twice.
HASHED_BYTES: Final = 256 * 2**20
PROBED_KEYS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        passed: Whether the check passed.
        numbers: The numbers from which the result follows. Dagster can plot them.
        description: The problem, or None.
        details: Further metadata, such as the names of failed items.
    """

    passed: bool
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    description: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Check:
    """Definition of an asset check.

    Attributes:
        name: The name of the check.
        danger: The risk that the check prevents or reports.
        evaluate: The function that performs the check.
        blocking: Whether a failure fails the step.
        refuses: Whether a failure means that a gate refuses the plan. Such a failure has severity
            ERROR, but does not block restores or other storages.
    """

    name: str
    danger: str
    evaluate: Callable[[RunContext, PublishedTable], CheckResult]
    blocking: bool = True
    refuses: bool = False

    def result(self, context: RunContext, key: dg.AssetKey, published: PublishedTable) -> dg.AssetCheckResult:
        verdict = self.evaluate(context, published)
        severity = dg.AssetCheckSeverity.ERROR if self.blocking or self.refuses else dg.AssetCheckSeverity.WARN
        return dg.AssetCheckResult(
            passed=verdict.passed,
            asset_key=key,
            check_name=self.name,
            metadata={**verdict.details, **verdict.numbers},
            severity=severity,
            description=None if verdict.description is None else to_message(verdict.description),
        )


def _receipt(context: RunContext, published: PublishedTable) -> CheckResult:
    hashed = wrong = size_bytes = 0
    parts = published.receipt.files or published.receipt.parts  # `live_files` consists of side tables
    for part in parts:
        if size_bytes >= HASHED_BYTES:
            break
        content = context.state.files.read(f"{published.path}/{part.name}")
        wrong += hashlib.sha256(content).hexdigest() != part.sha256
        hashed, size_bytes = hashed + 1, size_bytes + len(content)
    numbers = {"parts": len(parts), "parts_hashed": hashed, "bytes_hashed": size_bytes, "parts_changed": wrong}
    return CheckResult(wrong == 0, numbers, f"{count_of(wrong, 'part')} in {published.path} changed after publication" if wrong else None)


def _complete(_: RunContext, published: PublishedTable) -> CheckResult:
    balances = published.receipt.balances
    missing = [f"{item.name}: expected {item.expected:,}, found {item.found:,}" for item in balances if item.expected != item.found]
    numbers = {"counts": len(balances), "expected": sum(item.expected for item in balances), "found": sum(item.found for item in balances)}
    return CheckResult(not missing, numbers, "; ".join(missing) or None)


def _live_while_refs(context: RunContext, published: PublishedTable) -> CheckResult:
    refs = context.table(LAKE_REFS, published.receipt.owner)
    heads = _heads(context, refs)
    live = published.summary(LiveFilesSummary).files
    is_empty = live == 0 and heads > 0 and not has_live_roots(context, published.receipt.owner)
    return CheckResult(
        live > 0 or heads == 0 or is_empty,
        {"live_files": live, "refs": heads},
        f"no file is live, although the lake has {count_of(heads, 'ref')}" if not live and not is_empty else None,
    )


def _heads(context: RunContext, refs: PublishedTable) -> int:
    column = read_parts(context.state.files, refs.paths(), LAKE_REFS.schema, ["head_commit_id"]).column(0)
    return len(column) - column.null_count


def _all_readable(_: RunContext, published: PublishedTable) -> CheckResult:
    return _name_unreadable(published.summary(LiveFilesSummary).unreadable)


def _all_listed(_: RunContext, published: PublishedTable) -> CheckResult:
    return _name_unreadable(published.summary(OrphanFilesSummary).unreadable)


def _name_unreadable(unreadable: Sequence[Unreadable]) -> CheckResult:
    return CheckResult(not unreadable, {"unreadable": len(unreadable)}, "\n".join(item.message for item in unreadable) or None)


def _everything_decoded(_: RunContext, published: PublishedTable) -> CheckResult:
    unreadable = published.summary(ManifestEntriesSummary).unreadable
    found = (
        f"{count_of(unreadable, 'container')} could not be decoded; live_files fails if a retained commit needs one" if unreadable else None
    )
    return CheckResult(unreadable == 0, {"unreadable_containers": unreadable}, found)


def _holds_live_keys(context: RunContext, published: PublishedTable) -> CheckResult:
    probe = ProbeFilter(context.state.files, tuple(published.paths()))
    probed = hits = 0
    live = (LiveSet(context, table) for table in context.lake_tables(LIVE_FILES))
    for hashes in (hashes for item in live for hashes in item.hash_batches(published.receipt.group)):
        probed, hits = probed + len(hashes), hits + int(probe.contains(hashes).sum())
        if probed >= PROBED_KEYS:
            break
    missed = probed - hits
    numbers = {"keys_probed": probed, "keys_missed": missed}
    return CheckResult(missed == 0, numbers, f"{count_of(missed, 'live key', 'are')} missing from the filter" if missed else None)


def _no_live_candidate(_: RunContext, published: PublishedTable) -> CheckResult:
    summary = published.summary(OrphanFilesSummary)
    hits, samples = summary.false_negatives, ", ".join(summary.stopped_samples)
    return CheckResult(hits == 0, {"false_negatives": hits}, f"{count_of(hits, 'candidate', 'are')} live: {samples}" if hits else None)


def _plan_intact(context: RunContext, published: PublishedTable) -> CheckResult:
    try:
        header = approvals.load_plan(context.config, published).header
    except StateError as error:
        return CheckResult(False, {}, str(error))
    return CheckResult(header.rows == published.receipt.rows, {"planned_rows": header.rows, "rows_on_disk": published.receipt.rows})


def _gates(context: RunContext, published: PublishedTable) -> CheckResult:
    header = approvals.load_plan(context.config, published).header
    failed = header.failed_gates
    found = "\n".join(f"{gate.name}: {to_page_message(gate.message, context.config)}" for gate in failed) or None
    names = ", ".join(gate.name for gate in failed) or "none"
    return CheckResult(not failed, description=found, details={"gates": gates_table(header, context.config), "failed_gates": names})


def _no_failed_key(_: RunContext, published: PublishedTable) -> CheckResult:
    by_outcome = published.summary(DeletionLogSummary).by_outcome
    failed = sum(amount.files for name, amount in by_outcome.items() if name.endswith("/failed"))
    return CheckResult(
        failed == 0, {"failed_files": failed}, f"{count_of(failed, 'file')} failed; apply the plan again to resume" if failed else None
    )


RECEIPT: Final = Check("receipt", "Prevents the use of an incomplete table, or one that changed after publication.", _receipt)
COMPLETE: Final = Check("complete", "Prevents lost rows: a live file without a row is not protected.", _complete)
LIVE_WHILE_REFS: Final = Check(
    "live_while_refs", "Prevents an empty live set, which would make every file of the lake a candidate.", _live_while_refs
)
ALL_READABLE: Final = Check(
    "all_readable", "Reports unreadable tables. They delay every purge until they are repaired.", _all_readable, blocking=False
)
ALL_LISTED: Final = Check(
    "all_readable",
    "Reports tables whose metadata is missing from the listing. They delay every purge until they are repaired.",
    _all_listed,
    blocking=False,
)
EVERYTHING_DECODED: Final = Check(
    "everything_decoded",
    "Reports unreadable metadata files. The files that they reference cannot be identified as live.",
    _everything_decoded,
    blocking=False,
)
HOLDS_LIVE_KEYS: Final = Check(
    "holds_live_keys", "Prevents a filter that lacks a live key, which would make a live file a candidate.", _holds_live_keys
)
NO_LIVE_CANDIDATE: Final = Check(
    "no_live_candidate",
    "Reports a live key among the candidates, which proves that the filter lost keys. The `no_live_candidate` gate refuses the plan.",
    _no_live_candidate,
    blocking=False,
    refuses=True,
)
PLAN_INTACT: Final = Check("plan_intact", "Prevents the approval of a plan that was edited after it was created.", _plan_intact)
GATES: Final = Check(
    "gates",
    "Reports failed gates, the checks that can refuse a plan. Such a plan may delete more files than intended.",
    _gates,
    blocking=False,
    refuses=True,
)
NO_FAILED_KEY: Final = Check(
    "no_failed_key", "Reports keys with a failed action. Such a plan is unfinished and stops the next plan.", _no_failed_key
)
