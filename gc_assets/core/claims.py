"""Decides which lake owns a key: the lake of the deepest claim above it, if nothing shields the key.
What a table may claim is decided here too, for all kinds of lakes. Pure, vectorised by directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Owner(NamedTuple):
    """The lake, and in an Iceberg lake the table, that claims a prefix."""

    lake: str
    table_uuid: str | None


# Iceberg's writers put a table's files into these folders below its location, unless its properties
# say otherwise.
WRITTEN_TO: Final = ("data/", "metadata/")


@dataclass(frozen=True, slots=True)
class Claim:
    """A canonical prefix of a storage, ending in `/` (or empty for the whole storage), and whose it
    is.

    `table` is the identity of the table whose location it is; null where a lake claims the prefix
    outright. Nothing below a prefix that is not to `collect` is ever a candidate.
    """

    prefix: str
    owner: Owner
    collect: bool = True
    table: str | None = None


def own_claims(claims: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
    """Returns what the claims on a storage come to, and those of them that were too wide.

    The location of a table may be a whole storage, or hold a prefix of another table or lake. Then
    not all of it is the table's own: it claims only the folders that Iceberg writes to.
    """
    shared = too_wide((claim.prefix, claim.table or f"lake {claim.owner.lake}") for claim in claims)
    wide = [claim for claim in claims if claim.table is not None and claim.collect and claim.prefix in shared]
    narrow = [replace(claim, prefix=claim.prefix + folder) for claim in wide for folder in WRITTEN_TO]
    return [*(claim for claim in claims if claim not in wide), *narrow], wide


def too_wide(locations: Iterable[tuple[str, str]]) -> set[str]:
    """Returns the prefixes that are empty or hold the prefix of another table. `locations` are pairs
    of prefix and table.
    """
    tables: dict[str, set[str]] = {}
    for prefix, table in locations:
        tables.setdefault(prefix, set()).add(table)
    found = {prefix for prefix in tables if not prefix}
    above: list[str] = []
    for prefix in sorted(tables):
        while above and not prefix.startswith(above[-1]):
            above.pop()
        found |= {place for place in above if not tables[prefix] <= tables[place]}
        above.append(prefix)
    return found


@dataclass(frozen=True, slots=True)
class Claims:
    """The prefixes of one storage with their owners, and single keys that nobody owns. `wide` are the
    claims that were too wide.

    A prefix without an owner shields all that lies below it, from claims above and inside.
    """

    owners: dict[str, Owner | None]
    shielded: frozenset[str] = frozenset()
    wide: tuple[Claim, ...] = ()

    @classmethod
    def of(cls, claims: Iterable[Claim], shielded: Collection[str] = (), wide: Sequence[Claim] = ()) -> Claims:
        """Builds the claims. If equal prefixes differ in `collect`, the one that must not be
        collected shields them all.
        """
        owners: dict[str, Owner | None] = {}
        for claim in sorted(claims, key=lambda claim: (claim.prefix, claim.collect, claim.owner.lake, claim.owner.table_uuid or "")):
            if claim.prefix and not claim.prefix.endswith("/"):
                raise ValueError(f"a claim ends in '/', found {claim.prefix!r}")
            owners.setdefault(claim.prefix, claim.owner if claim.collect else None)
        return cls(owners, frozenset(shielded), tuple(wide))

    def owner_of(self, key: str) -> Owner | None:
        """Returns the owner of a key, null where nobody claims it or something shields it."""
        return None if key in self.shielded else self.owner(key[: key.rfind("/") + 1])

    def owner(self, directory: str) -> Owner | None:
        """Returns the owner of a directory spelled with its closing `/` (or empty for the root):
        the owner of the deepest claim, unless a shield is above.
        """
        deepest: Owner | None = None
        while True:
            if directory in self.owners:
                found = self.owners[directory]
                if found is None:
                    return None
                deepest = deepest or found
            if not directory:
                return deepest
            directory = directory[: directory[:-1].rfind("/") + 1]

    def resolve(self, keys: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Returns lake and table uuid per key. Both are null where nobody claims the key."""
        directories = pc.replace_substring_regex(keys, "[^/]*$", "").dictionary_encode()
        owners = [self.owner(directory) for directory in directories.dictionary.to_pylist()]
        lakes = pa.array([owner.lake if owner else None for owner in owners], pa.string()).take(directories.indices)
        tables = pa.array([owner.table_uuid if owner else None for owner in owners], pa.string()).take(directories.indices)
        if not self.shielded:
            return lakes, tables
        shielded, nobody = pc.is_in(keys, pa.array(sorted(self.shielded), keys.type)), pa.scalar(None, pa.string())
        return pc.if_else(shielded, nobody, lakes), pc.if_else(shielded, nobody, tables)
