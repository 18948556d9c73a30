"""What `doctor` asks of lakes: can each be read, does it show all, and are its places its own.

Each lake's refs are read once. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from gc_assets.core.claims import Claim, Claims, Owner, narrow_claims
from gc_assets.core.errors import FormatError, UsageError
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.core.paths import Location
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import FrozenRefs, as_incremental
from gc_assets.stages.mark.commit_rows import build_commit_rows
from gc_assets.stages.sweep.claims import collector_paths, notes_on_claims
from gc_assets.stores.store import find_links

_REPLACE: Final = "Replace the link by its files, or let the lake name them where they are."


def readable(context: RunContext, name: str, refs: FrozenRefs) -> Iterator[Finding]:
    """Says what of a lake could be read, and whether its places lie in storages."""
    yield Finding(name, "readable", OK, f"{len(refs.refs):,} refs, {len(refs.claims):,} claimed prefixes")
    for item in refs.unread:
        yield Finding(name, "sick", FAIL, item.reason, "Nothing below its claims is touched and nothing is purged until it can be read.")
    for note in refs.notes:
        yield Finding(name, "note", WARN, note)
    resolver = context.resolver()
    outside = [claim.address for claim in refs.claims if resolver.resolve_one(claim.address) is None]
    if outside:
        examples = ", ".join(sorted(outside)[:3])
        found = f"{len(outside):,} claimed prefixes lie in no storage: {examples}"
        yield Finding(name, "storages", WARN, found, "Add their storage to have them swept.")
    yield from _aliases(context, refs)


def _aliases(context: RunContext, refs: FrozenRefs) -> Iterator[Finding]:
    """Names metadata that a lake knows by an address in no storage, and that a link leads into one."""
    resolver = context.resolver()
    named = {source.address for source in refs.sources} | {root.address for root in refs.pinned if root.must_exist}
    for address in sorted(named):
        if resolver.resolve_one(address) is None and (real := _real(address)) is not None and (place := resolver.resolve_one(real)):
            found = f"the lake names {address}, in no storage, which is a symbolic link to {place[1]} in storage {place[0]}"
            yield Finding(refs.lake, "links", FAIL, f"{found}: under its own name it would look unreferenced", _REPLACE)


def _real(address: str) -> str | None:
    """Returns the address without symbolic links; null where that cannot be told."""
    try:
        return str(Location.parse(address).without_links()).rstrip("/")
    except (UsageError, FormatError):
        return None


def visible(context: RunContext, name: str, refs: FrozenRefs) -> Iterator[Finding]:
    """Checks that a lake shows us all of its history, where it can tell.

    Reads the history whole, as a first night does.
    """
    lake = context.lake(name)
    if as_incremental(lake) is None:
        return
    commits = [commit for source in refs.sources for commit in lake.commits(source)]
    if commits:
        graph = pa.Table.from_batches([build_commit_rows(commits, context.resolver())])
        lake.retain(refs, graph, context.clock.now(), context.clock.now())
    found = f"{len(commits):,} commits: no log is shorter, and no head's state other, than the server says"
    yield Finding(name, "visible", OK, found)


def places(context: RunContext, storage_name: str, frozen: Mapping[str, FrozenRefs]) -> Iterator[Finding]:
    """Checks that what lakes claim in a storage is theirs alone, and has one name."""
    said = [claim for refs in frozen.values() for claim in _claims(context, storage_name, refs)]
    _, wide = narrow_claims(said)
    claims = Claims.of(said, wide=wide)
    wrong = notes_on_claims(context, storage_name, claims)
    state, files = collector_paths(context, storage_name)
    for key in sorted({*state, *files}):
        if (owner := claims.owner_of(key)) is not None:
            address = context.resolver().address(storage_name, key)
            wrong.append(f"{address} is the collector's own or a catalog, and lies where lake {owner.lake} claims all; it is left alone")
    for sentence in wrong:
        yield Finding(storage_name, "claims", FAIL, sentence, "Move one of the two, or let the storage begin one directory above.")
    if not wrong:
        yield Finding(storage_name, "claims", OK, f"{len(said):,} claimed prefixes, each one table's or lake's alone")
    yield from _links(context, storage_name, claims)


def _claims(context: RunContext, storage_name: str, refs: FrozenRefs) -> Iterator[Claim]:
    resolver = context.resolver()
    for claim in refs.claims:
        place = resolver.resolve_one(claim.address)
        if place is not None and place[0] == storage_name:
            yield Claim(place[1], Owner(refs.lake, claim.table_uuid), claim.collect, claim.table_uuid)


def _links(context: RunContext, storage_name: str, claims: Claims) -> Iterator[Finding]:
    """Names the symbolic links of a storage. One that leads into another storage, or from or to what
    a lake claims, gives live files a second name.
    """
    for link in find_links(context.storage(storage_name)):
        here, there = (_place(context, path) for path in (link.path, link.target))
        found = f"{link.path} is a symbolic link to {link.target}"
        if there is not None and there[0] != storage_name:
            found += f", in storage {there[0]}: what lies there has two names"
            yield Finding(storage_name, "links", FAIL, found, _REPLACE)
        elif any(place is not None and _is_claimed(claims, place[1]) for place in (here, there)):
            found += ", and a lake claims one of the two: a live file that is reached through it stops the plans"
            yield Finding(storage_name, "links", FAIL, found, _REPLACE)
        else:
            yield Finding(storage_name, "links", WARN, f"{found}; no lake claims either", "It is not followed.")


def _place(context: RunContext, path: str) -> tuple[str, str] | None:
    """Returns the storage and the key of a file or directory. The key of a storage's root is empty."""
    place = context.resolver().resolve_one(f"{path}/")
    return None if place is None else (place[0], place[1].rstrip("/"))


def _is_claimed(claims: Claims, key: str) -> bool:
    below = f"{key}/" if key else ""
    return claims.owner_of(key) is not None or any(prefix.startswith(below) for prefix in claims.owners)
