"""Decides which lake owns a key: the lake of the deepest claim above it. Pure, vectorised by
directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Owner(NamedTuple):
    """The lake, and in an Iceberg lake the table, that claims a prefix."""

    lake: str
    table_uuid: str | None


@dataclass(frozen=True, slots=True)
class Claims:
    """Canonical prefixes of one storage, each ending in `/` (or empty for the whole storage), with
    their owners.

    A prefix without an owner shields all that lies below it, from claims above and inside.
    """

    owners: dict[str, Owner | None]

    @classmethod
    def of(cls, rows: Sequence[tuple[str, Owner, bool]]) -> Claims:
        """Builds the claims from (prefix, owner, collect). If equal prefixes differ in `collect`,
        the one that must not be collected shields them all.
        """
        owners: dict[str, Owner | None] = {}
        for prefix, owner, collect in sorted(rows, key=lambda row: (row[0], row[2], row[1].lake, row[1].table_uuid or "")):
            if prefix and not prefix.endswith("/"):
                raise ValueError(f"a claim ends in '/', found {prefix!r}")
            owners.setdefault(prefix, owner if collect else None)
        return cls(owners)

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
        lakes = pa.array([owner.lake if owner else None for owner in owners], pa.string())
        tables = pa.array([owner.table_uuid if owner else None for owner in owners], pa.string())
        return lakes.take(directories.indices), tables.take(directories.indices)
