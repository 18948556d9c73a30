"""Determine which lake claims (owns) the file with a given key.

A claim is a prefix in a storage that belongs to a lake. If several claims contain the key, the one
with the longest prefix decides. Parts of a storage can be shielded, so that keys in them do not
have an owner. Claims of tables that are too wide are narrowed, in the same way for all kinds of
lakes. Owners are looked up once for each directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Owner(NamedTuple):
    """The lake that claims a prefix and, in Iceberg lakes, the table."""

    lake: str
    table_uuid: str | None


# Iceberg writes to these folders in the table location, unless table properties specify others.
TABLE_FOLDERS: Final = ("data/", "metadata/")


@dataclass(frozen=True, slots=True)
class PrefixClaim:
    """A prefix in a storage, and the lake and table that own it.

    Attributes:
        prefix: Canonical prefix with a trailing `/`, or "" for the whole storage.
        owner: The lake and table that own the prefix.
        collect: False if files under the prefix are shielded and must never become candidates.
        table: Identity of the table at this location, or None if the lake itself claims the prefix.
        is_unread: True if this is a possible location of a table that was never read.
        names: Regular expression for file names. If set, only matching files directly in the prefix
            are claimed, and all others are shielded. If None, everything in the prefix is claimed.
    """

    prefix: str
    owner: Owner
    collect: bool = True
    table: str | None = None
    is_unread: bool = False
    names: str | None = None


def find_table_prefix(key: str) -> str:
    """Derive the prefix of a table from the key of a metadata file that may belong to it.

    For a file in a directory `metadata/`, this is the directory's parent. For any other file, this
    is the file's directory.
    """
    directory = key.rpartition("/")[0]
    return "" if directory in {"", "metadata"} else f"{directory.removesuffix('/metadata')}/"


def find_table_location(address: str) -> str:
    """Derive the location of a table from the address of a metadata file."""
    scheme, separator, path = address.partition("://")
    return f"{scheme}{separator}{find_table_prefix(path)}" if separator else find_table_prefix(address)


def narrow_claims(claims: Sequence[PrefixClaim]) -> tuple[list[PrefixClaim], list[PrefixClaim]]:
    """Restrict table claims that are too wide to the folders written by Iceberg.

    A claim is too wide if the table location is a whole storage, or contains a prefix of another
    table or lake. The same applies to possible locations of tables that were never read.

    Returns:
        The effective claims on the storage, and the claims that were too wide.
    """
    shared = find_wide_prefixes((claim.prefix, claim.table or f"lake {claim.owner.lake}") for claim in claims)
    wide = [claim for claim in claims if claim.table is not None and (claim.collect or claim.is_unread) and claim.prefix in shared]
    narrow = [replace(claim, prefix=claim.prefix + folder) for claim in wide for folder in TABLE_FOLDERS]
    return [*(claim for claim in claims if claim not in wide), *narrow], [claim for claim in wide if claim.collect]


def find_wide_prefixes(locations: Iterable[tuple[str, str]]) -> set[str]:
    """Find prefixes that are empty or contain the prefix of another table.

    Args:
        locations: Pairs of prefix and table.
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
    """All claims on a storage.

    Attributes:
        owners: The owner of each prefix. None shields everything under the prefix, regardless of
            claims above or inside it.
        shielded: Single keys that do not have an owner.
        wide: Claims that were too wide.
        names: Regular expressions for file names by prefix, see `PrefixClaim.names`.
        shared: Claims with `names` that are shielded because another lake uses the same location.
    """

    owners: dict[str, Owner | None]
    shielded: frozenset[str] = frozenset()
    wide: tuple[PrefixClaim, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    shared: tuple[PrefixClaim, ...] = ()

    @classmethod
    def of(cls, claims: Iterable[PrefixClaim], shielded: Collection[str] = (), wide: Sequence[PrefixClaim] = ()) -> Claims:
        """Index claims by prefix. A prefix is shielded if one of its claims has `collect=False`."""
        owners: dict[str, Owner | None] = {}
        claims = list(claims)
        names = {claim.prefix: claim.names for claim in claims if claim.names is not None and claim.collect}
        for claim in sorted(claims, key=lambda claim: (claim.prefix, claim.collect, claim.owner.lake, claim.owner.table_uuid or "")):
            if claim.prefix and not claim.prefix.endswith("/"):
                raise ValueError(f"the prefix of a claim must end in '/', found {claim.prefix!r}")
            owners.setdefault(claim.prefix, claim.owner if claim.collect else None)
        return cls(owners, frozenset(shielded), tuple(wide), names)

    @classmethod
    def of_shields(cls, shields: Iterable[str]) -> Claims:
        """Build claims in which only these keys, and all keys under these prefixes, have no owner.

        Prefixes end in `/`, or are empty for the whole storage.
        """
        owner, names = Owner("", None), set(shields)
        prefixes = {name for name in names if not name or name.endswith("/")}
        # The first claim covers the whole storage, so that all other keys have an owner.
        return cls.of([PrefixClaim("", owner), *(PrefixClaim(prefix, owner, collect=False) for prefix in prefixes)], names - prefixes)

    def owner_of(self, key: str) -> Owner | None:
        """Return the owner of a key, or None if it is unclaimed or shielded."""
        directory, name = key[: key.rfind("/") + 1], key[key.rfind("/") + 1 :]
        if key in self.shielded or (directory in self.names and re.fullmatch(self.names[directory], name) is None):
            return None
        return self.owner(directory)

    def owner(self, directory: str) -> Owner | None:
        """Return the owner of the files in a directory, or None if it is unclaimed or shielded.

        Args:
            directory: The directory with a trailing `/`, or "" for the root of the storage.
        """
        deepest = None
        for at in upwards(directory):
            if at in self.owners:
                found = self.owners[at]
                if found is None or (at in self.names and at != directory):
                    return None
                deepest = deepest or found
        return deepest

    def deepest(self, directory: str) -> str:
        """Return the deepest claimed or shielded prefix that contains a directory, or ""."""
        return next((at for at in upwards(directory) if at in self.owners), "")

    def is_by_name(self, keys: pa.Array) -> pa.Array:
        """Return a mask that is true for keys in claims restricted to certain file names."""
        return pc.is_in(directories_of(keys), pa.array(sorted(self.names), keys.type))

    def resolve(self, keys: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Look up the owners of many keys.

        Returns:
            A column of lakes and a column of table UUIDs. In rows of keys without an owner, both
            are null.
        """
        directories = directories_of(keys).dictionary_encode()
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


def upwards(directory: str) -> Iterator[str]:
    """Yield a directory, each of its ancestors, and "" for the whole storage."""
    while directory:
        yield directory
        directory = directory[: directory[:-1].rfind("/") + 1]
    yield ""


def directories_of(keys: pa.Array) -> pa.Array:
    """Return the directory of each key, with a trailing slash, or "" for the root of the storage."""
    return pc.replace_substring_regex(keys, "[^/]*$", "")
