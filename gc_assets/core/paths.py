"""One identity for a file: the storage it lies in and its canonical key there (design 6.2).

Addresses come as systems wrote them. Two addresses of the same object resolve to the same key;
addresses of different objects never do. Percent signs and Unicode are data, compared as bytes.
Knows the rules of local disks and S3, and touches the disk in one place only, `SymbolicLinks`.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, Self
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.byte_scan import has_irregular_components, rows_with
from gc_assets.core.errors import FormatError, StoreError, UsageError

FILE: Final = "file"
S3: Final = "s3"
Scheme = Literal["file", "s3"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ALIASES: Final[dict[str, Scheme]] = {"file": FILE, "s3": S3, "s3a": S3, "s3n": S3}
# The spellings that writers use; an address in any other one is resolved too, only slower.
_USUAL_SPELLINGS: Final[dict[Scheme, tuple[str, ...]]] = {
    FILE: ("file://", "file:", "", "file://localhost"),
    S3: ("s3://", "s3a://", "s3n://"),
}
_TO_THE_END: Final = 2**31 - 1
_PERCENT: Final = ord("%")
_NOT_ASCII: Final = 0x80


@dataclass(frozen=True, slots=True)
class Location:
    """A place below which objects lie. `root` is an absolute path or `bucket/prefix`, and always
    ends in one `/`.
    """

    scheme: Scheme
    root: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a location as text. Raises `UsageError` for anything but an absolute local path or
        an S3 location.
        """
        try:
            place = _parse(text)
        except FormatError as error:
            raise UsageError(f"storage location {text!r}: {error}") from None
        if place is None:
            raise UsageError(f"storage location {text!r} is on no supported store; write file:///path/ or s3://bucket/prefix/")
        scheme, path = place
        return cls(scheme, path if path.endswith("/") else path + "/")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.root}"

    def contains(self, other: Location) -> bool:
        """True for the location itself and everything below it, by whole path segments."""
        return self.scheme == other.scheme and other.root.startswith(self.root)

    def without_links(self) -> Location:
        """Returns the same place with symbolic links resolved on this machine's disk."""
        return self if self.scheme != FILE else Location(FILE, os.path.realpath(self.root).rstrip("/") + "/")


def overlapping(locations: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns pairs of (name, location) whose locations are equal or nested, the outer one first."""
    parsed = [(name, Location.parse(location)) for name, location in locations]
    pairs: list[tuple[str, str]] = []
    for (first, one), (second, other) in combinations(parsed, 2):
        if one.contains(other):
            pairs.append((first, second))
        elif other.contains(one):
            pairs.append((second, first))
    return pairs


def scheme_of(address: str) -> str:
    """Returns the scheme of an address by its one name. Aliases become one, a bare path is `file`,
    and an unknown scheme is returned in lower case.
    """
    match = _SCHEME.match(address)
    return FILE if match is None else _ALIASES.get(match[1].lower(), match[1].lower())


def bucket_and_key(address: str) -> tuple[str, str]:
    """Returns the bucket and the key that an address on S3 names, byte for byte. The key of a
    bucket's own address is empty.

    Raises `StoreError` for an address that is not on S3.
    """
    match = _SCHEME.match(address)
    if match is None or _ALIASES.get(match[1].lower()) != S3:
        raise StoreError(f"{address!r} is not on S3; expected s3://bucket/key")
    bucket, _, key = _bucket_and_key(address, address[match.end() :]).partition("/")
    return bucket, key


class SymbolicLinks:
    """Where local directories really are. Each directory is looked up on the disk once."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def real(self, directory: str) -> str:
        """Returns the directory without symbolic links, ending in `/`. A directory that does not
        exist stays as it is written.

        Raises `StoreError` where the disk does not let us see whether there is a link.
        """
        if directory not in self._real:
            try:
                found = os.path.realpath(directory, strict=True)
            except (FileNotFoundError, NotADirectoryError):
                found = os.path.realpath(directory)
            except OSError as error:
                raise StoreError(
                    f"directory {directory!r}: {error.strerror}, so nobody can tell whether it leads into a storage; "
                    "make it readable for this process, or mend the link"
                ) from error
            self._real[directory] = found.rstrip("/") + "/"
        return self._real[directory]


class KeyResolver:
    """Resolves addresses to (storage, key). Pickles; made for batches of millions in executors.

    The longest root wins. A local address below no root still counts as inside if its directory,
    with symbolic links resolved, lies below one.
    """

    def __init__(self, storages: Sequence[tuple[str, str]]) -> None:
        """`storages` are (name, location). Raises `UsageError` for a repeated name or a location
        that cannot be.
        """
        self._locations = {name: Location.parse(location) for name, location in storages}
        if len(self._locations) != len(storages):
            raise UsageError(f"storage names repeat: {', '.join(name for name, _ in storages)}; every storage needs its own")
        self._roots = sorted(self._locations.items(), key=lambda item: -len(item[1].root))
        self._links = SymbolicLinks()

    def address(self, storage: str, key: str) -> str:
        """Returns the one canonical spelling of an object's address. Raises `UsageError` for an
        unknown storage.
        """
        if storage not in self._locations:
            raise UsageError(f"no storage {storage!r}; configured are {', '.join(sorted(self._locations)) or 'none'}")
        return f"{self._locations[storage]}{key}"

    def resolve_one(self, address: str) -> tuple[str, str] | None:
        """Returns (storage, key), or null for an external address.

        Raises `FormatError` for an address that is relative, has a `..` component, or names a host
        or no key. Raises `StoreError` where a symbolic link on its way cannot be read.
        """
        place = _parse(address)
        if place is None:
            return None
        scheme, path = place
        if "/" not in path:
            raise FormatError(f"address {address!r} names a bucket and no key, so it is no object")
        for name, location in self._roots:
            if scheme == location.scheme and path.startswith(location.root):
                return name, path[len(location.root) :]
        return self._resolve_through_links(path) if scheme == FILE else None

    def resolve(self, addresses: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Returns storage names and keys, row by row. Both are null where the address is null or
        external. Raises as `resolve_one`.
        """
        values = _one_array(addresses).cast(pa.binary())
        rows = np.arange(len(values))
        answers = [_Answers(rows[:0], pa.array([], pa.string()), pa.array([], pa.binary()))]
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
            answers.append(_Answers(rows[taken], pa.repeat(name, len(keys)), keys))
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

    def _resolve_rest(self, values: pa.Array, rows: NDArray[np.int64]) -> _Answers:
        """Resolves one address after the other, but each directory only once: its answer holds for
        every name in it.
        """
        directories: dict[str, tuple[str, str] | None] = {}
        names: list[str | None] = []
        keys: list[str | None] = []
        for address in values.cast(pa.string()).to_pylist():
            if address is None:
                place = None
            else:
                directory, _, name = address.rpartition("/")
                if name in {"", ".", ".."}:
                    place = self.resolve_one(address)
                elif directory in directories:
                    inside = directories[directory]
                    place = inside and (inside[0], inside[1] + name)
                else:
                    place = self.resolve_one(address)
                    directories[directory] = place and (place[0], place[1][: -len(name)])
            names.append(place and place[0])
            keys.append(place and place[1])
        return _Answers(rows, pa.array(names, pa.string()), pa.array(keys, pa.string()).cast(pa.binary()))

    def _resolve_through_links(self, path: str) -> tuple[str, str] | None:
        directory, _, name = path.rpartition("/")
        local = [(storage, self._links.real(location.root)) for storage, location in self._roots if location.scheme == FILE]
        if not local or "\0" in path:  # no disk holds a name with a NUL
            return None
        real = self._links.real(directory + "/")
        for storage, root in sorted(local, key=lambda item: -len(item[1])):
            if real.startswith(root):
                return storage, real[len(root) :] + name
        return None


def loose(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns keys without what spelling may change: two keys that differ in spelling only become
    equal. For near misses, never for identity.

    It undoes percent-encoding (however often), doubled slashes, `/./` and Unicode composition.
    """
    values = _one_array(keys).cast(pa.string())
    suspect = has_irregular_components(values) | rows_with(values, lambda byte, _: (byte == _PERCENT) | (byte >= _NOT_ASCII))
    if not suspect.any():
        return values
    mask = pc.and_(pa.array(suspect), pc.is_valid(values))
    return pc.replace_with_mask(values, mask, pa.array([_loose(key) for key in values.filter(mask).to_pylist()], values.type))


def _loose(key: str) -> str:
    raw = key.encode()
    while (decoded := unquote_to_bytes(raw)) != raw:
        raw = decoded
    return _collapse(unicodedata.normalize("NFC", raw.decode(errors="backslashreplace")))[1:]


def _parse(address: str) -> tuple[Scheme, str] | None:
    """Returns scheme and canonical path (`/a/b`, or `bucket/a/b`), or null for a scheme of another
    store.
    """
    match = _SCHEME.match(address)
    if match is None:
        if not address.startswith("/"):
            raise FormatError(f"address {address!r} is relative; expected an absolute path or a URI, resolved by the lake that wrote it")
        scheme, rest = FILE, address
    else:
        known = _ALIASES.get(match[1].lower())
        if known is None:
            return None
        scheme, rest = known, address[match.end() :]
    if ".." in rest.split("/"):
        raise FormatError(f"address {address!r} has a `..` component, which systems resolve differently; expected none")
    return scheme, _local_path(address, rest) if scheme == FILE else _bucket_and_key(address, rest)


def _local_path(address: str, rest: str) -> str:
    path = rest
    if rest.startswith("//") and rest != address:
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in {"", "localhost"}:
            raise FormatError(f"address {address!r} names the host {host!r}; expected file:///path, without a host")
        path = slash + path
    if not path.startswith("/"):
        raise FormatError(f"address {address!r} holds no absolute path; expected file:///path")
    return _collapse(path)


def _bucket_and_key(address: str, rest: str) -> str:
    bucket = rest[2:].partition("/")[0]
    if not rest.startswith("//") or not bucket or "@" in bucket or ":" in bucket:
        shown = address.replace(bucket.rpartition("@")[0], "***") if "@" in bucket else address
        raise FormatError(f"address {shown!r} holds no plain bucket; expected s3://bucket/key, without user or port")
    return rest[2:]


def _collapse(path: str) -> str:
    """Returns a POSIX path that starts with `/` and has neither empty nor `.` components. A
    directory keeps its last slash.
    """
    parts = path.split("/")
    kept = [part for part in parts if part not in {"", "."}]
    return "/" + "/".join(kept) + ("/" if kept and parts[-1] in {"", "."} else "")


@dataclass(frozen=True, slots=True)
class _Answers:
    """Storage and key of some rows of a batch."""

    rows: NDArray[np.int64]
    names: pa.Array
    keys: pa.Array


def _merge(answers: Sequence[_Answers]) -> tuple[pa.Array, pa.Array]:
    answers = [answer for answer in answers if len(answer.rows)] or answers[:1]
    names = pa.concat_arrays([answer.names for answer in answers])
    keys = pa.concat_arrays([answer.keys for answer in answers]).cast(pa.string())
    if len(answers) == 1:
        return names, keys
    order = pa.array(np.argsort(np.concatenate([answer.rows for answer in answers])))
    return names.take(order), keys.take(order)


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
