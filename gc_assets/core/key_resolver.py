"""Resolve addresses to file identities, i.e. storage and canonical key.

Addresses are accepted as written by each system, and parsed by `paths.py`. All addresses of an
object resolve to the same key, and different objects never share a key.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.byte_scan import find_rows, has_irregular_components
from gc_assets.core.errors import FormatError, UsageError
from gc_assets.core.paths import FILE, S3, Location, Scheme, SymbolicLinks, collapse_path, parse_address

# Common spellings. All others take a slower path.
_USUAL_SPELLINGS: Final[dict[Scheme, tuple[str, ...]]] = {
    FILE: ("file://", "file:", "", "file://localhost"),
    S3: ("s3://", "s3a://", "s3n://"),
}
_TO_THE_END: Final = 2**31 - 1
_PERCENT: Final = ord("%")
_NOT_ASCII: Final = 0x80


class KeyResolver:
    """Resolver from addresses to (storage, key), picklable and fast for batches of millions.

    The longest matching root wins. A local address outside all roots still belongs to a storage if
    its directory is under a root after resolving symbolic links.
    """

    def __init__(self, storages: Sequence[tuple[str, str]]) -> None:
        """Create a resolver.

        Args:
            storages: (name, location) pairs.

        Raises:
            UsageError: If a name is repeated or a location is invalid.
        """
        self._locations = {name: Location.parse(location) for name, location in storages}
        if len(self._locations) != len(storages):
            raise UsageError(f"storage names repeat: {', '.join(name for name, _ in storages)}; every storage needs its own")
        self._roots = sorted(self._locations.items(), key=lambda item: -len(item[1].root))
        self._links = SymbolicLinks()

    def address(self, storage: str, key: str) -> str:
        """Return the canonical address of an object.

        Raises:
            UsageError: If the storage is unknown.
        """
        if storage not in self._locations:
            raise UsageError(f"unknown storage {storage!r}; configured: {', '.join(sorted(self._locations)) or 'none'}")
        return f"{self._locations[storage]}{key}"

    def resolve_one(self, address: str) -> tuple[str, str] | None:
        """Return (storage, key), or None for an external address.

        Raises:
            FormatError: If the address is relative, contains a `..` component or a host, or has no
                key.
            StoreError: If a symbolic link in the path cannot be read.
        """
        parsed = parse_address(address)
        if parsed is None:
            return None
        scheme, path = parsed
        if "/" not in path:
            raise FormatError(f"address {address!r} names a bucket without a key; expected an object")
        for name, location in self._roots:
            if scheme == location.scheme and path.startswith(location.root):
                return name, path[len(location.root) :]
        return self._resolve_through_links(path) if scheme == FILE else None

    def resolve(self, addresses: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Return a storage name column and a key column.

        Rows with missing or external addresses are null in Arrow. Raises the same errors as
        `resolve_one`.
        """
        values = _one_array(addresses).cast(pa.binary())
        rows = np.arange(len(values))
        answers = [_ResolvedRows(rows[:0], pa.array([], pa.string()), pa.array([], pa.binary()))]
        for prefix, name in self._usual_prefixes():
            matches = pc.fill_null(pc.starts_with(values, prefix), False)
            if not matches.true_count:
                continue
            matched = values if matches.true_count == len(values) else values.filter(matches)
            keys = pc.binary_slice(matched, len(prefix), _TO_THE_END)
            regular = ~has_irregular_components(keys)
            if not regular.all():
                keys = keys.filter(pa.array(regular))
            taken = matches.to_numpy(zero_copy_only=False).copy()
            taken[taken] = regular
            answers.append(_ResolvedRows(rows[taken], pa.repeat(name, len(keys)), keys))
            if taken.all():
                break
            values, rows = values.filter(pa.array(~taken)), rows[~taken]
        else:
            answers.append(self._resolve_rest(values, rows))
        return _merge(answers)

    def _usual_prefixes(self) -> Iterator[tuple[str, str]]:
        for name, location in self._roots:
            for spelling in _USUAL_SPELLINGS[location.scheme]:
                yield spelling + location.root, name

    def _resolve_rest(self, values: pa.Array, rows: NDArray[np.int64]) -> _ResolvedRows:
        """Resolve addresses individually, but each directory only once."""
        directories: dict[str, tuple[str, str] | None] = {}
        names: list[str | None] = []
        keys: list[str | None] = []
        for address in values.cast(pa.string()).to_pylist():
            if address is None:
                resolved = None
            else:
                directory, _, name = address.rpartition("/")
                if name in {"", ".", ".."}:
                    resolved = self.resolve_one(address)
                elif directory in directories:
                    inside = directories[directory]
                    resolved = inside and (inside[0], inside[1] + name)
                else:
                    resolved = self.resolve_one(address)
                    directories[directory] = resolved and (resolved[0], resolved[1][: -len(name)])
            names.append(resolved and resolved[0])
            keys.append(resolved and resolved[1])
        return _ResolvedRows(rows, pa.array(names, pa.string()), pa.array(keys, pa.string()).cast(pa.binary()))

    def _resolve_through_links(self, path: str) -> tuple[str, str] | None:
        directory, _, name = path.rpartition("/")
        local = [(storage, self._links.real(location.root)) for storage, location in self._roots if location.scheme == FILE]
        if not local or "\0" in path:  # file systems do not allow NUL in names
            return None
        real = self._links.real(directory + "/")
        for storage, root in sorted(local, key=lambda item: -len(item[1])):
            if real.startswith(root):
                return storage, real[len(root) :] + name
        return None


def loosen_spelling(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Normalize keys so that different spellings of a name are equal.

    Undoes repeated percent-encoding, doubled slashes, `/./` and Unicode composition. Only use the
    result to find near misses, never as an identity.
    """
    values = _one_array(keys).cast(pa.string())
    suspect = has_irregular_components(values) | find_rows(values, lambda byte, _: (byte == _PERCENT) | (byte >= _NOT_ASCII))
    if not suspect.any():
        return values
    mask = pc.and_(pa.array(suspect), pc.is_valid(values))
    return pc.replace_with_mask(values, mask, pa.array([_loosen(key) for key in values.filter(mask).to_pylist()], values.type))


def _loosen(key: str) -> str:
    raw = key.encode()
    while (decoded := unquote_to_bytes(raw)) != raw:
        raw = decoded
    return collapse_path(unicodedata.normalize("NFC", raw.decode(errors="backslashreplace")))[1:]


@dataclass(frozen=True, slots=True)
class _ResolvedRows:
    """Storage and key for some rows in a batch."""

    rows: NDArray[np.int64]
    names: pa.Array
    keys: pa.Array


def _merge(answers: Sequence[_ResolvedRows]) -> tuple[pa.Array, pa.Array]:
    answers = [answer for answer in answers if len(answer.rows)] or answers[:1]
    names = pa.concat_arrays([answer.names for answer in answers])
    keys = pa.concat_arrays([answer.keys for answer in answers]).cast(pa.string())
    if len(answers) == 1:
        return names, keys
    order = pa.array(np.argsort(np.concatenate([answer.rows for answer in answers])))
    return names.take(order), keys.take(order)


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
