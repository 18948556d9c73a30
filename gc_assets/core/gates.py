"""The gates that check a plan. Each gate is a pure function and returns a `GateResult`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gc_assets.core.plan import MAX_UNLISTED, Amount, BranchShare, GateResult, LiveCount, Unreadable, lacks_too_many
from gc_assets.core.printable import MAX_LISTED, show_list, to_message
from gc_assets.core.units import count_of, format_bytes

# The default limits are not applied to plans up to this size, because in a young lake, a few
# leftover files may already be a large fraction.
SMALL_PLAN: Final = Amount(files=1_000, bytes=10**9)
NOTHING: Final = Amount()
NO_LIVE_FILES: Final = LiveCount(0)
# Key in the numbers of `live_drop` for a lake's number of expired files.
EXPIRED_IN: Final = "expired_in_{lake}"
OVERRIDE: Final = "To continue anyway, approve with `--override {name}`."
NO_OVERRIDE: Final = "This gate cannot be overridden."


def _result(name: str, passed: bool, message: str, *, overridable: bool, numbers: dict[str, float] | None = None) -> GateResult:
    advice = "" if passed else " " + (OVERRIDE.format(name=name) if overridable else NO_OVERRIDE)
    return GateResult(name=name, passed=passed, message=to_message(message) + advice, overridable=overridable, numbers=numbers or {})


def message_of(gate: GateResult, failed: Sequence[GateResult]) -> str:
    """Return the message of a failed gate, without the override hint if approval is impossible.

    Args:
        failed: All failed gates of the plan. If one cannot be overridden, no approval is possible.
    """
    return gate.message if all(other.overridable for other in failed) else without_override(gate)


def without_override(gate: GateResult) -> str:
    """Remove the override hint from a gate message."""
    return gate.message.removesuffix(OVERRIDE.format(name=gate.name)).rstrip()


def live_set(live: int, refs: int, planned: int = 1) -> GateResult:
    """Fail if a plan has rows although the live set of the storage is empty.

    If lakes have refs but no live files, the live set was computed from the wrong location.

    Args:
        live: Number of live files.
        refs: Number of refs of the lakes that claim part of the storage. Lakes whose commits do not
            reference any files are not counted.
        planned: Number of rows in the plan.
    """
    message = f"{count_of(live, 'live file')} for {count_of(refs, 'ref')}."
    passed = live > 0 or refs == 0 or planned == 0
    if not passed:
        message += " Expected at least one live file. Check that the locations of the lakes are in this storage."
    return _result("live_set", passed, message, overridable=False, numbers={"live": live, "refs": refs})


def unreadable_tables(unreadable: Sequence[Unreadable], limit: int, deferred: Amount = NOTHING) -> GateResult:
    """Fail if too many tables are unreadable, usually because a server does not respond.

    Args:
        unreadable: All unreadable tables. Those for which users ran `gc-assets set-aside` are not
            counted.
        limit: Maximum number.
        deferred: Quarantined files that are not purged until all tables are readable.
    """
    blocking = [item for item in unreadable if item.blocks_purges]
    message = (
        f"{len(blocking):,} {'table or repository' if len(blocking) == 1 else 'tables or repositories'} cannot "
        f"be read; max_unreadable allows {limit:,}."
    )
    if unreadable:
        message += f" {'; '.join(item.message for item in [*blocking, *(item for item in unreadable if not item.blocks_purges)][:5])}."
    numbers: dict[str, float] = {"unreadable": len(unreadable), "limit": limit}
    if deferred.files:
        amount = f"{count_of(deferred.files, 'quarantined file')} ({format_bytes(deferred.bytes)})"
        names = ", ".join(sorted({item.label for item in blocking})[:5])
        message += (
            f" {amount} are due to be purged but wait until all tables are readable, or are set aside: "
            f"`gc-assets set-aside TABLE --by WHO --comment WHY` ({names})."
        )
        numbers |= {"waiting_files": deferred.files, "waiting_bytes": deferred.bytes}
    return _result("unreadable_tables", len(blocking) <= limit, message, overridable=True, numbers=numbers)


def live_drop(
    live: LiveCount,
    previous: LiveCount | None,
    limit: float,
    expired: LiveCount = NO_LIVE_FILES,
    notes: Sequence[str] = (),
    tables: Sequence[str] = (),
) -> GateResult:
    """Fail if the number of live files has dropped too much since the last accepted run.

    The limit applies both to the whole storage and to each of its lakes.

    Args:
        live: Live files of this run.
        previous: Live files of the last accepted run, or None if there was no such run.
        limit: Maximum fraction.
        expired: Live files of the last accepted run that the policy has expired since then. They do
            not count as a drop.
        notes: Sentences for the message: why more expired files could not be subtracted, and which
            losses earlier runs of the same date had.
        tables: Descriptions of the tables that lost most files.
    """
    if previous is None:
        return _result("live_drop", True, f"{count_of(live.files, 'live file')}; no accepted run to compare with.", overridable=True)
    fallen = _fallen_lakes(live, previous, limit, expired)
    drop = _drop(live.files + expired.files, previous.files)
    message = (
        f"{count_of(live.files, 'live file')} after {previous.files:,} in the last accepted run: down "
        f"{_drop(live.files, previous.files):.1%}"
    )
    if expired.files:
        message += f", of which the retention policy expired {expired.files / previous.files:.1%} ({count_of(expired.files, 'file')}). "
        message += f"A drop of {drop:.1%} is not explained"
    if drop <= limit:
        message += "".join(f", {_describe_fall(name, live, previous, expired)}" for name in sorted(fallen)[:5])
    message += f"; max_live_drop allows {limit:.1%}."
    passed = drop <= limit and not fallen
    if tables and not passed:
        message += f" Largest drops: {', '.join(tables)}. If they were not intended, restore the tables or the catalog, then run again."
    message += "".join(f" {note[:1].upper()}{note[1:]}." for note in notes[:5])
    numbers = {"live": live.files, "before": previous.files, "drop": max([drop, *fallen.values()]), "limit": limit}
    if expired.files:  # otherwise the numbers are as before 0.4, because the plan id depends on them
        numbers |= {"expired": expired.files} | {EXPIRED_IN.format(lake=lake): files for lake, files in expired.by_lake.items()}
    return _result("live_drop", passed, message, overridable=True, numbers=numbers)


def _describe_fall(lake: str, live: LiveCount, previous: LiveCount, expired: LiveCount) -> str:
    files = expired.by_lake.get(lake, 0)
    return f"lake {lake} {live.by_lake[lake]:,} after {previous.by_lake[lake]:,}" + (f" ({files:,} expired)" if files else "")


def _fallen_lakes(live: LiveCount, previous: LiveCount, limit: float, expired: LiveCount = NO_LIVE_FILES) -> dict[str, float]:
    """Return the lakes whose live files have dropped by more than the fraction `limit`.

    Maps each lake to the fraction by which its live files have dropped.
    """
    drops = {
        name: _drop(live.by_lake[name] + expired.by_lake.get(name, 0), files)
        for name, files in previous.by_lake.items()
        if name in live.by_lake
    }
    return {name: drop for name, drop in drops.items() if drop > limit}


def _drop(live: int, previous: int) -> float:
    return max(0.0, (previous - live) / previous) if previous else 0.0


def lakes_present(gone: Sequence[str]) -> GateResult:
    """Fail if a lake that used the storage in the last accepted run is missing now.

    Files that this lake shares with other lakes would no longer be protected.
    """
    message = "every lake of the last accepted run is present."
    if gone:
        message = (
            f"{count_of(len(gone), 'lake')} that needed files of this storage {'is' if len(gone) == 1 else 'are'} missing: "
            f"{show_list(gone, separator='; ')}. If {'its' if len(gone) == 1 else 'their'} settings in lakes.yaml are wrong, correct them. "
            "If a lake was removed, run `gc-assets forget LAKE --by WHO`. If only its address changed, run "
            "`gc-assets rename OLD NEW --by WHO`."
        )
    return _result("lakes_present", not gone, message, overridable=False, numbers={"lakes": len(gone)})


def metadata_present(missing: int, samples: Sequence[str]) -> GateResult:
    """Fail if live metadata files are missing from the inventory, or changed since their decoding."""
    message = "every live metadata object of readable tables is in the inventory."
    if missing:
        message = f"{count_of(missing, 'live metadata object', 'are')} missing from the inventory, or changed after being read: "
        message += f"{show_list(samples)}."
    return _result("metadata_present", missing == 0, message, overridable=False, numbers={"missing": missing})


def live_listed(live: int, unlisted: int, samples: Sequence[str]) -> GateResult:
    """Fail if more than `MAX_UNLISTED` of the live files are missing from the inventory.

    The probable cause is that the lake and the listing write the names of the same files
    differently, as in apache/iceberg#4346.
    """
    message = f"At most {unlisted:,} of {count_of(live, 'live file', 'are')} not in the inventory, ignoring files of unreadable tables."
    if unlisted:
        message += f" Up to {MAX_UNLISTED:.1%} may be missing. They are lost, or their addresses are spelled differently: "
        message += f"{show_list(samples)}. `gc-assets explain KEY` shows whether a file was lost in quarantine."
    passed = not lacks_too_many(unlisted, live)
    return _result("live_listed", passed, message, overridable=True, numbers={"live": live, "unlisted": unlisted})


def no_live_candidate(hits: int, samples: Sequence[str]) -> GateResult:
    """Fail if a deletion candidate is live, because the live filter must find all live files."""
    message = "no candidate is a live key."
    if hits:
        message = (
            f"{count_of(hits, 'candidate', 'are')} live keys, which the filter should contain: {show_list(samples)}. Report this as a bug."
        )
    return _result("no_live_candidate", hits == 0, message, overridable=False, numbers={"hits": hits})


def spelling(hits: int, samples: Sequence[str], kept: int = 0, kept_samples: Sequence[str] = ()) -> GateResult:
    """Fail if a deletion candidate may be a missing live file whose key is written differently.

    Keys are compared without percent-encoding, repeated slashes, backslashes and Unicode
    differences, and on disks also without case. If the live file exists, or only expired history
    needs it, the gate does not fail, but the deletion candidate is kept.

    Args:
        hits: Number of candidates whose live file is not in the inventory.
        samples: Keys of some of them.
        kept: Number of candidates whose live file is in the inventory, or that only expired history
            may need.
        kept_samples: Keys of some of them.
    """
    message = "no candidate is another spelling of a missing live key."
    if hits:
        message = f"{count_of(hits, 'candidate', 'differ')} only in spelling from a live key that does not exist: {show_list(samples)}. "
        message += "Rename the file, repair the reference, or add the file to `protect`."
    if kept:
        message += f" {count_of(kept, 'file', 'differ')} only in spelling from an existing live file, or from a file that expired "
        message += "history still needs, so all of them stay: "
        message += f"{show_list(kept_samples)}. Delete them manually if they are not needed."
    return _result("spelling", hits == 0, message, overridable=False, numbers={"hits": hits, "kept": kept})


def storages_apart(overlaps: Sequence[tuple[str, str]]) -> GateResult:
    """Fail if storages overlap, or if the same directory is mounted in two places.

    In both cases, each file has two names, and a live file looks unreferenced under one of them.
    """
    message = "no storage contains another."
    if overlaps:
        pairs = ", ".join(f"{a} and {b}" for a, b in overlaps)
        message = f"storages overlap: {pairs}. Configure them as one storage; use one name for a directory that is mounted twice."
    return _result("storages_apart", not overlaps, message, overridable=False, numbers={"overlaps": len(overlaps)})


def links(count: int, samples: Sequence[str]) -> GateResult:
    """Fail if a lake refers to a file through a symbolic link or a second mount.

    Under its actual name, such a file looks unreferenced.
    """
    message = "no live file is reached through a link or a second mount."
    if count:
        message = (
            f"{count_of(count, 'live file', 'are')} reached through symbolic links or second mounts: {show_list(samples)}. "
            "Replace the link with its files, or change the lake so that it references their real paths."
        )
    return _result("links", count == 0, message, overridable=False, numbers={"files": count})


def unknown_addresses(addresses: int, files: int, samples: Sequence[str], hidden: int = 0) -> GateResult:
    """Fail if a planned file may be live under an address whose location is unknown.

    Args:
        addresses: Number of unknown addresses in the live sets of all lakes.
        files: Number of planned files whose size and last path components match one of these
            addresses.
        samples: Some of these files, with the addresses.
        hidden: Number of these files that might be the target of a link which gc-assets cannot
            examine.
    """
    message = "no live address has an unknown location."
    if addresses:
        message = f"{count_of(addresses, 'live address', 'have')} an unknown location, but no planned file matches one by name and size."
    if files:
        equal = "the size or name" if hidden else "the name and size"
        message = (
            f"{count_of(files, 'planned file', 'have')} {equal} of live addresses with an unknown location: "
            f"{show_list(samples, separator='; ')}. "
        )
        if hidden:
            message += (
                "A file that the collector cannot examine may be a link to a planned file. Give the collector's user access to its "
                "directory (`chmod o+x`), or repair the link, and run again. If the file is not a link, override the gate."
            )
        if hidden < files:
            message += (
                f"{' ' if hidden else ''}If the address is another name of this storage, add the beginning of the address to the "
                "storage's `aliases` in lakes.yaml and run again."
            )
    return _result("unknown_addresses", files == 0, message, overridable=True, numbers={"addresses": addresses, "files": files})


def foreign_metadata(
    count: int,
    samples: Sequence[str],
    junk: int = 0,
    junk_samples: Sequence[str] = (),
    dead: Sequence[str] = (),
    unknown: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> GateResult:
    """Fail if a claimed prefix contains metadata of a table that no configured lake contains.

    Args:
        count: Number of foreign metadata objects.
        samples: Keys of some of them.
        junk: Number of files that are named like metadata but have other content. The files in
            their directories are kept, but the gate does not fail because of them.
        junk_samples: Keys of some of them.
        dead: Tables accepted as dead by users.
        unknown: Why the metadata in another storage of the same lakes is unknown. No override is
            possible, because it could not protect the tables there.
        notes: Sentences about storages whose earlier sweep was used.
    """
    message = "no foreign table or repository under a claimed prefix."
    if count:
        tables = _name_tables_once(samples)[:MAX_LISTED]
        rest = count - sum(objects for _, objects in tables)
        message = (
            f"{count_of(count, 'metadata object')} under claimed prefixes {'does' if count == 1 else 'do'} not belong to a configured "
            "lake: "
            f"{show_list([text for text, _ in tables], separator='; ')}{f'; and {rest:,} more' if rest > 0 else ''}. "
            "The plan leaves out all files in their locations, even if you override the gate. However, an override does not protect "
            "files in other places that only their manifests reference. "
            "Add their catalog to lakes.yaml, accept a dead table with `gc-assets accept`, or remove them manually."
        )
    if junk:
        message += (
            f" {count_of(junk, 'object', 'are')} named like metadata without being metadata, so files in the same directory are kept: "
            f"{show_list(junk_samples, separator='; ')}."
        )
    if dead:
        message += f" {len(dead):,} are accepted as dead: {show_list(dead, separator='; ')}."
    if unknown:
        message += (
            f" The lakes also have metadata in another storage, which is unknown: {show_list(unknown, separator='; ')}. Its tables cannot "
            "be left out, so run `gc-assets run --listing` for all storages first. If a storage does not exist any more, remove it "
            "from lakes.yaml."
        )
    message = " ".join([message, *notes])
    return _result("foreign_metadata", count == 0 and not unknown, message, overridable=not unknown, numbers={"objects": count})


def _name_tables_once(samples: Sequence[str]) -> list[tuple[str, int]]:
    """Combine samples of metadata files of the same table.

    Args:
        samples: Samples in the form `<key>: <table and reason>`.

    Returns:
        One sample for each table, with the number of its metadata objects.
    """
    by_table: dict[str, list[str]] = {}
    for sample in samples:
        by_table.setdefault(sample.partition(": ")[2] or sample, []).append(sample)
    return [(_add_further(first, len(others)), 1 + len(others)) for first, *others in by_table.values()]


def _add_further(sample: str, further: int) -> str:
    return sample.replace(": ", f" and {further:,} more: ", 1) if further else sample


def new_claims(claims: int, files: Amount, samples: Sequence[str], others: Amount = NOTHING) -> GateResult:
    """Report files that are older than a new claim on their prefix.

    The gate never fails. Such files are left out of plans until a user accepts their prefix.

    Args:
        claims: Number of new claims with such files.
        files: Number and size of these files.
        samples: Descriptions of some of these claims.
        others: All other foreign files (those that may belong to other applications), which are
            left out as well.
    """
    message = "no file is older than a new claim on it."
    if claims:
        message = (
            f"{count_of(claims, 'new claim', 'contain')} {files} that are older than the claim and may belong to others. They are not "
            f"planned: {show_list(samples, separator='; ')}."
        )
    if others.files:
        message += (
            f" {count_of(others.files, 'other file')} ({format_bytes(others.bytes)}) in claims may belong to others and are not planned."
        )
    if claims or others.files:
        message += " To plan them, accept their directory with `gc-assets accept-prefix LOCATION --by WHO --comment WHY`."
    numbers: dict[str, float] = {"claims": claims, "files": files.files, "bytes": files.bytes}
    numbers |= {"foreign_files": files.files + others.files, "foreign_bytes": files.bytes + others.bytes}
    return _result("new_claims", True, message, overridable=False, numbers=numbers)


def dropped_tables(tables: int, limit: int, samples: Sequence[str], lost: Sequence[str]) -> GateResult:
    """Fail if too many tables seem to have been dropped.

    If a catalog returns an incomplete list, the missing tables look as if they had been dropped.

    Args:
        tables: Number of dropped tables with planned files. Replaced and accepted tables are not
            counted.
        limit: Maximum number.
        samples: Descriptions of some of these tables.
        lost: Descriptions of lakes that lost most of their tables in runs of one date. The gate
            also fails if there are any.
    """
    message = f"{count_of(tables, 'dropped table', 'have')} planned files; max_dropped_tables allows {limit:,}"
    message += f": {show_list(samples, separator='; ')}." if samples else "."
    if lost:
        message += f" {show_list(lost, separator='; ')}. Check that the catalog is complete: `gc-assets show dropped_tables`."
    numbers: dict[str, float] = {"tables": tables, "limit": limit, "lost_lakes": len(lost)}
    return _result("dropped_tables", tables <= limit and not lost, message, overridable=True, numbers=numbers)


def idle_branches(branches: int, limit: int) -> GateResult:
    """Fail if a plan deletes more than `limit` idle branches.

    For example, if the clock has jumped, every branch that matches a rule looks idle.
    """
    message = f"{count_of(branches, 'idle branch')} planned for deletion; max_idle_branches allows {limit:,}."
    if branches > limit:
        message += " Check the clock, the rules in `retention.delete_idle`, and `gc-assets show expiry_plan`."
    return _result("idle_branches", branches <= limit, message, overridable=True, numbers={"branches": branches, "limit": limit})


def deleted_paths(paths: int, limit: int, shares: Sequence[BranchShare], max_share: float, *, configured: bool) -> GateResult:
    """Fail if a plan deletes too many paths in total, or too large a fraction of a branch.

    Args:
        paths: Number of paths that are deleted by commits on all branches.
        limit: Maximum number.
        shares: The most affected branches, at least one.
        max_share: Maximum fraction of a branch's paths.
        configured: True if the user has configured `max_share`. The default is not applied to
            branches that lose only as many paths as a small plan may have files.
    """
    counted = [item for item in shares if configured or item.paths > SMALL_PLAN.files]
    largest = max(counted, default=BranchShare(0.0, "no branch", 0))
    message = f"{count_of(paths, 'path')} planned for deletion by commits; max_deleted_paths allows {limit:,}. "
    if counted:
        message += (
            f"The largest share of a branch is {largest.share:.1%} ({largest.branch}); max_deleted_path_share allows {max_share:.1%}."
        )
    else:
        message += f"No branch loses more than {SMALL_PLAN.files:,} paths, so max_deleted_path_share is not applied."
    passed = paths <= limit and largest.share <= max_share
    if not passed:
        message += " Check the lifecycle rules, and `gc-assets show lifecycle_paths`."
    numbers = {"paths": float(paths), "limit": limit, "share": max(shares).share, "max_share": max_share}
    return _result("deleted_paths", passed, message, overridable=True, numbers=numbers)


def unfinished_apply(plans: Sequence[str]) -> GateResult:
    """Fail if an earlier apply in the storage is unfinished, so its outcomes are not published.

    Args:
        plans: The unfinished plans, each with the reason why it is still open.
    """
    message = "no earlier plan is unfinished."
    if plans:
        message = (
            f"{count_of(len(plans), 'plan', 'were')} started and not finished: {show_list(plans, separator='; ')}. "
            "Finish each with `gc-assets apply PLAN_ID`, which resumes from its log, or give up the rest with "
            "`gc-assets apply PLAN_ID --end`, then run again. If an apply cannot read a lake any more, run "
            "`gc-assets restore --plan PLAN_ID` first."
        )
    return _result("unfinished_apply", not plans, message, overridable=False, numbers={"plans": len(plans)})


def damaged_histories(found: Sequence[str]) -> GateResult:
    """Fail if a history edit has left a table or repository in an unexpected state.

    Files that its history no longer references by mistake could be deleted as garbage.
    """
    message = "no expiry action damaged a history."
    if found:
        message = f"{count_of(len(found), 'history', 'differ')} from the planned result of an expiry action. {' '.join(found[:5])}"
    return _result("damaged_histories", not found, message, overridable=True, numbers={"histories": len(found)})


def delete_bytes(planned: Amount, limit: int) -> GateResult:
    message = f"{format_bytes(planned.bytes)} planned, max_delete_bytes allows {format_bytes(limit)}."
    return _result("delete_bytes", planned.bytes <= limit, message, overridable=True, numbers={"bytes": planned.bytes, "limit": limit})


def delete_share(planned: Amount, stored: Amount, limit: float, *, configured: bool) -> GateResult:
    """Fail if the plan deletes too large a fraction of all files or bytes in the storage.

    Args:
        planned: Files to delete.
        stored: All files in the storage.
        limit: Maximum fraction.
        configured: True if the user has configured `limit`. The default is not applied to plans up
            to `SMALL_PLAN`.
    """
    share = max(planned.files / max(stored.files, 1), planned.bytes / max(stored.bytes, 1))
    small = not configured and planned.files <= SMALL_PLAN.files and planned.bytes <= SMALL_PLAN.bytes
    message = (
        f"{planned.files:,} of {count_of(stored.files, 'file')} planned, the larger share is {share:.1%}; "
        f"max_delete_share allows {limit:.1%}"
    )
    message += f" (not applied to a plan of at most {SMALL_PLAN.files:,} files and {format_bytes(SMALL_PLAN.bytes)})." if small else "."
    numbers = {"files": planned.files, "stored": stored.files, "share": share, "limit": limit}
    return _result("delete_share", small or share <= limit, message, overridable=True, numbers=numbers)
