"""Find the owner of a key, i.e. the lake with the deepest claim that contains the key.

Shielded keys have no owner. The module also narrows overly wide table claims for all lake kinds.
Lookups are vectorised by directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Owner(NamedTuple):
    """Owner of a claimed prefix: a lake and, in Iceberg lakes, a table."""

    lake: str
    table_uuid: str | None


# Iceberg writes to these folders under the table location, unless configured otherwise by table
# properties.
TABLE_FOLDERS: Final = ("data/", "metadata/")


@dataclass(frozen=True, slots=True)
class Claim:
    """Canonical prefix in a storage with its owner.

    Attributes:
        prefix: Prefix ending in `/`, or empty for the whole storage.
        owner: Owning lake and table.
        collect: False if files under the prefix must never become candidates.
        table: Table identity at this location, or None if the lake itself claims the prefix.
        is_unread: True for a possible location of a table that was never read.
        names: Regular expression for the names of the claimed files, which are directly in the
            prefix. All other files are shielded. If None, all files under the prefix are claimed.
    """

    prefix: str
    owner: Owner
    collect: bool = True
    table: str | None = None
    is_unread: bool = False
    names: str | None = None


def find_table_prefix(key: str) -> str:
    """Return the prefix of the table to which a metadata file may belong, given the file's key.

    It is the parent of `metadata/`, otherwise the file's directory.
    """
    directory = key.rpartition("/")[0]
    return "" if directory in {"", "metadata"} else f"{directory.removesuffix('/metadata')}/"


def find_table_location(address: str) -> str:
    """Do the same as `find_table_prefix`, given the address of a metadata file."""
    scheme, separator, path = address.partition("://")
    return f"{scheme}{separator}{find_table_prefix(path)}" if separator else find_table_prefix(address)


def narrow_claims(claims: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
    """Return the effective claims on a storage and the claims that were too wide.

    A table location may be a whole storage or contain another table's or lake's prefix. Such a
    table claims only the folders that Iceberg writes to. This also applies to the possible
    locations of tables that were never read.
    """
    shared = find_wide_prefixes((claim.prefix, claim.table or f"lake {claim.owner.lake}") for claim in claims)
    wide = [claim for claim in claims if claim.table is not None and (claim.collect or claim.is_unread) and claim.prefix in shared]
    narrow = [replace(claim, prefix=claim.prefix + folder) for claim in wide for folder in TABLE_FOLDERS]
    return [*(claim for claim in claims if claim not in wide), *narrow], [claim for claim in wide if claim.collect]


def find_wide_prefixes(locations: Iterable[tuple[str, str]]) -> set[str]:
    """Return prefixes that are empty or contain another table's prefix.

    `locations` are (prefix, table) pairs.
    """
    tables: dict[str, set[str]] = {}
    for prefix, table in locations:
        tables.setdefault(prefix, set()).add(table)
    found = {prefix for prefix in tables if not prefix}
    above: list[str] = []
    for prefix in sorted(tables):
        while above and not prefix.startswith(above[-1]):
            above.pop()
        found |= {outer for outer in above if not tables[prefix] <= tables[outer]}
        above.append(prefix)
    return found


@dataclass(frozen=True, slots=True)
class Claims:
    """Claimed prefixes in a storage with their owners.

    Attributes:
        owners: Owner per prefix. None shields everything under the prefix, regardless of other
            claims above or inside it.
        shielded: Single keys without an owner.
        wide: Claims that were too wide.
        names: Regular expression for the names of claimed files by prefix (`Claim.names`).
        shared: Claims with `names` that are shielded because another lake uses their location.
    """

    owners: dict[str, Owner | None]
    shielded: frozenset[str] = frozenset()
    wide: tuple[Claim, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    shared: tuple[Claim, ...] = ()

    @classmethod
    def of(cls, claims: Iterable[Claim], shielded: Collection[str] = (), wide: Sequence[Claim] = ()) -> Claims:
        """Build the claims. A prefix is shielded if its claims differ in `collect`."""
        owners: dict[str, Owner | None] = {}
        claims = list(claims)
        names = {claim.prefix: claim.names for claim in claims if claim.names is not None and claim.collect}
        for claim in sorted(claims, key=lambda claim: (claim.prefix, claim.collect, claim.owner.lake, claim.owner.table_uuid or "")):
            if claim.prefix and not claim.prefix.endswith("/"):
                raise ValueError(f"a claim must end in '/', found {claim.prefix!r}")
            owners.setdefault(claim.prefix, claim.owner if claim.collect else None)
        return cls(owners, frozenset(shielded), tuple(wide), names)

    def owner_of(self, key: str) -> Owner | None:
        """Return the owner of a key, or None if it is unclaimed or shielded."""
        directory, name = key[: key.rfind("/") + 1], key[key.rfind("/") + 1 :]
        if key in self.shielded or (directory in self.names and re.fullmatch(self.names[directory], name) is None):
            return None
        return self.owner(directory)

    def owner(self, directory: str) -> Owner | None:
        """Return the owner of a directory by its deepest claim, or None if it is shielded.

        `directory` ends in `/`, or is empty for the root.
        """
        deepest, start = None, directory
        while True:
            if directory in self.owners:
                found = self.owners[directory]
                if found is None or (directory in self.names and directory != start):
                    return None
                deepest = deepest or found
            if not directory:
                return deepest
            directory = directory[: directory[:-1].rfind("/") + 1]

    def deepest(self, directory: str) -> str:
        """Return the deepest claimed or shielded prefix above a directory, or ""."""
        while directory and directory not in self.owners:
            directory = directory[: directory[:-1].rfind("/") + 1]
        return directory

    def is_by_name(self, keys: pa.Array) -> pa.Array:
        """Return a mask of the keys whose claim is restricted to certain file names."""
        directories = pc.replace_substring_regex(keys, "[^/]*$", "")
        return pc.is_in(directories, pa.array(sorted(self.names), keys.type))

    def resolve(self, keys: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return a lake column and a table uuid column, with nulls for unclaimed keys."""
        directories = pc.replace_substring_regex(keys, "[^/]*$", "").dictionary_encode()
        owners = [self.owner(directory) for directory in directories.dictionary.to_pylist()]
        lakes = pa.array([owner.lake if owner else None for owner in owners], pa.string()).take(directories.indices)
        tables = pa.array([owner.table_uuid if owner else None for owner in owners], pa.string()).take(directories.indices)
        if not self.shielded and not self.names:
            return lakes, tables
        shielded, no_owner = pc.is_in(keys, pa.array(sorted(self.shielded), keys.type)), pa.scalar(None, pa.string())
        for prefix, pattern in self.names.items():
            inside = pc.equal(directories.dictionary, prefix).take(directories.indices)
            is_claimed = pc.match_substring_regex(pc.replace_substring_regex(keys, "(?s)^.*/", ""), f"^(?:{pattern})$")
            shielded = pc.or_(shielded, pc.and_not(inside, is_claimed))
        return pc.if_else(shielded, no_owner, lakes), pc.if_else(shielded, no_owner, tables)
