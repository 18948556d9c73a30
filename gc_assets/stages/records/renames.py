"""Let a storage or lake in `lakes.yaml` continue the records of an earlier name."""

from __future__ import annotations

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.suggest import did_you_mean, join_names
from gc_assets.core.user_names import require_name
from gc_assets.engine.recorded_names import configured_entries
from gc_assets.state.journal import State
from gc_assets.state.registry import (
    ConfiguredEntry,
    Registry,
    RegistryEntry,
    RegistryEvent,
    change_registry,
    read_registry,
    with_configured_entry,
)


def rename(config: Config, clock: Clock, old: str, new: str, by: str, comment: str = "") -> RegistryEntry:
    """Record that the storage or lake `new` in `lakes.yaml` continues the records of `old`.

    If its location is on record, a renamed storage or lake is recognized automatically. This
    command is for the other cases, such as a storage that moved without its `.gc-assets/`
    directory, or a catalog with a new address.

    Args:
        old: The name on record, or an earlier name in `lakes.yaml`.
        new: The current name in `lakes.yaml`.

    Returns:
        The updated entry of the registry.

    Raises:
        UsageError: If `by` is empty, a name is unknown, or the records belong to another storage or
            lake in `lakes.yaml`.
    """
    require_name(by, "a rename", comment)
    state, item = State.of(config), _find_configured(config, new)
    renamed = _find_recorded(read_registry(state), item, old)
    owner = next((other for other in (*config.storages, *config.lakes) if other.name == renamed.recorded_name), None)
    if owner is not None and owner.label != new:
        raise UsageError(
            f"Cannot rename: the records of {renamed.recorded_name} belong to {owner.label} in lakes.yaml. Rename {owner.label} first."
        )

    key = (renamed.scope, renamed.recorded_name)

    def with_name(registry: Registry) -> Registry:
        entry = _at_new_location(_find_recorded(registry, item, old), item)
        others = [_without(other, item) for other in registry.entries if (other.scope, other.recorded_name) != key]
        event = RegistryEvent(
            at=clock.now(), recorded_name=entry.recorded_name, change=f"renamed to {new}", by=by.strip(), comment=comment.strip()
        )
        return registry.with_entries([*others, entry], event)

    change_registry(state, with_name)
    return _at_new_location(renamed, item)


def _at_new_location(entry: RegistryEntry, item: ConfiguredEntry) -> RegistryEntry:
    """Return the entry with the configured name and location. The next lease records the id there."""
    return with_configured_entry(entry, item).model_copy(update={"storage_id": None})


def _find_configured(config: Config, name: str) -> ConfiguredEntry:
    items = {item.name: item for item in configured_entries(config)}
    if name not in items:
        raise UsageError(f"unknown storage or lake {name!r}; lakes.yaml has {join_names(list(items))}{did_you_mean(name, items)}")
    return items[name]


def _find_recorded(registry: Registry, item: ConfiguredEntry, old: str) -> RegistryEntry:
    entries = [entry for entry in registry.entries if entry.scope == item.scope]
    found = [entry for entry in entries if entry.recorded_name == old] or [entry for entry in entries if old in entry.names]
    if len(found) == 1:
        return found[0]
    names = sorted(entry.recorded_name for entry in entries)
    problem = f"several {item.scope}s had the name {old!r}" if found else f"no {item.scope} is on record as {old!r}"
    raise UsageError(f"{problem}; the state contains records of {join_names(names) or 'none'}{did_you_mean(old, names)}")


def _without(entry: RegistryEntry, item: ConfiguredEntry) -> RegistryEntry:
    """Remove the name and address of `item` from an entry that has the same address."""
    if item.scope != entry.scope or not {item.location} & set(entry.locations):
        return entry
    update = {
        "names": tuple(name for name in entry.names if name != item.name),
        "locations": tuple(address for address in entry.locations if address != item.location),
        "spellings": tuple(spelling for spelling in entry.spellings if spelling not in item.spellings),
    }
    return entry.model_copy(update=update)
