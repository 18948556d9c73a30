"""Resolve addresses of files to their storage and canonical key (path from the storage's root).

Each system writes addresses in its own way. All addresses of an object resolve to the same key, and
different objects never have the same key. `paths.py` parses the addresses.

Addresses in a lake are written by other programs, so it may be impossible to resolve some of them.
In this case, `resolve` and `resolve_one` raise an error. Use them only if the object that contains
the address is then treated as unreadable. Otherwise, use `locate` and `locate_one`.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from posixpath import normpath
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets._version import __version__
from gc_assets.core.byte_scan import find_rows, has_irregular_components
from gc_assets.core.claims import find_table_location
from gc_assets.core.errors import FormatError, StoreError, UsageError
from gc_assets.core.paths import AZURE, BUCKET_FORMS, FILE, Location, Scheme, SymbolicLinks, collapse_path, parse_address, scheme_of
from gc_assets.core.urls import is_aws, parse_alias, parse_url, web_host

# Spellings that are resolved quickly. For all others, there is a slower code path.
_USUAL_SPELLINGS: Final[dict[Scheme, tuple[str, ...]]] = {
    FILE: ("file://", "file:", "", "file://localhost"),
    **{scheme: tuple(f"{spelling}://" for spelling in form.spellings) for scheme, form in BUCKET_FORMS.items()},
}
_TO_THE_END: Final = 2**31 - 1
# Number of directories to look up concurrently, because network mounts are slow.
_CONCURRENT_LOOKUPS: Final = 16
# The version of the form that `loosen_spelling` returns. Caches contain hashes of it.
LOOSE_FORM: Final = 2
_PERCENT: Final = ord("%")
_BACKSLASH: Final = ord("\\")
_NOT_ASCII: Final = 0x80
_IRREGULAR: Final = frozenset({"", ".", ".."})


class KeyResolver:
    """Resolves addresses to storage and key, also for millions of rows.

    Instances are pickled and sent to Spark executors.

    If several storage roots match an address, the longest one is used. A local address outside of
    all roots still belongs to a storage if its directory, with symbolic links resolved, is under a
    root.
    """

    def __init__(self, storages: Sequence[tuple[str, str]], aliases: Sequence[tuple[str, str]] = ()) -> None:
        """Create a resolver.

        Args:
            storages: Pairs of name and location.
            aliases: Pairs of storage name and an additional address of its location, with any
                scheme.

        Raises:
            UsageError: If a name is repeated or a location is invalid.
        """
        self._locations = {name: Location.parse(location) for name, location in storages}
        if len(self._locations) != len(storages):
            raise UsageError(f"storage names are not unique: {', '.join(name for name, _ in storages)}; give each storage its own name")
        self._aliases = sorted(set(aliases))
        roots = list(self._locations.items())
        self._urls: list[tuple[str, str]] = []
        for name, alias in self._aliases:
            root = parse_alias(alias)
            if isinstance(root, Location):
                roots.append((name, root))
            else:
                self._urls.append((name, str(root)))
        self._roots = sorted(roots, key=lambda item: -len(item[1].root))
        self._has_path_aliases = len(roots) > len(self._locations)
        self._urls.sort(key=lambda item: -len(item[1]))
        self._web_hosts = frozenset(filter(None, (web_host(url) for _, url in self._urls)))
        self._url_schemes = frozenset(url.partition(":")[0] for _, url in self._urls)
        self._links = SymbolicLinks()

    @property
    def settings_digest(self) -> str:
        """A digest of the gc-assets release, the storages and the aliases.

        If the digest and `link_targets` are the same, an address resolves to the same result.
        """
        locations = sorted((name, str(location)) for name, location in self._locations.items())
        return hashlib.sha256(json.dumps([__version__, locations, self._aliases]).encode()).hexdigest()

    @property
    def link_targets(self) -> dict[str, str]:
        """Local directories on which the results so far depend, with their real directories."""
        return self._links.targets

    def has_same_links(self, targets: Collection[tuple[str, str]]) -> bool:
        """Check whether directories still resolve to the same real directories.

        Args:
            targets: Pairs of directory and real directory, from `link_targets` of another resolver.
        """

        def is_same(target: tuple[str, str]) -> bool:
            try:
                return self._links.real(target[0]) == target[1]
            except StoreError:
                return False  # the caller then resolves the addresses again and reports the error

        if len(targets) <= _CONCURRENT_LOOKUPS:
            return all(map(is_same, targets))
        with ThreadPoolExecutor(_CONCURRENT_LOOKUPS) as pool:
            return all(list(pool.map(is_same, targets)))

    def address(self, storage: str, key: str) -> str:
        """Return the canonical address of an object.

        Raises:
            UsageError: If the storage is unknown.
        """
        if storage not in self._locations:
            raise UsageError(f"unknown storage {storage!r}; configured: {', '.join(sorted(self._locations)) or 'none'}")
        return f"{self._locations[storage]}{key}"

    def translate(self, address: str) -> str:
        """Replace an alias at the start of an address with the canonical root of its storage.

        Other addresses are returned unchanged.
        """
        try:
            named = self._resolve_url(address) if self._urls else None
            parsed = parse_address(address) if named is None and self._has_path_aliases else None
        except FormatError:
            return address  # the store reports it
        if parsed is not None:
            scheme, path = parsed
            found = next(((name, root) for name, root in self._roots if scheme == root.scheme and path.startswith(root.root)), None)
            if found is not None and found[1] != self._locations[found[0]]:
                named = found[0], path[len(found[1].root) :]
        return address if named is None else self.address(*named)

    def resolve_one(self, address: str) -> tuple[str, str] | None:
        """Resolve one address.

        Returns:
            Storage and key, or None if the address is external.

        Raises:
            FormatError: If the address is relative, contains a `..` component or a host, or has no
                key.
            StoreError: If a symbolic link in the path cannot be read.
        """
        if self._urls and (named := self._resolve_url(address)) is not None:
            return named
        parsed = parse_address(address)
        if parsed is None:
            return None
        scheme, path = parsed
        if "/" not in path:
            raise FormatError(f"address {address!r} contains a bucket but no key; expected an object")
        for name, location in self._roots:
            if scheme == location.scheme and path.startswith(location.root):
                return name, path[len(location.root) :]
        return self._resolve_through_links(path) if scheme == FILE else None

    def resolve(self, addresses: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Resolve many addresses. Raises the same errors as `resolve_one`.

        Returns:
            A column of storage names and a column of keys. If an address is null or external, both
            columns are null.
        """
        values = _one_array(addresses).cast(pa.binary())
        rows = np.arange(len(values))
        answers = [_ResolvedRows(rows[:0], pa.array([], pa.string()), pa.array([], pa.binary()))]
        for prefix, name, scheme in self._usual_prefixes():
            matches = pc.fill_null(pc.starts_with(values, prefix), False)
            if not matches.true_count:
                continue
            matched = values if matches.true_count == len(values) else values.filter(matches)
            keys = pc.binary_slice(matched, len(prefix), _TO_THE_END)
            regular = ~has_irregular_components(keys)
            if scheme == AZURE:
                regular &= ~find_rows(keys, lambda byte, _: byte == _BACKSLASH)
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

    def locate_one(self, address: str) -> tuple[str, str] | None:
        """Resolve one address. Returns None if it is external or cannot be resolved."""
        try:
            return self.resolve_one(address)
        except (FormatError, StoreError):
            return None

    def storage_of(self, address: str | None) -> str | None:
        """Return the storage that contains an address, or None if no storage does."""
        located = None if address is None else self.locate_one(address)
        return None if located is None else located[0]

    def locate(self, addresses: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Resolve many addresses like `resolve`.

        Rows of addresses that cannot be resolved are null.
        """
        try:
            return self.resolve(addresses)
        except (FormatError, StoreError):
            values = _one_array(addresses)
            unresolvable = [address for address in values.drop_null().unique().to_pylist() if self.find_problem(address) is not None]
            return self.resolve(pc.if_else(pc.is_in(values, pa.array(unresolvable, values.type)), pa.scalar(None, values.type), values))

    def find_namesakes(self, address: str) -> Iterator[tuple[str, str]]:
        """Yield directories in storages that may contain the table of an external metadata file.

        A storage may be accessible under another address. In each storage, the possible directories
        are those whose key is the end of the table's location. If the storage itself is at or under
        a directory with the last name of the location, the result contains the whole storage.
        """
        locations = [location.split("/") for location in _find_locations(address)]
        endings = {f"{'/'.join(parts[number:])}/" for parts in locations for number in range(len(parts))}
        for name, location in self._locations.items():
            yield from ((name, key) for key in endings)
            # The first component may be `container@account`.
            if any(parts[-1] in {*location.root.split("/"), location.root.partition("@")[0]} for parts in locations):
                yield name, ""

    def find_problem(self, address: str) -> str | None:
        """Explain why an address cannot be resolved. Returns None if it can."""
        try:
            self.resolve_one(address)
        except (FormatError, StoreError) as error:
            return str(error)
        return None

    def _usual_prefixes(self) -> Iterator[tuple[str, str, Scheme]]:
        for name, location in self._roots:
            for spelling in _USUAL_SPELLINGS[location.scheme]:
                yield spelling + location.root, name, location.scheme

    def _resolve_rest(self, values: pa.Array, rows: NDArray[np.int64]) -> _ResolvedRows:
        """Resolve the addresses in some rows one at a time, but look up each directory only once."""
        directories: dict[str, tuple[str, str] | None] = {}
        names: list[str | None] = []
        keys: list[str | None] = []
        for address in values.cast(pa.string()).to_pylist():
            if address is None:
                resolved = None
            else:
                directory, _, name = address.rpartition("/")
                if name in _IRREGULAR or "\\" in name or address[:4].lower() == "http":  # a query may contain slashes
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

    def _resolve_url(self, address: str) -> tuple[str, str] | None:
        """Resolve an address with the help of aliases that are URLs."""
        if scheme_of(address) not in self._url_schemes and address[:5].lower() != "http:":
            return None
        if (host := web_host(address)) is not None and host not in self._web_hosts and not is_aws(f"https://{host}"):
            return None
        url = parse_url(address)
        for name, root in self._urls if url is not None else ():
            found = str(url).replace("\\", "/") if self._locations[name].scheme == AZURE else str(url)
            if found.startswith(root):
                key = found[len(root) :]
                if ".." in key.split("/"):
                    raise FormatError(f"address {address!r} contains `..`, which systems resolve differently; write the address without it")
                return name, key if self._locations[name].scheme != FILE else collapse_path(f"/{key}")[1:]
        return None

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
    """Normalize keys so that different encodings of a name become equal.

    Percent-encoding, doubled slashes, `/./` and Unicode composition are undone, even if they were
    applied several times. A backslash becomes a slash, as in Azure. Use the result only to find
    similar keys, never to identify a file. If you change the normalization, change `LOOSE_FORM`,
    too.
    """
    values = _one_array(keys).cast(pa.string())
    suspect = has_irregular_components(values) | find_rows(values, _is_respelled)
    if not suspect.any():
        return values
    mask = pc.and_(pa.array(suspect), pc.is_valid(values))
    return pc.replace_with_mask(values, mask, pa.array([_loosen(key) for key in values.filter(mask).to_pylist()], values.type))


def _is_respelled(byte: NDArray[np.uint8], _: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (byte == _PERCENT) | (byte == _BACKSLASH) | (byte >= _NOT_ASCII)


def _loosen(key: str) -> str:
    raw = key.encode()
    while (decoded := unquote_to_bytes(raw)) != raw:
        raw = decoded
    # `backslashreplace` would add backslashes, which a second call would replace.
    return collapse_path(unicodedata.normalize("NFC", raw.replace(b"\\", b"/").decode(errors="replace")))[1:]


def _find_locations(address: str) -> set[str]:
    """Return possible locations of a metadata file's table, without a trailing slash."""
    without_query = re.split("[?#]", address, maxsplit=1)[0]
    spellings = {spelling for text in (address, without_query) for spelling in (text, unquote(text), text.replace("\\", "/"))}
    locations = {find_table_location(spelling).rstrip("/") for spelling in spellings}
    return {path for location in locations for path in (location, normpath(location)) if path.rpartition("/")[2] not in _IRREGULAR}


@dataclass(frozen=True, slots=True)
class _ResolvedRows:
    """Storages and keys for some rows of a batch of addresses."""

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
