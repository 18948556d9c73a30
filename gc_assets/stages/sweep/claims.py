"""Says whose the places of a storage are: what lakes claim, less what the collector shields."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gc_assets.core.claims import Claims, Owner
from gc_assets.stages.mark.lake_refs import CLAIMS_SIDE
from gc_assets.stages.night import Night
from gc_assets.state.journal import Published
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import CLAIMS

STATE = Owner("state", None)


def claims_of(night: Night, storage_name: str, tables: Iterable[Published]) -> Claims:
    """Returns the claims on a storage.

    Of `lake_refs` these are the claims that were frozen, of `live_files` those that metadata made.
    The collector's own tables are no lake's garbage, wherever somebody put them.
    """
    rows: list[tuple[str, Owner, bool]] = []
    for table in tables:
        claims = read_parts(night.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist()
        mine = [row for row in claims if row["storage"] == storage_name]
        rows += [(row["key"], Owner(table.receipt.owner, row["table_uuid"]), row["collect"]) for row in mine]
    own = night.resolver().resolve_one(f"{night.config.state.rstrip('/')}/")
    if own is not None and own[0] == storage_name:
        rows.append((own[1], STATE, False))
    return Claims.of(rows)


def prefixes_of(night: Night, storage_name: str, tables: Iterable[Published], owners: Collection[Owner]) -> tuple[str, ...]:
    """Returns the claims of these on a storage, as prefixes of keys."""
    found: set[str] = set()
    for table in tables:
        for row in read_parts(night.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist():
            owner = Owner(table.receipt.owner, row["table_uuid"])
            whole = Owner(owner.lake, None)
            if row["storage"] == storage_name and (owner in owners or whole in owners):
                found.add(row["key"])
    return tuple(sorted(found))
