"""Plan gates. Each gate is a pure function that returns a `GateResult` with a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gc_assets.core.plan import Amount, GateResult, LiveCount, Unreadable
from gc_assets.core.units import format_bytes

# The default share does not apply to plans this small, because in a young lake a few leftover files
# are a large share.
SMALL_PLAN: Final = Amount(files=1_000, bytes=10**9)
# More missing live files than this mean that addresses are spelled differently in the inventory.
MAX_UNLISTED: Final = 0.001
NOTHING: Final = Amount()
OVERRIDE: Final = "To continue anyway, approve with `--override {name}`."
NO_OVERRIDE: Final = "This gate cannot be overridden."


def _result(name: str, passed: bool, message: str, *, overridable: bool, numbers: dict[str, float] | None = None) -> GateResult:
    advice = "" if passed else " " + (OVERRIDE.format(name=name) if overridable else NO_OVERRIDE)
    return GateResult(name=name, passed=passed, message=message + advice, overridable=overridable, numbers=numbers or {})


def live_set(live: int, refs: int) -> GateResult:
    """Fail if lakes have refs but the storage has no live files, unless all commits are empty.

    In this case the mark read the wrong location. `refs` only counts lakes whose commits reference
    files.
    """
    message = f"{live:,} live files for {refs:,} refs."
    if live == 0 and refs:
        message += " Expected at least one live file. Check that the locations of the lakes are in this storage."
    return _result("live_set", live > 0 or refs == 0, message, overridable=False, numbers={"live": live, "refs": refs})


def unreadable_tables(unreadable: Sequence[Unreadable], limit: int, deferred: Amount = NOTHING) -> GateResult:
    """Fail if more than `limit` tables are unreadable.

    This usually means that a catalog or store does not respond. `deferred` is the amount that would
    be purged if all tables were readable.
    """
    message = f"{len(unreadable):,} tables or repositories cannot be read; max_unreadable allows {limit:,}."
    if unreadable:
        message += f" {'; '.join(item.message for item in unreadable[:5])}."
    numbers: dict[str, float] = {"unreadable": len(unreadable), "limit": limit}
    if deferred.files:
        amount = f"{deferred.files:,} quarantined files ({format_bytes(deferred.bytes)})"
        message += f" {amount} are due to be purged but wait until all tables are readable."
        numbers |= {"waiting_files": deferred.files, "waiting_bytes": deferred.bytes}
    return _result("unreadable_tables", len(unreadable) <= limit, message, overridable=True, numbers=numbers)


def never_read(unreadable: Sequence[Unreadable], storage: str) -> GateResult:
    """Fail if the storage contains a table that has never been fully read by any run.

    Its files would look like garbage.
    """
    unknown = [item for item in unreadable if item.stops(storage)]
    message = "every table in this storage has been read in full at least once."
    if unknown:
        tables = "; ".join(item.message for item in unknown[:5])
        message = f"the files of these tables are unknown: {tables}. Repair them, or drop them from the catalog."
    return _result("never_read", not unknown, message, overridable=False, numbers={"tables": len(unknown)})


def live_drop(live: LiveCount, previous: LiveCount | None, limit: float) -> GateResult:
    """Fail if live files drop by more than `limit` since the last accepted run.

    The limit applies to the storage and to each of its lakes.
    """
    if previous is None:
        return _result("live_drop", True, f"{live.files:,} live files; no accepted run to compare with.", overridable=True)
    drop = _drop(live.files, previous.files)
    message = f"{live.files:,} live files after {previous.files:,} in the last accepted run: down {drop:.1%}"
    both = {name: (live.by_lake[name], files) for name, files in previous.by_lake.items() if name in live.by_lake}
    fallen = {name: counts for name, counts in both.items() if _drop(*counts) > limit}
    if drop <= limit:
        message += "".join(f", lake {name} {now:,} after {then:,}" for name, (now, then) in sorted(fallen.items())[:5])
    message += f"; max_live_drop allows {limit:.1%}."
    numbers = {"live": live.files, "before": previous.files, "drop": max([drop, *(_drop(*counts) for counts in fallen.values())])}
    return _result("live_drop", drop <= limit and not fallen, message, overridable=True, numbers={**numbers, "limit": limit})


def _drop(live: int, previous: int) -> float:
    return max(0.0, (previous - live) / previous) if previous else 0.0


def lakes_present(gone: Sequence[str]) -> GateResult:
    """Fail if a lake that used the storage in the last accepted run is missing.

    Files shared with other lakes would lose their protection.
    """
    message = "every lake of the last accepted run is present."
    if gone:
        message = (
            f"{len(gone):,} lakes that needed files of this storage are missing: {'; '.join(gone[:5])}. Configure them again, "
            "or confirm that a lake was removed: `gc-assets forget LAKE --by WHO`."
        )
    return _result("lakes_present", not gone, message, overridable=False, numbers={"lakes": len(gone)})


def metadata_present(missing: int, samples: Sequence[str]) -> GateResult:
    """Fail if live metadata is missing from the inventory or differs from the decoded object."""
    message = "every live metadata object is in the inventory."
    if missing:
        message = f"{missing:,} live metadata objects are missing from the inventory or have changed since they were read: "
        message += f"{', '.join(samples[:5])}."
    return _result("metadata_present", missing == 0, message, overridable=False, numbers={"missing": missing})


def live_listed(live: int, unlisted: int, samples: Sequence[str]) -> GateResult:
    """Fail if a share above `MAX_UNLISTED` of live files is missing from the inventory.

    In this case addresses and listing spell the same files differently (apache/iceberg#4346).
    """
    share = unlisted / live if live else 0.0
    message = f"At most {unlisted:,} of {live:,} live files are not in the inventory."
    if unlisted:
        message += (
            f" {MAX_UNLISTED:.1%} may be missing. They are lost, or their addresses are spelled differently: {', '.join(samples[:5])}."
        )
    return _result("live_listed", share <= MAX_UNLISTED, message, overridable=True, numbers={"live": live, "unlisted": unlisted})


def no_live_candidate(hits: int, samples: Sequence[str]) -> GateResult:
    """Fail if a candidate is a live key, as a filter with false negatives cannot be trusted."""
    message = "no candidate is a live key."
    if hits:
        message = f"{hits:,} candidates are live keys, which the filter should contain: {', '.join(samples[:5])}. Report this as a bug."
    return _result("no_live_candidate", hits == 0, message, overridable=False, numbers={"hits": hits})


def spelling(hits: int, samples: Sequence[str]) -> GateResult:
    """Fail if a candidate equals a live key after normalisation.

    Normalisation removes percent-encoding, repeated slashes and Unicode differences.
    """
    message = "no candidate is another spelling of a live key."
    if hits:
        message = f"{hits:,} candidates differ from a live key only in spelling: {', '.join(samples[:5])}. "
        message += "Rename the file or repair the reference."
    return _result("spelling", hits == 0, message, overridable=False, numbers={"hits": hits})


def storages_apart(overlaps: Sequence[tuple[str, str]]) -> GateResult:
    """Fail if storage roots are equal or nested, or if a directory has two names in storages.

    Live files would look unreferenced under one of their names.
    """
    message = "no storage contains another."
    if overlaps:
        pairs = ", ".join(f"{a} and {b}" for a, b in overlaps)
        message = f"storages overlap: {pairs}. Configure them as one storage; use one name for a directory that is mounted twice."
    return _result("storages_apart", not overlaps, message, overridable=False, numbers={"overlaps": len(overlaps)})


def links(count: int, samples: Sequence[str]) -> GateResult:
    """Fail if a live file is reached through a symbolic link or a second mount.

    The actual file would look unreferenced.
    """
    message = "no live file is reached through a link or a second mount."
    if count:
        message = (
            f"{count:,} live files are reached through symbolic links or second mounts: {', '.join(samples[:5])}. "
            "Replace the link with its files, or change the lake so that it names their real paths."
        )
    return _result("links", count == 0, message, overridable=False, numbers={"files": count})


def foreign_metadata(
    count: int, samples: Sequence[str], junk: int = 0, junk_samples: Sequence[str] = (), dead: Sequence[str] = ()
) -> GateResult:
    """Fail if a claimed prefix contains metadata that does not belong to any configured lake.

    Args:
        count: Number of foreign metadata objects.
        samples: Sample keys of such objects.
        junk: Number of files with metadata names but other content. They protect the files in
            their directory but do not fail the gate.
        junk_samples: Sample keys of such files.
        dead: Tables accepted as dead by users.
    """
    message = "no foreign table or repository under a claimed prefix."
    if count:
        message = (
            f"{count:,} metadata objects under claimed prefixes belong to no configured lake: {'; '.join(samples[:5])}. "
            "Add their catalog to lakes.yaml, accept a dead table with `gc-assets accept`, or remove them manually."
        )
    if junk:
        message += (
            f" {junk:,} objects are named like metadata but are not metadata; the files in their directories are kept: "
            f"{'; '.join(junk_samples[:5])}."
        )
    if dead:
        message += f" {len(dead):,} are accepted as dead: {'; '.join(dead[:5])}."
    return _result("foreign_metadata", count == 0, message, overridable=True, numbers={"objects": count})


def unfinished_apply(plan_ids: Sequence[str]) -> GateResult:
    """Fail if an earlier apply on the storage is incomplete, as its moves are not recorded yet."""
    message = "no earlier plan is partly applied."
    if plan_ids:
        message = (
            f"{len(plan_ids):,} plans were started and not finished: {', '.join(plan_ids[:5])}. "
            "Finish each with `gc-assets apply PLAN_ID`, which resumes from its log, then run again. If it cannot read a lake any more, "
            "run `gc-assets restore --plan PLAN_ID` first."
        )
    return _result("unfinished_apply", not plan_ids, message, overridable=False, numbers={"plans": len(plan_ids)})


def damaged_histories(found: Sequence[str]) -> GateResult:
    """Fail if an expiry action left a history in an unexpected state.

    Files lost from that history may be among the candidates.
    """
    message = "no expiry action damaged a history."
    if found:
        message = f"{len(found):,} histories differ from the planned result of an expiry action. {' '.join(found[:5])}"
    return _result("damaged_histories", not found, message, overridable=True, numbers={"histories": len(found)})


def delete_bytes(planned: Amount, limit: int) -> GateResult:
    message = f"{format_bytes(planned.bytes)} planned, max_delete_bytes allows {format_bytes(limit)}."
    return _result("delete_bytes", planned.bytes <= limit, message, overridable=True, numbers={"bytes": planned.bytes, "limit": limit})


def delete_share(planned: Amount, stored: Amount, limit: float, *, configured: bool) -> GateResult:
    """Fail if the plan deletes more than `limit` of all files or bytes.

    Args:
        planned: Planned amount.
        stored: Amount in the storage.
        limit: Maximum share.
        configured: False for the default limit, which is not applied to plans up to `SMALL_PLAN`.
    """
    share = max(planned.files / max(stored.files, 1), planned.bytes / max(stored.bytes, 1))
    small = not configured and planned.files <= SMALL_PLAN.files and planned.bytes <= SMALL_PLAN.bytes
    message = f"{planned.files:,} of {stored.files:,} files planned, the larger share is {share:.1%}; max_delete_share allows {limit:.1%}"
    message += f" (not applied to a plan of at most {SMALL_PLAN.files:,} files and {format_bytes(SMALL_PLAN.bytes)})." if small else "."
    numbers = {"files": planned.files, "stored": stored.files, "share": share, "limit": limit}
    return _result("delete_share", small or share <= limit, message, overridable=True, numbers=numbers)
