"""Read the prefixes that lakes claim in a storage, without the paths of gc-assets itself."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gc_assets.core.claims import TABLE_FOLDERS, Claims, Owner, PrefixClaim, narrow_claims
from gc_assets.core.paths import Location
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import Claim
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE

COLLECTOR = Owner("collector", None)


def claims_of(context: RunContext, storage_name: str, tables: Iterable[PublishedTable], dropped: Iterable[PrefixClaim] = ()) -> Claims:
    """Return the effective claims on a storage.

    `lake_refs` contributes the claims read with the refs, and `live_files` the claims found in
    metadata. Some files are always excluded because they are never garbage: the state and
    configuration of gc-assets, and files of configured catalogs.

    Args:
        tables: `lake_refs` and `live_files` of all lakes.
        dropped: Claims of dropped tables. They only apply to prefixes that have no other claim.
    """
    claims, wide = effective_claims(context, storage_name, tables)
    state, files = collector_paths(context, storage_name)
    found = Claims.of([*claims, *(PrefixClaim(key, COLLECTOR, collect=False) for key in state)], files, wide)
    shared = tuple(claim for claim in claims if claim.names is not None and not claim.collect)
    found = replace(found, shared=shared)
    added: dict[str, Owner | None] = {claim.prefix: claim.owner for claim in dropped}
    return replace(found, owners={**added, **found.owners}) if added else found


def effective_claims(
    context: RunContext, storage_name: str, tables: Iterable[PublishedTable]
) -> tuple[list[PrefixClaim], list[PrefixClaim]]:
    """Return the narrowed claims of lakes on a storage, and the claims that were too wide.

    `narrow_claims` decides which claims are too wide.

    Args:
        tables: `lake_refs` and `live_files` of the lakes.
    """
    return narrow_claims(list(_shield_shared(_claims(context, storage_name, tables))))


def _shield_shared(claims: Sequence[PrefixClaim]) -> Iterator[PrefixClaim]:
    """Turn metadata claims into shields (protected prefixes) if another lake uses their parent."""
    for claim in claims:
        if claim.names is not None and claim.collect:
            place = claim.prefix[: claim.prefix[:-1].rfind("/") + 1]
            others = (other.prefix for other in claims if other.owner.lake != claim.owner.lake)
            claim = replace(claim, collect=not any(prefix.startswith(place) or place.startswith(prefix) for prefix in others))
        yield claim


def collector_paths(context: RunContext, storage_name: str) -> tuple[list[str], list[str]]:
    """Return the keys of a storage's files that belong to gc-assets or to catalogs.

    Each path is resolved both as configured and with its symbolic links followed.

    Returns:
        The prefixes of the state, and the keys of single files.
    """
    state = Location.parse(context.config.state)
    files = [
        key
        for path in context.config.own_files()
        for key in _location_keys(context, storage_name, os.path.normpath(path), os.path.realpath(path))
    ]
    return list(_location_keys(context, storage_name, str(state), str(state.without_links()))), files


def notes_on_claims(context: RunContext, storage_name: str, claims: Claims) -> list[str]:
    """Return report messages for claims that are too wide, or in which unused ranges are kept."""
    locations = sorted({(claim.owner.lake, context.resolver().address(storage_name, claim.prefix)) for claim in claims.wide})
    return [
        f"lake {lake}: {address} is a whole storage, or contains a prefix that another table or lake claims. Only the directories "
        f"{' and '.join(TABLE_FOLDERS)} in it are swept. Give each table its own location."
        for lake, address in locations
    ] + [
        f"lake {claim.owner.lake}: unused ranges in {context.resolver().address(storage_name, claim.prefix)} are kept, because another "
        "lake uses files in the same place"
        for claim in claims.shared
    ]


def _claims(context: RunContext, storage_name: str, tables: Iterable[PublishedTable]) -> list[PrefixClaim]:
    rows = [
        (table, row)
        for table in tables
        for row in read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist()
        if row["storage"] == storage_name
    ]
    catalogs = {lake.name: lake.catalog_location() for lake in context.config.lakes}

    def identify(table: PublishedTable, row: Mapping[str, Any]) -> Hashable:
        return row["key"], row["table_uuid"], catalogs.get(table.receipt.owner)

    collected = {identify(table, row) for table, row in rows if row["collect"]}

    def is_left(table: PublishedTable, row: Mapping[str, Any]) -> bool:
        return identify(table, row) in collected and _is_outside_patterns(context, table, row)

    return [_to_claim(context, table.receipt.owner, row) for table, row in rows if not is_left(table, row)]


def _is_outside_patterns(context: RunContext, table: PublishedTable, row: Mapping[str, Any]) -> bool:
    """Check whether a claim protects a table that no pattern in `tables` of its lake matches.

    If another lake with the same catalog collects the table, such a claim can be ignored. Claims
    that protect unreadable tables always apply.
    """
    is_frozen_shield = table.receipt.asset == LAKE_REFS.name and not row["collect"] and row["table_name"] is not None
    return is_frozen_shield and not context.config.lake(table.receipt.owner).collects(row["table_name"])


def _to_claim(context: RunContext, lake: str, row: Mapping[str, Any]) -> PrefixClaim:
    if Claim(row["address"], row["table_uuid"], row["table_name"], row["collect"]).is_unread:
        return PrefixClaim(row["key"], Owner(lake, None), collect=False, table=f"unread {lake}/{row['table_name']}", is_unread=True)
    traits = context.kind(lake).files
    names = traits.metadata_names if row["collect"] and traits.is_metadata_claim(row["address"]) else None
    return PrefixClaim(row["key"], Owner(lake, row["table_uuid"]), row["collect"], row["location_of"] or row["table_uuid"], names=names)


def list_unread_shields(
    context: RunContext, storage_name: str, refs: Sequence[PublishedTable], live: Sequence[PublishedTable]
) -> list[PrefixClaim]:
    """Return the prefixes that are protected because of unreadable tables.

    As in a sweep, possible locations of tables that were never read are narrowed if they are too
    wide.

    Args:
        refs: `lake_refs` of all lakes.
        live: `live_files` of all lakes.
    """
    claims, _ = narrow_claims(_claims(context, storage_name, [*refs, *live]))
    of_live = (claim for claim in _claims(context, storage_name, live) if not claim.collect and not claim.is_unread)
    return [*(claim for claim in claims if claim.is_unread), *of_live]


def _location_keys(context: RunContext, storage_name: str, *names: str) -> Iterator[str]:
    """Yield the keys in the storage to which a path of gc-assets leads under each of its names."""
    locations = {context.resolver().resolve_one(name) for name in names}
    yield from (key for location in locations if location is not None for storage, key in [location] if storage == storage_name)


def prefixes_of(context: RunContext, storage_name: str, tables: Iterable[PublishedTable], owners: Collection[Owner]) -> tuple[str, ...]:
    """Return the key prefixes in a storage that the given tables and lakes claim."""
    return tuple(sorted(prefix for storage, prefix in list_claimed_prefixes(context, tables, owners) if storage == storage_name))


def list_claimed_prefixes(context: RunContext, tables: Iterable[PublishedTable], owners: Collection[Owner]) -> set[tuple[str, str]]:
    """Return the storages and key prefixes that the given tables and lakes claim.

    Args:
        tables: `lake_refs` and `live_files` of all lakes.
        owners: The tables, and the lakes with all their tables.
    """
    found: set[tuple[str, str]] = set()
    for table in tables:
        for row in read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist():
            owner = Owner(table.receipt.owner, row["table_uuid"])
            lake_owner = Owner(owner.lake, None)
            if row["storage"] is not None and (owner in owners or lake_owner in owners):
                found.add((row["storage"], row["key"]))
    return found
