"""Says whose the places of a storage are: what lakes claim, less what the collector shields."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

from gc_assets.core.claims import WRITTEN_TO, Claim, Claims, Owner, own_claims
from gc_assets.core.paths import Location
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE

COLLECTOR = Owner("collector", None)


def claims_of(context: RunContext, storage_name: str, tables: Iterable[PublishedTable]) -> Claims:
    """Returns the claims on a storage, as far as they may reach (`own_claims`).

    Of `lake_refs` these are the claims that were frozen, of `live_files` those that metadata made.
    The collector's own tables, its configuration and the files of configured catalogs are no lake's
    garbage, wherever somebody put them.
    """
    claims, wide = own_claims(_claims(context, storage_name, tables))
    state, files = collector_paths(context, storage_name)
    return Claims.of([*claims, *(Claim(key, COLLECTOR, collect=False) for key in state)], files, wide)


def collector_paths(context: RunContext, storage_name: str) -> tuple[list[str], list[str]]:
    """Returns the keys in a storage of what is the collector's own or a catalog: the prefixes of the
    state, and single files. Each by the name that it has and by the one to which links lead.
    """
    state = Location.parse(context.config.state)
    files = [
        key for path in context.config.own_files() for key in _location_keys(context, storage_name, os.path.normpath(path), os.path.realpath(path))
    ]
    return list(_location_keys(context, storage_name, str(state), str(state.without_links()))), files


def notes_on_claims(context: RunContext, storage_name: str, claims: Claims) -> list[str]:
    """Returns sentences on the claims that are too wide, for the report."""
    locations = sorted({(claim.owner.lake, context.resolver().address(storage_name, claim.prefix)) for claim in claims.wide})
    return [
        f"lake {lake}: {address} is the location of a table and a whole storage, or holds what another table or lake claims: only "
        f"{' and '.join(WRITTEN_TO)} below it are swept; give each table a location of its own"
        for lake, address in locations
    ]


def _claims(context: RunContext, storage_name: str, tables: Iterable[PublishedTable]) -> list[Claim]:
    rows = [
        (table.receipt.owner, row)
        for table in tables
        for row in read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist()
        if row["storage"] == storage_name
    ]
    return [
        Claim(row["key"], Owner(lake, row["table_uuid"]), row["collect"], row["location_of"] or row["table_uuid"]) for lake, row in rows
    ]


def _location_keys(context: RunContext, storage_name: str, *names: str) -> Iterator[str]:
    """Yields the keys of a place of ours in the storage, by each of its names."""
    locations = {context.resolver().resolve_one(name) for name in names}
    yield from (key for location in locations if location is not None for storage, key in [location] if storage == storage_name)


def prefixes_of(context: RunContext, storage_name: str, tables: Iterable[PublishedTable], owners: Collection[Owner]) -> tuple[str, ...]:
    """Returns the claims of these on a storage, as prefixes of keys."""
    found: set[str] = set()
    for table in tables:
        for row in read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist():
            owner = Owner(table.receipt.owner, row["table_uuid"])
            lake_owner = Owner(owner.lake, None)
            if row["storage"] == storage_name and (owner in owners or lake_owner in owners):
                found.add(row["key"])
    return tuple(sorted(found))
