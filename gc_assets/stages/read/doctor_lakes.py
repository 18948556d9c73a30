"""Check for `doctor` that lakes are readable and complete, and do not share their locations.

The refs of each lake are read only once and passed to the checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from gc_assets.core.claims import Claims, Owner, PrefixClaim, narrow_claims
from gc_assets.core.commands import command
from gc_assets.core.errors import FormatError, UsageError
from gc_assets.core.findings import FAIL, HISTORY_EDITS, OK, SKIPPED, WARN, Finding
from gc_assets.core.paths import FILE, Location
from gc_assets.core.suggest import did_you_mean
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import kind_of
from gc_assets.lakes.protocol import FrozenRefs, UnreadableTable, as_incremental, as_preflight, as_probing, is_editable
from gc_assets.stages.mark.commit_rows import build_commit_rows
from gc_assets.stages.mark.reachable_snapshots import find_unused_rules
from gc_assets.stages.mark.released_files import find_last_rule_notes
from gc_assets.stages.read.browse import table_names
from gc_assets.stages.sweep.claims import collector_paths, notes_on_claims
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.summaries import LiveFilesSummary
from gc_assets.stores.store import find_links

_REPLACE: Final = "Replace the link by its files, or let the lake use their actual location."


def check_readable(context: RunContext, name: str, refs: FrozenRefs) -> Iterator[Finding]:
    """Report how many refs and claims a lake has, and which claims are outside all storages."""
    describe = context.kind(name).describe_format
    described = f"; {describe(refs)}" if describe is not None else ""
    yield Finding(name, "readable", OK, f"{count_of(len(refs.refs), 'ref')}, {count_of(len(refs.claims), 'claimed prefix')}{described}")
    yield from _check_unreadable(context, name, refs.unreadable)
    unused = find_unused_rules(context.config.lake(name), refs, context.clock.now())
    last = find_last_rule_notes(context, name)
    of_objects = () if last is None else (f"{note} (run of {last[0]})" for note in last[1])
    for note in (*unused, *refs.notes, *of_objects):
        if note not in refs.wrong_names:
            yield Finding(name, "note", WARN, note)
    for note in refs.wrong_names:
        yield Finding(name, "names", FAIL, note, "Correct the name in lakes.yaml. Until then, runs do not read any table of this lake.")
    resolver = context.resolver()
    outside = [claim.address for claim in refs.claims if not claim.is_unread and resolver.locate_one(claim.address) is None]
    if outside:
        examples = ", ".join(sorted(outside)[:3]) + (f" and {len(outside) - 3:,} more" if len(outside) > 3 else "")
        found = f"{count_of(len(outside), 'claimed prefix', 'are')} in no storage: {examples}"
        yield Finding(name, "storages", WARN, found, "Add their storage to sweep them.")
    yield from _aliases(context, refs)
    yield from check_assets(context, name, refs)


def _check_unreadable(context: RunContext, name: str, tables: Sequence[UnreadableTable]) -> Iterator[Finding]:
    """Report tables that cannot be read.

    Tables with the same cause, such as a denied request, are reported together. A table whose
    storage is not mounted is only reported as skipped.
    """
    absent, waiting, by_cause = find_absent_storages(context), Counter[str](), dict[str, list[UnreadableTable]]()
    for number, item in enumerate(tables):
        if (storage := context.resolver().storage_of(item.address)) in absent:
            waiting[storage] += 1
        else:
            by_cause.setdefault(item.cause or str(number), []).append(item)
    for items in by_cause.values():
        first, names = items[0], [item.table_name or name for item in items]
        more = f" and {len(items) - 3:,} more" if len(items) > 3 else ""
        found = first.reason if len(items) == 1 else f"tables {', '.join(names[:3])}{more} could not be read: {first.cause}"
        set_aside = command("set-aside", names[0], by="WHO", comment="WHY")
        advice = "Until they can be read, their files are not changed and nothing is purged. To purge without waiting for the first one"
        if len(items) == 1:
            advice = "Until it can be read, its files are not changed and nothing is purged. To purge without waiting for it"
        yield Finding(name, "unreadable", FAIL, found, f"{advice}, run `{set_aside}`.", first.cause)
    for storage, count in waiting.items():
        found = f"{count_of(count, 'table')} in storage {context.config.label_of(storage)}"
        yield Finding(name, "unreadable", SKIPPED, f"{found}: depends on the failed check listable")


def find_absent_storages(context: RunContext) -> set[str]:
    """Return local storages whose directory does not exist, for example because it is not mounted.

    The `listable` check of such a storage fails, which explains why its tables cannot be read.
    """
    places = {item.name: Location.parse(item.location) for item in context.config.storages}
    return {name for name, place in places.items() if place.scheme == FILE and not Path(place.root).is_dir()}


def check_assets(context: RunContext, name: str, refs: FrozenRefs) -> Iterator[Finding]:
    """Report tables under `assets` in lakes.yaml that the lake neither has nor ever had."""
    assets = {item.key: item.table for item in context.config.lake(name).assets if item.table is not None}
    if not assets or context.kind(name).is_one_table:
        return
    read = {item.table_name for items in (refs.refs, refs.sources, refs.unreadable) for item in items}
    missing = {key: table for key, table in assets.items() if table not in read}
    # Refs of a Nessie lake do not contain table names.
    known = sorted({item for item in read if item is not None}.union(table_names(context.state, name) if missing else ()))
    for key, table in missing.items():
        if table not in known:
            found = f"asset {key}: the lake has no table {table}{did_you_mean(table, known)}"
            yield Finding(
                name, "assets", WARN, found, "Correct `assets` in lakes.yaml. An asset has no figures before its table is written."
            )


def check_edits(context: RunContext, name: str, refs: FrozenRefs) -> Iterator[Finding]:
    """Check that the lake can be edited, unless no storage is in `apply` mode."""
    if not any(storage.mode == "apply" for storage in context.config.storages):
        return
    yield from _probe_edits(context, name)
    lake = as_preflight(context.lake(name))
    if lake is None:
        return
    tables = {item.table_uuid: item.table_name for item in refs.sources if item.table_uuid and item.table_name and is_editable(item)}
    for uuid, reason in lake.find_uneditable(tables).items():
        todo = "Its expired files stay. Expire it with an engine that can commit to it."
        yield Finding(name, HISTORY_EDITS, WARN, f"table {tables[uuid]}: {reason}", todo)


def _probe_edits(context: RunContext, name: str) -> Iterator[Finding]:
    """Check whether gc-assets may edit the lake, or report that this cannot be checked."""
    lake = as_probing(context.lake(name))
    if lake is not None:
        finding = lake.probe_edits()
        if finding is not None:
            yield finding
    elif context.kind(name).edits_history or context.config.lake(name).idle_rules:
        found = "the right to edit is not checked, because no request that checks it is certain to change nothing"
        yield Finding(name, HISTORY_EDITS, SKIPPED, found, "If an apply is denied, later plans leave out these edits, and show the error.")


def check_decoder(context: RunContext, name: str) -> Iterator[Finding]:
    """Report which library decodes the lake's containers on this machine, if there is a choice."""
    describe = kind_of(context.config.lake(name)).describe_decoder
    if describe is not None:
        yield Finding(name, "decoder", OK, describe())


def _aliases(context: RunContext, refs: FrozenRefs) -> Iterator[Finding]:
    """Report metadata files with an address outside all storages that links into a storage."""
    resolver = context.resolver()
    named = {source.address for source in refs.sources} | {root.address for root in refs.pinned if root.must_exist}
    for address in sorted(named):
        if (
            resolver.locate_one(address) is None
            and (actual := _without_links(address)) is not None
            and (resolved := resolver.locate_one(actual))
        ):
            found = f"the lake refers to {address}, outside all storages, a symbolic link to {resolved[1]} in storage {resolved[0]}"
            yield Finding(refs.lake, "links", FAIL, f"{found}: under that key it would look unreferenced", _REPLACE)


def _without_links(address: str) -> str | None:
    """Resolve symbolic links in an address. Returns None if this is not possible."""
    try:
        return str(Location.parse(address).without_links()).rstrip("/")
    except (UsageError, FormatError):
        return None


def check_history(context: RunContext, name: str, refs: FrozenRefs) -> Iterator[Finding]:
    """Check that the lake's server exposes the complete history, if the kind of lake allows it.

    Like the first run, this reads the whole history.
    """
    lake = context.lake(name)
    if as_incremental(lake) is None:
        return
    commits = [commit for source in refs.sources for commit in lake.commits(source)]
    if commits:
        graph = pa.Table.from_batches([build_commit_rows(commits, context.resolver())])
        lake.retain(refs, graph, context.clock.now(), context.clock.now())
    found = f"{count_of(len(commits), 'commit')}: all logs are complete, and all heads match the state that the server reports"
    yield Finding(name, "visible", OK, found)


def check_addresses(context: RunContext, name: str) -> Iterator[Finding]:
    """Report addresses in the last run that may be other names for objects in a storage."""
    last = context.state.latest(name, LIVE_FILES.name)
    summary = last.summary(LiveFilesSummary) if last is not None else None
    if last is not None and summary is not None and summary.unknown_addresses:
        examples = "; ".join(summary.unknown_address_samples[:3])
        found = (
            f"in the run of {last.receipt.run_date}, {count_of(summary.unknown_addresses, 'address')} had an unknown location: {examples}"
        )
        remedy = "If they are other names of a storage, add their common prefix to its `aliases`. Otherwise, no action is required."
        yield Finding(name, "addresses", WARN, found, remedy)


def check_claims(context: RunContext, storage_name: str, frozen: Mapping[str, FrozenRefs]) -> Iterator[Finding]:
    """Check that no two lakes claim the same location, and that links do not give it two paths."""
    claimed, claims = _read_claims(context, storage_name, frozen)
    wrong = _describe_conflicts(context, storage_name, claims)
    for sentence in wrong:
        yield Finding(storage_name, "claims", FAIL, sentence, "Move one of the two, or configure the storage one directory higher.")
    if not wrong:
        yield Finding(storage_name, "claims", OK, f"{count_of(claimed, 'claimed prefix')}, each of a single table or lake")
    yield from _links(context, storage_name, claims)


def find_conflicts(context: RunContext, storage_name: str, frozen: Mapping[str, FrozenRefs]) -> list[str]:
    """Describe the conflicts between claims, as `check_claims` does."""
    return _describe_conflicts(context, storage_name, _read_claims(context, storage_name, frozen)[1])


def _read_claims(context: RunContext, storage_name: str, frozen: Mapping[str, FrozenRefs]) -> tuple[int, Claims]:
    claimed = [claim for refs in frozen.values() for claim in _claims(context, storage_name, refs)]
    _, wide = narrow_claims(claimed)
    return len(claimed), Claims.of(claimed, wide=wide)


def _describe_conflicts(context: RunContext, storage_name: str, claims: Claims) -> list[str]:
    wrong = notes_on_claims(context, storage_name, claims)
    state, files = collector_paths(context, storage_name)
    for key in sorted({*state, *files}):
        if (owner := claims.owner_of(key)) is not None:
            address = context.resolver().address(storage_name, key)
            wrong.append(f"{address} belongs to the collector or a catalog, but is under a claim of lake {owner.lake}; it is not swept")
    return wrong


def _claims(context: RunContext, storage_name: str, refs: FrozenRefs) -> Iterator[PrefixClaim]:
    resolver = context.resolver()
    for claim in refs.claims:
        resolved = resolver.locate_one(claim.address)
        if resolved is not None and resolved[0] == storage_name:
            table = f"unread {refs.lake}/{claim.table_name}" if claim.is_unread else claim.table_uuid
            yield PrefixClaim(resolved[1], Owner(refs.lake, claim.table_uuid), claim.collect, table, claim.is_unread)


def _links(context: RunContext, storage_name: str, claims: Claims) -> Iterator[Finding]:
    """Report symbolic links in a storage.

    A link is a failure if it leads into another storage, or if a lake claims the link or its
    target. In both cases, live files have a second address.
    """
    for link in find_links(context.storage(storage_name)):
        source, target = (_resolve_path(context, path) for path in (link.path, link.target))
        found = f"{link.path} is a symbolic link to {link.target}"
        if target is not None and target[0] != storage_name:
            found += f", in storage {target[0]}: its files have two addresses"
            yield Finding(storage_name, "links", FAIL, found, _REPLACE)
        elif any(resolved is not None and _is_claimed(claims, resolved[1]) for resolved in (source, target)):
            found += ", and a lake claims one of the two: if a live file has the link in its path, plans are refused"
            yield Finding(storage_name, "links", FAIL, found, _REPLACE)
        else:
            yield Finding(storage_name, "links", WARN, f"{found}; no lake claims either", "It is not followed.")


def _resolve_path(context: RunContext, path: str) -> tuple[str, str] | None:
    """Split a path into storage and key. The root of a storage has an empty key."""
    resolved = context.resolver().locate_one(f"{path}/")
    return None if resolved is None else (resolved[0], resolved[1].rstrip("/"))


def _is_claimed(claims: Claims, key: str) -> bool:
    below = f"{key}/" if key else ""
    return claims.owner_of(key) is not None or any(prefix.startswith(below) for prefix in claims.owners)
