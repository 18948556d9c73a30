"""The gates that a plan must pass (design 6.3). Each gate is a pure function from numbers to a
verdict that explains itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gc_assets.core.plan import Amount, GateResult, LiveCount, Unreadable
from gc_assets.core.units import format_bytes

# A default share never refuses a plan this small: in a young lake a few leftovers are a large part
# of little.
SMALL_PLAN: Final = Amount(files=1_000, bytes=10**9)
# More live files than this outside the listing are not single losses. Everything is then spelled in
# another way.
MAX_UNLISTED: Final = 0.001
NOTHING: Final = Amount()
OVERRIDE: Final = "To go on all the same, approve with `--override {name}`."
NO_OVERRIDE: Final = "Nothing overrides this gate."


def _result(name: str, passed: bool, message: str, *, overridable: bool, numbers: dict[str, float] | None = None) -> GateResult:
    way_out = "" if passed else " " + (OVERRIDE.format(name=name) if overridable else NO_OVERRIDE)
    return GateResult(name=name, passed=passed, message=message + way_out, overridable=overridable, numbers=numbers or {})


def live_set(live: int, refs: int) -> GateResult:
    """A storage whose lakes have refs has live files, unless none of their commits names any.
    Otherwise the mark read the wrong place (neon, reliability.md 2). `refs` are those of lakes
    whose commits name files.
    """
    message = f"{live:,} live files for {refs:,} refs."
    if live == 0 and refs:
        message += " Nothing would be live: expected at least one file. Check that the lakes' locations lie in this storage."
    return _result("live_set", live > 0 or refs == 0, message, overridable=False, numbers={"live": live, "refs": refs})


def unreadable_tables(unreadable: Sequence[Unreadable], limit: int, withheld: Amount = NOTHING) -> GateResult:
    """No more than so many tables cannot be read. More of them are no sick tables, but a catalog or
    a store that does not answer. `withheld` is what would be purged if all could be read.
    """
    message = f"{len(unreadable):,} tables or repositories cannot be read; max_sick allows {limit:,}."
    if unreadable:
        message += f" {'; '.join(item.told for item in unreadable[:5])}."
    numbers: dict[str, float] = {"sick": len(unreadable), "limit": limit}
    if withheld.files:
        message += f" {withheld.files:,} quarantined files ({format_bytes(withheld.bytes)}) are due to be purged and wait for that."
        numbers |= {"waiting_files": withheld.files, "waiting_bytes": withheld.bytes}
    return _result("sick_tables", len(unreadable) <= limit, message, overridable=True, numbers=numbers)


def never_read(unreadable: Sequence[Unreadable], storage: str) -> GateResult:
    """Nothing lies in the storage that no night read in full: what it needs would look like
    garbage.
    """
    unknown = [item for item in unreadable if item.stops(storage)]
    message = "every table that lies here was read in full once."
    if unknown:
        message = f"nobody knows what these need: {'; '.join(item.told for item in unknown[:5])}. Mend them, or drop them from the catalog."
    return _result("never_read", not unknown, message, overridable=False, numbers={"tables": len(unknown)})


def live_drop(live: LiveCount, before: LiveCount | None, limit: float) -> GateResult:
    """The live count of the storage, and that of each lake there, may fall by at most `limit` of
    that of the last accepted night.
    """
    if before is None:
        return _result("live_drop", True, f"{live.files:,} live files; no accepted night to compare with.", overridable=True)
    drop = _drop(live.files, before.files)
    message = f"{live.files:,} live files after {before.files:,} in the last accepted night: down {drop:.1%}"
    both = {name: (live.by_lake[name], files) for name, files in before.by_lake.items() if name in live.by_lake}
    fallen = {name: counts for name, counts in both.items() if _drop(*counts) > limit}
    if drop <= limit:
        message += "".join(f", lake {name} {now:,} after {then:,}" for name, (now, then) in sorted(fallen.items())[:5])
    message += f"; max_live_drop allows {limit:.1%}."
    numbers = {"live": live.files, "before": before.files, "drop": max([drop, *(_drop(*counts) for counts in fallen.values())])}
    return _result("live_drop", drop <= limit and not fallen, message, overridable=True, numbers={**numbers, "limit": limit})


def _drop(live: int, before: int) -> float:
    return max(0.0, (before - live) / before) if before else 0.0


def lakes_present(gone: Sequence[str]) -> GateResult:
    """Every lake that needed files of the storage in the last accepted night still does. Otherwise
    files that it shares with another lake lose their protection.
    """
    message = "every lake of the last accepted night is there."
    if gone:
        message = (
            f"{len(gone):,} lakes that needed files here are gone: {'; '.join(gone[:5])}. Put them back as they were, "
            "or say that a lake is to go: `gc-assets forget LAKE --by WHO`."
        )
    return _result("lakes_present", not gone, message, overridable=False, numbers={"lakes": len(gone)})


def metadata_present(missing: int, samples: Sequence[str]) -> GateResult:
    """Every live metadata object is in the inventory as it was decoded."""
    message = "every live metadata object is in the inventory."
    if missing:
        message = f"{missing:,} live metadata objects are missing from the inventory or not those that were read: {', '.join(samples[:5])}."
    return _result("metadata_present", missing == 0, message, overridable=False, numbers={"missing": missing})


def live_listed(live: int, unlisted: int, samples: Sequence[str]) -> GateResult:
    """Nearly every live file is in the inventory. Otherwise names and listing do not mean the same
    files (iceberg #4346).
    """
    share = unlisted / live if live else 0.0
    message = f"At most {unlisted:,} of {live:,} live files are not in the inventory."
    if unlisted:
        message += f" {MAX_UNLISTED:.1%} may be missing. They are lost, or spelled otherwise: {', '.join(samples[:5])}."
    return _result("live_listed", share <= MAX_UNLISTED, message, overridable=True, numbers={"live": live, "unlisted": unlisted})


def no_live_candidate(hits: int, samples: Sequence[str]) -> GateResult:
    """No candidate is a live key. One hit proves a false negative of the filter, and then nothing
    else of the filter can be trusted.
    """
    message = "no candidate is a live key."
    if hits:
        message = f"{hits:,} candidates are live keys, which the filter should have held: {', '.join(samples[:5])}. Report this as a bug."
    return _result("no_live_candidate", hits == 0, message, overridable=False, numbers={"hits": hits})


def spelling(hits: int, samples: Sequence[str]) -> GateResult:
    """No candidate equals a live key except for percent-encoding, doubled slashes or Unicode
    normalisation.
    """
    message = "no candidate is another spelling of a live key."
    if hits:
        message = (
            f"{hits:,} candidates equal a live key but for its spelling: {', '.join(samples[:5])}. Rename the file or repair the reference."
        )
    return _result("spelling", hits == 0, message, overridable=False, numbers={"hits": hits})


def storages_apart(overlaps: Sequence[tuple[str, str]]) -> GateResult:
    """No storage root equals or contains another, and no directory has two names in storages: under
    one name live files would look unreferenced.
    """
    message = "no storage contains another."
    if overlaps:
        pairs = ", ".join(f"{a} and {b}" for a, b in overlaps)
        message = f"storages overlap: {pairs}. Make one storage of them; leave a directory that is mounted twice one name."
    return _result("storages_apart", not overlaps, message, overridable=False, numbers={"overlaps": len(overlaps)})


def links(count: int, samples: Sequence[str]) -> GateResult:
    """No live file is reached through a symbolic link below the root, or from elsewhere through a
    link or a mount: its real file would look unreferenced.
    """
    message = "no live file is reached through a link or a second mount."
    if count:
        message = (
            f"{count:,} live files are reached through symbolic links or second mounts: {', '.join(samples[:5])}. "
            "Replace the link by its files, or let the lake name them where they are."
        )
    return _result("links", count == 0, message, overridable=False, numbers={"files": count})


def foreign_metadata(
    count: int, samples: Sequence[str], junk: int = 0, junk_samples: Sequence[str] = (), dead: Sequence[str] = ()
) -> GateResult:
    """No metadata of a table or repository that no configured lake knows lies under a claimed
    prefix. What is named like metadata and is none holds the files beside it, and no plan. `dead`
    are tables that people accepted as dead.
    """
    message = "no foreign table or repository under a claimed prefix."
    if count:
        message = (
            f"{count:,} metadata objects under claimed prefixes belong to no configured lake: {'; '.join(samples[:5])}. "
            "Add the catalog that knows them to lakes.yaml; say of a table that is dead that it is; or remove them by hand."
        )
    if junk:
        message += (
            f" {junk:,} objects are named like metadata and are none, and the files beside them are kept: {'; '.join(junk_samples[:5])}."
        )
    if dead:
        message += f" {len(dead):,} are accepted as dead: {'; '.join(dead[:5])}."
    return _result("foreign_metadata", count == 0, message, overridable=True, numbers={"objects": count})


def unfinished_apply(plan_ids: Sequence[str]) -> GateResult:
    """No earlier plan of the storage stopped in the middle. What such a plan moved is not in the
    books yet.
    """
    message = "no earlier plan is half applied."
    if plan_ids:
        message = (
            f"{len(plan_ids):,} plans began and did not finish: {', '.join(plan_ids[:5])}. "
            "Finish each with `gc-assets apply PLAN_ID` (it resumes from its log; where it can no longer read a lake, "
            "`gc-assets restore --plan PLAN_ID` first), then run again."
        )
    return _result("unfinished_apply", not plan_ids, message, overridable=False, numbers={"plans": len(plan_ids)})


def damaged_histories(found: Sequence[str]) -> GateResult:
    """No edit of history left a lake other than it was to be. What that edit lost may be among the
    candidates.
    """
    message = "no edit of history spoilt one."
    if found:
        message = f"{len(found):,} histories are not as an edit was to leave them. {' '.join(found[:5])}"
    return _result("spoilt_histories", not found, message, overridable=True, numbers={"histories": len(found)})


def delete_bytes(planned: Amount, limit: int) -> GateResult:
    message = f"{format_bytes(planned.bytes)} planned, max_delete_bytes allows {format_bytes(limit)}."
    return _result("delete_bytes", planned.bytes <= limit, message, overridable=True, numbers={"bytes": planned.bytes, "limit": limit})


def delete_share(planned: Amount, stored: Amount, limit: float, *, chosen: bool) -> GateResult:
    """The planned share of files and of bytes is within the limit. A limit that nobody chose lets a
    small plan pass whatever its share.
    """
    share = max(planned.files / max(stored.files, 1), planned.bytes / max(stored.bytes, 1))
    small = not chosen and planned.files <= SMALL_PLAN.files and planned.bytes <= SMALL_PLAN.bytes
    message = f"{planned.files:,} of {stored.files:,} files planned, {share:.1%} by the larger share; max_delete_share allows {limit:.1%}"
    message += f" (not applied to a plan of at most {SMALL_PLAN.files:,} files and {format_bytes(SMALL_PLAN.bytes)})." if small else "."
    numbers = {"files": planned.files, "stored": stored.files, "share": share, "limit": limit}
    return _result("delete_share", small or share <= limit, message, overridable=True, numbers=numbers)
