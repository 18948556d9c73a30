"""Map the names in `lakes.yaml` to the names under which the state has its records.

A storage that a user renames keeps its plans, approvals, quarantine and caches, because all stages
use the recorded name. `state/registry.py` contains the rules.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Hashable
from typing import Final

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.commands import command
from gc_assets.core.errors import GcError, StateError, StoreError
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state.journal import State
from gc_assets.state.registry import (
    Assignment,
    ConfiguredEntry,
    Registry,
    RegistryEntry,
    RegistryEvent,
    assign,
    canonical_location,
    change_registry,
    read_registry,
    spellings_of,
    spellings_of_storage,
)

_STORAGE_ID: Final = "storage_id.json"
# The configurations that this process has already recorded. Only the first table of a run needs to
# do this.
_RECORDED: Final[set[tuple[Hashable, ...]]] = set()
_log: Final = logging.getLogger(__name__)


def with_recorded_names(config: Config) -> Config:
    """Return a copy of the configuration with the recorded names of storages and lakes.

    The state is only read. The first run with a new configuration records its locations
    (`record_names`).

    Raises:
        GcError: If the registry of names cannot be read, or if a storage is at a new location and
            its id cannot be read.
    """
    try:
        state = State.of(config)
        found = _assign(config, state, read_registry(state))
    except OSError as error:
        raise StateError(f"cannot read the names on record in the state {config.state}: {error}. Make the state readable.") from error
    return config.with_recorded_names(found.names, found.notes, is_changed=bool(found.changed))


def configured_entries(config: Config) -> list[ConfiguredEntry]:
    """List the storages and then the lakes of a configuration, with their names in `lakes.yaml`."""
    storages = [
        ConfiguredEntry("storage", item.label, canonical_location("", item.location), spellings_of_storage(item.location, config.state))
        for item in config.storages
    ]
    lakes: list[ConfiguredEntry] = []
    for lake in config.lakes:
        kind, address = lake.catalog_location()
        location = canonical_location(kind, address) if address else ""
        lakes.append(ConfiguredEntry("lake", lake.label, location, spellings_of(kind, address, config.state), lake.location_detail()))
    return [*storages, *lakes]


def record_names(config: Config, state: State, clock: Clock) -> None:
    """Record the locations of a configuration in the state, before a run writes to them.

    Raises:
        StateError: If another process has assigned different names in the meantime.
    """
    in_use = tuple(item.name for item in (*config.storages, *config.lakes))
    if not config.has_unrecorded_names or (key := (state.files.root, in_use, *configured_entries(config))) in _RECORDED:
        return

    def with_changes(registry: Registry) -> Registry:
        found = _assign(config, state, registry)
        if found.names != in_use:
            raise StateError(f"Cannot record names in {state.files.root}: they were changed by another process. Run the command again")
        events = [RegistryEvent(at=clock.now(), recorded_name=entry.recorded_name, change=_describe(entry)) for entry in found.changed]
        return registry.with_entries(found.changed, *events) if found.changed else registry

    change_registry(state, with_changes)
    _RECORDED.add(key)


def read_storage_id(config: Config, storage: StorageConfig) -> str | None:
    """Read the id written by an apply to `.gc-assets/` in a storage.

    The result is None if there is no id, or if this process may not read it.

    Raises:
        StoreError: If the id cannot be read for another reason.
    """
    from gc_assets.stores.store import open_objects  # slow to import, and needed only for unrecorded locations

    address = _id_address(storage)
    try:
        content = open_objects(config.connections()).read(address)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {address}, which identifies storage {storage.label}: {error.strerror or error}") from error
    try:
        return str(parse_json(content)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"Cannot read the id of storage {storage.label}: {address} is damaged ({error}). Remove it: the next apply writes it again."
        ) from error


def describe_other_storage(config: Config, state: State, storage_name: str, *, has_leases: bool) -> str | None:
    """Explain why a storage may not be the recorded one, for example if its disk is not mounted.

    Args:
        has_leases: True if the storage has traces of leases. If its id is missing nevertheless,
            only the id was lost.

    Returns:
        A sentence, or None if nothing indicates another storage.

    Raises:
        GcError: If the registry of names or the id of the storage cannot be read.
    """
    storage, known = config.storage(storage_name), read_registry(state).find("storage", storage_name)
    if known is None or known.storage_id is None:
        return None
    found = read_storage_id(config, storage)
    if found == known.storage_id or (found is None and has_leases):
        return None
    what = "no id and no lease" if found is None else f"the id {found}"
    return f"storage {storage.label} ({storage.location}) has {what}, but {known.storage_id} is on record: it may be another disk or bucket"


def is_recorded_storage(config: Config, state: State, storage_name: str) -> bool:
    """Return True if a storage has the id that the state records under its name.

    Raises:
        GcError: If the registry of names or the id of the storage cannot be read.
    """
    known = read_registry(state).find("storage", storage_name)
    recorded = known.storage_id if known is not None else None
    return recorded is not None and read_storage_id(config, config.storage(storage_name)) == recorded


def advise_other_storage(config: Config, storage_name: str) -> str:
    """Suggest the next step for a storage that `describe_other_storage` describes."""
    accept = command("rename", storage_name, config.label_of(storage_name), by="WHO")
    return f"Mount it, or correct its location in lakes.yaml. If it was emptied or replaced on purpose, run `{accept}`."


def record_storage_id(config: Config, state: State, storage_name: str, clock: Clock) -> None:
    """Write an id to `.gc-assets/` in a storage, and record it in the state.

    If the storage is later moved, it is recognized by its id. A storage without an id can still be
    recognized by its location, so errors are only logged.
    """
    storage = config.storage(storage_name)
    try:
        _record_storage_id(config, state, storage, clock)
    except (GcError, OSError) as error:
        _log.warning("storage %s got no id, so it is identified only by its location: %s", storage.label, error)


def _record_storage_id(config: Config, state: State, storage: StorageConfig, clock: Clock) -> None:
    from gc_assets.stores.store import open_objects

    registry, objects, address = read_registry(state), open_objects(config.connections()), _id_address(storage)
    known = registry.find("storage", storage.name)
    if known is None:
        return
    found = read_storage_id(config, storage)
    if found is not None and found == known.storage_id:
        return
    others = {entry.storage_id for entry in registry.entries if entry != known}
    if found is None or found in others:  # a copy of another storage has its id
        new = str(uuid.uuid4())
        content = json.dumps({"id": new}).encode()
        if found is None:
            objects.create(address, content)
        else:
            objects.replace(address, content, objects.read_with_etag(address)[1])
        found = new

    def with_id(current: Registry) -> Registry:
        entry = current.find("storage", storage.name)
        if entry is None or entry.storage_id == found:
            return current
        event = RegistryEvent(at=clock.now(), recorded_name=storage.name, change=f"storage id {found}")
        return current.with_entries([entry.model_copy(update={"storage_id": found})], event)

    change_registry(state, with_id)


def _id_address(storage: StorageConfig) -> str:
    from gc_assets.stores.protocol import RESERVED_PREFIX

    return f"{storage.location.rstrip('/')}/{RESERVED_PREFIX}{_STORAGE_ID}"


def _assign(config: Config, state: State, registry: Registry) -> Assignment:
    storages = {storage.label: storage for storage in config.storages}
    return assign(
        configured_entries(config),
        registry,
        lambda name: bool(state.files.directories(name)),
        lambda name: read_storage_id(config, storages[name]),
    )


def _describe(entry: RegistryEntry) -> str:
    return f"{entry.scope} {entry.names[-1]} at {entry.locations[0] if entry.locations else 'an unknown location'}"
