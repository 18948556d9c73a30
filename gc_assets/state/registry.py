"""Assign directories in the state to storages and lakes, even if names in `lakes.yaml` change.

The state has a directory for each storage and lake, which is called the recorded name. The file
`registry.json` maps recorded names to locations. A storage is identified by its location, and by
the id that an apply writes to its `.gc-assets/` directory. A lake is identified by its catalog or
repository.

If a known location gets a new name in `lakes.yaml`, its records keep the old name. If an old name
is used for a different location, that location gets a new directory, such as `warehouse_2`.

If the state was written by a release without this file, each directory is assigned to the location
in its last plan. Without a plan, it belongs to the storage or lake that has its name now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pydantic import ValidationError

from gc_assets.core.commands import command
from gc_assets.core.deferred_models import TolerantModel
from gc_assets.core.errors import FormatError, GcError, StateError, UsageError, summarize
from gc_assets.core.paths import FILE, Location, parse_address
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_PLAN, LAKE_REFS, STORAGE_INVENTORY
from gc_assets.state.summaries import DeletionPlanSummary

REGISTRY_FILE: Final = "registry.json"
VERSION: Final = 1
# Every release writes these keys, even without an entry.
_WRITTEN: Final = frozenset({"version", "entries"})
Scope = Literal["storage", "lake"]
# Function that takes the name of a storage in `lakes.yaml`, and returns the id in its `.gc-assets/`
# or None.
ReadId = Callable[[str], str | None]
Exists = Callable[[str], bool]


class RegistryEntry(TolerantModel):
    """A storage or lake in the registry.

    Attributes:
        recorded_name: The directory of its records in the state, which is also its name in plans
            and tables.
        names: All names that it has had in `lakes.yaml`.
        locations: All of its locations, beginning with the current one. Empty if unknown.
        spellings: Other spellings of its locations, such as paths relative to the state. Together
            with a name, they identify it.
        detail: A value that distinguishes lakes with the same catalog.
        storage_id: For a storage, the id in its `.gc-assets/`, or None before the first apply.
    """

    recorded_name: str
    scope: Scope
    names: tuple[str, ...]
    locations: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()
    detail: str = ""
    storage_id: str | None = None


class RegistryEvent(TolerantModel):
    """A change in the registry."""

    at: datetime
    recorded_name: str
    change: str
    by: str | None = None
    comment: str = ""


class Registry(TolerantModel):
    """The content of `registry.json`. Events are only ever added."""

    version: int = VERSION
    entries: tuple[RegistryEntry, ...] = ()
    events: tuple[RegistryEvent, ...] = ()

    def find(self, scope: Scope, recorded_name: str) -> RegistryEntry | None:
        return next((entry for entry in self.entries if (entry.scope, entry.recorded_name) == (scope, recorded_name)), None)

    def with_entries(self, changed: Iterable[RegistryEntry], *events: RegistryEvent) -> Registry:
        """Return a copy with added or replaced entries and added events."""
        new = {(entry.scope, entry.recorded_name): entry for entry in (*self.entries, *changed)}
        return self.model_copy(update={"entries": tuple(new.values()), "events": (*self.events, *events)})


@dataclass(frozen=True, slots=True)
class ConfiguredEntry:
    """A storage or lake in `lakes.yaml`. If its kind does not have a location, `location` is ""."""

    scope: Scope
    name: str
    location: str
    spellings: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The result of assigning recorded names to configured entries.

    Attributes:
        names: The recorded names, in the order of the configured entries.
        changed: Entries that are new or have to be updated in the registry.
        notes: Messages about recorded names that differ from `lakes.yaml`, and about locations that
            have changed.
    """

    names: tuple[str, ...]
    changed: tuple[RegistryEntry, ...]
    notes: tuple[str, ...]


def canonical_location(kind: str, address: str) -> str:
    """Convert an address to the form that the registry stores.

    Symbolic links are resolved on this machine.
    """
    try:
        return f"{kind}{Location.parse(address).without_links()}"
    except UsageError:
        return f"{kind}{address}"


def spellings_of(kind: str, address: str, state_root: str) -> tuple[str, ...]:
    """Return spellings that identify a location even if its canonical address has changed.

    The first spelling is the path with its symbolic links unresolved, so a link can get another
    target. The second is relative to the state, so storage and state can move together. Locations
    in object stores have neither.
    """
    try:
        parsed, state = parse_address(address), parse_address(state_root)
    except FormatError:
        return ()
    if parsed is None or parsed[0] != FILE:
        return ()
    path = parsed[1].rstrip("/") or "/"
    relative = () if state is None or state[0] != FILE else (f"{kind}state:{os.path.relpath(path, state[1])}",)
    return (f"{kind}path:{path}", *relative)


def spellings_of_storage(location: str, state_root: str) -> tuple[str, ...]:
    """Return a spelling that stays the same if storage and state move together.

    Symbolic links are resolved. Unless the state itself has moved, no two locations have the same
    spelling.
    """
    return spellings_of("", canonical_location("", location), canonical_location("", state_root))[1:]


def read_registry(state: State) -> Registry:
    """Read `registry.json`. If it does not exist, derive its content from the state's directories.

    Raises:
        StateError: If the file is damaged or was written by a newer release.
    """
    try:
        content = state.files.read(REGISTRY_FILE)
    except FileNotFoundError:
        return Registry(entries=tuple(_adopt(state)))
    return parse_registry(state, content)


def parse_registry(state: State, content: bytes) -> Registry:
    """Parse the content of `registry.json`. Raises the same errors as `read_registry`."""
    path = f"{state.files.root}/{REGISTRY_FILE}"
    try:
        found = Registry.model_validate_json(content)
    except ValidationError as error:
        raise _damage_error(path, summarize(error)) from error
    if found.version > VERSION:
        raise StateError(f"{path} has version {found.version}, this release reads up to {VERSION}: upgrade gc-assets")
    if missing := _WRITTEN - found.model_fields_set:
        raise _damage_error(path, f"without {' and '.join(sorted(missing))}")
    return found


def _damage_error(path: str, finding: str) -> StateError:
    return StateError(
        f"{path} is damaged ({finding}). Restore it from a backup. If no name in lakes.yaml has changed since the first run, remove it."
    )


def change_registry(state: State, change: Callable[[Registry], Registry]) -> None:
    """Change `registry.json` atomically. If another process is faster, `change` is called again."""
    adopted = read_registry(state)

    def edit(content: bytes | None) -> bytes:
        before = parse_registry(state, content) if content is not None else adopted
        return change(before).model_dump_json(indent=1).encode()

    state.files.change(REGISTRY_FILE, edit)


def assign(configured: Sequence[ConfiguredEntry], registry: Registry, exists: Exists, read_id: ReadId) -> Assignment:
    """Assign a recorded name to every configured entry.

    Args:
        configured: The storages and lakes in `lakes.yaml`.
        exists: Returns True if the state has a directory with this name.
        read_id: Reads the id of a storage. It is only called for storages whose location is not in
            the registry.

    Raises:
        GcError: If an id cannot be read.
    """
    found = _Matching(configured, registry.entries).match(read_id)
    configured_names = {item.name for item in configured}
    used = {entry.recorded_name for entry in registry.entries}
    names: list[str] = []
    changed: list[RegistryEntry] = []
    notes: list[str] = []
    for item in configured:
        before = found.get(item)
        if before is None:
            name = item.name if item.name not in used else _unused_name(item.name, used | configured_names, exists)
            used.add(name)
            before = RegistryEntry(recorded_name=name, scope=item.scope, names=())
            free = [entry for entry in registry.entries if entry not in found.values() and entry.scope == item.scope]
            other = next((entry for entry in free if item.name in entry.names), None)
            if other is not None:
                notes.append(_describe_reuse(item, other, name))
            elif name != item.name:
                notes.append(_describe_name(item, name))
        elif before.recorded_name != item.name:
            notes.append(_describe_name(item, before.recorded_name))
        elif before.locations and item.location not in before.locations:
            notes.append(f"{item.scope} {item.name} is now at {item.location}. Before, it was at {before.locations[0]}")
        after = with_configured_entry(before, item)
        if registry.find(item.scope, before.recorded_name) != after:
            changed.append(after)
        names.append(before.recorded_name)
    return Assignment(tuple(names), tuple(changed), tuple(notes))


def _describe_name(item: ConfiguredEntry, name: str) -> str:
    return f"the records, plans and assets of {item.scope} {item.name} have the name {name}, because this location or name was used before"


def _describe_reuse(item: ConfiguredEntry, other: RegistryEntry, name: str) -> str:
    before = other.locations[0] if other.locations else "an unknown location"
    return (
        f"{item.scope} {item.name} is at {item.location or 'another location'}, but the one on record under this name is at {before}. "
        f"It is treated as new, and its records are stored as {name}. If the new address is a mistake, correct it in lakes.yaml. "
        f"If {item.name} moved there, continue the records {other.recorded_name}: "
        f"{command('rename', other.recorded_name, item.name, by='WHO')}"
    )


def with_configured_entry(before: RegistryEntry, item: ConfiguredEntry) -> RegistryEntry:
    """Update a registry entry with the name and location in `lakes.yaml`."""
    names = before.names if item.name in before.names else (*before.names, item.name)
    locations = before.locations
    if item.location and before.locations[:1] != (item.location,):
        locations = (item.location, *(location for location in before.locations if location != item.location))
    added = tuple(spelling for spelling in item.spellings if spelling not in before.spellings)
    update = {"names": names, "locations": locations, "spellings": (*before.spellings, *added), "detail": item.detail}
    return before.model_copy(update=update)


def _unused_name(name: str, taken: AbstractSet[str], exists: Exists) -> str:
    number = 2
    while f"{name}_{number}" in taken or exists(f"{name}_{number}"):
        number += 1
    return f"{name}_{number}"


class _Matching:
    """Matches configured entries with registry entries, beginning with the strongest evidence."""

    def __init__(self, items: Iterable[ConfiguredEntry], entries: Iterable[RegistryEntry]) -> None:
        self._items, self._entries = list(items), list(entries)
        self._found: dict[ConfiguredEntry, RegistryEntry] = {}

    def match(self, read_id: ReadId) -> Mapping[ConfiguredEntry, RegistryEntry]:
        for current in (True, False):
            for with_detail, with_name in ((True, True), (True, False), (False, True), (False, False)):
                self._match_locations(current=current, with_detail=with_detail, with_name=with_name)
        self._match(
            lambda item: [(item.name, spelling) for spelling in item.spellings],
            lambda entry: [(name, spelling) for name in entry.names for spelling in entry.spellings],
        )
        self._match_ids(read_id)
        self._match(lambda item: [item.name], lambda entry: entry.names if _may_follow_name(entry) else ())
        return self._found

    def _match_locations(self, *, current: bool, with_detail: bool, with_name: bool) -> None:
        """Match entries by address.

        Args:
            current: If True, only compare the current address in the registry, not earlier ones.
            with_detail: If True, the value of `detail` must be equal as well.
            with_name: If True, a name must be equal as well.
        """

        def key(address: str, detail: str, name: str) -> Hashable:
            return address, detail if with_detail else "", name if with_name else ""

        self._match(
            lambda item: [key(item.location, item.detail, item.name)] if item.location else [],
            lambda entry: [
                key(address, entry.detail, name) for address in entry.locations[: 1 if current else None] for name in entry.names or ("",)
            ],
        )

    def _match_ids(self, read_id: ReadId) -> None:
        known = {entry.storage_id for entry in self._entries if entry.storage_id is not None}
        ids = {item.name: read_id(item.name) for item in self._items if known and item.scope == "storage"}
        self._match(
            lambda item: [ids[item.name]] if ids.get(item.name) in known else [],
            lambda entry: [entry.storage_id] if entry.storage_id is not None else [],
        )

    def _match(
        self, keys_of_item: Callable[[ConfiguredEntry], Iterable[Hashable]], keys_of_entry: Callable[[RegistryEntry], Iterable[Hashable]]
    ) -> None:
        """Match entries that have a key in common, provided that the key is unique on both sides."""
        items: dict[tuple[Scope, Hashable], list[ConfiguredEntry]] = {}
        entries: dict[tuple[Scope, Hashable], list[RegistryEntry]] = {}
        for item in self._items:
            for key in dict.fromkeys(keys_of_item(item)):
                items.setdefault((item.scope, key), []).append(item)
        for entry in self._entries:
            for key in dict.fromkeys(keys_of_entry(entry)):
                entries.setdefault((entry.scope, key), []).append(entry)
        for key, of_key in items.items():
            if len(of_key) == 1 == len(entries.get(key, ())):
                item, entry = of_key[0], entries[key][0]
                if item in self._items and entry in self._entries:
                    self._items.remove(item)
                    self._entries.remove(entry)
                    self._found[item] = entry


def _may_follow_name(entry: RegistryEntry) -> bool:
    """Return True if an entry may be matched by name alone, because its location is unknown.

    For example, a state without a registry does not contain the locations of its lakes. If the
    location is known, the name is not enough, because several configurations can have the same
    state and use a name for different storages.
    """
    return not entry.locations


def _adopt(state: State) -> Iterator[RegistryEntry]:
    """Yield entries for the storages and lakes in a state that does not have a registry yet."""
    for name in state.files.directories(""):
        tables = set(state.files.directories(name))
        if LAKE_REFS.name in tables:
            yield RegistryEntry(recorded_name=name, scope="lake", names=(name,))
        elif tables & {DELETION_PLAN.name, STORAGE_INVENTORY.name}:
            location = _last_location(state, name)
            yield RegistryEntry(
                recorded_name=name,
                scope="storage",
                names=(name,),
                locations=() if location is None else (canonical_location("", location),),
            )


def _last_location(state: State, storage_name: str) -> str | None:
    """Look up a storage's location in its last plan. Returns None if no plan is readable."""
    try:
        plans = state.history(storage_name, DELETION_PLAN.name)
        return state.open(plans[-1]).summary(DeletionPlanSummary).header.location if plans else None
    except (GcError, OSError):
        return None
