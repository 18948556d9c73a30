"""The recorded names of the storages and lakes of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gc_assets.core.errors import StateError
from gc_assets.state.journal import State
from gc_assets.state.registry import (
    REGISTRY_FILE,
    Assignment,
    ConfiguredEntry,
    Registry,
    RegistryEntry,
    assign,
    canonical_location,
    change_registry,
    read_registry,
    spellings_of,
)


def storage(name: str, location: str) -> ConfiguredEntry:
    return ConfiguredEntry("storage", name, location)


def lake(name: str, location: str, *spellings: str, detail: str = "") -> ConfiguredEntry:
    return ConfiguredEntry("lake", name, location, spellings, detail)


def assign_names(
    registry: Registry, *configured: ConfiguredEntry, ids: Mapping[str, str] = {}, existing: tuple[str, ...] = ()
) -> Assignment:
    return assign(configured, registry, set(existing).__contains__, ids.get)


def registry_of(*configured: ConfiguredEntry) -> Registry:
    """Return the registry after a run of these places."""
    return Registry().with_entries(assign_names(Registry(), *configured).changed)


def with_id(registry: Registry, name: str, storage_id: str) -> Registry:
    entry = registry.find("storage", name)
    assert entry is not None
    return registry.with_entries([entry.model_copy(update={"storage_id": storage_id})])


def test_first_run_records_configured_names() -> None:
    found = assign_names(Registry(), storage("warehouse", "file:///a/"), lake("sales", "iceberg x"))
    assert found.names == ("warehouse", "sales")
    assert found.notes == ()


def test_second_run_changes_nothing() -> None:
    configured = storage("warehouse", "file:///a/"), lake("sales", "iceberg x")
    assert assign_names(registry_of(*configured), *configured).changed == ()


def test_renamed_storage_keeps_its_records() -> None:
    registry = registry_of(storage("lake", "file:///a/"))
    found = assign_names(registry, storage("warehouse", "file:///a/"))
    assert found.names == ("lake",)
    assert "of storage warehouse have the name lake" in found.notes[0]
    assert assign_names(registry.with_entries(found.changed), storage("lake", "file:///a/")).names == ("lake",)


@pytest.mark.parametrize("scope", ["storage", "lake"])
def test_swapped_names_keep_records_with_storage(scope: str) -> None:
    make = storage if scope == "storage" else lake
    registry = registry_of(make("a", "file:///a/"), make("b", "file:///b/"))
    assert assign_names(registry, make("a", "file:///b/"), make("b", "file:///a/")).names == ("b", "a")


def test_rotated_names_keep_records_with_storage() -> None:
    registry = registry_of(storage("a", "1"), storage("b", "2"), storage("c", "3"))
    assert assign_names(registry, storage("a", "2"), storage("b", "3"), storage("c", "1")).names == ("b", "c", "a")


def test_new_storage_under_used_name_gets_separate_records() -> None:
    registry = registry_of(storage("lake", "file:///a/"))
    found = assign_names(registry, storage("warehouse", "file:///a/"), storage("lake", "file:///b/"))
    assert found.names == ("lake", "lake_2")
    assert assign_names(registry.with_entries(found.changed), storage("lake", "file:///b/")).names == ("lake_2",)


def test_new_recorded_name_differs_from_directories_and_configured_names() -> None:
    registry = with_id(registry_of(storage("a", "1")), "a", "X")
    configured = storage("a", "2"), storage("a_2", "3")
    assert assign_names(registry, *configured, existing=("a_3",)).names == ("a_4", "a_2")


def test_name_of_a_storage_is_not_used_for_a_lake() -> None:
    assert assign_names(registry_of(storage("x", "1")), lake("x", "1")).names == ("x_2",)


def test_moved_storage_with_its_id_keeps_its_records() -> None:
    registry = with_id(registry_of(storage("a", "1"), storage("b", "2")), "a", "X")
    found = assign_names(registry, storage("c", "3"), storage("b", "2"), ids={"c": "X"})
    assert found.names == ("a", "b")


def test_moved_storage_without_its_id_counts_as_new() -> None:
    registry = with_id(registry_of(storage("a", "1")), "a", "X")
    found = assign_names(registry, storage("a", "3"))
    assert found.names == ("a_2",)
    assert "gc-assets rename a a --by WHO" in found.notes[0]


def test_moved_storage_that_was_never_changed_counts_as_new() -> None:
    found = assign_names(registry_of(storage("a", "1")), storage("a", "3"))
    assert found.names == ("a_2",)
    assert "gc-assets rename a a --by WHO" in found.notes[0]


def test_two_configurations_can_use_one_name_for_two_storages() -> None:
    mine, theirs = storage("a", "1"), storage("a", "2")
    registry = registry_of(mine)
    registry = registry.with_entries(assign_names(registry, theirs).changed)
    assert [assign_names(registry, item).names for item in (mine, theirs, mine)] == [("a",), ("a_2",), ("a",)]
    assert assign_names(registry, mine, theirs).changed == ()
    applied = with_id(registry, "a", "X")
    assert [assign_names(applied, item).names for item in (theirs, mine)] == [("a_2",), ("a",)]


def test_storage_without_recorded_location_is_identified_by_name() -> None:
    registry = Registry(entries=(RegistryEntry(recorded_name="a", scope="storage", names=("a",)),))
    assert assign_names(registry, storage("a", "1")).names == ("a",)


def test_copy_of_a_storage_counts_as_new() -> None:
    registry = with_id(registry_of(storage("a", "1")), "a", "X")
    assert assign_names(registry, storage("a", "1"), storage("copy", "3"), ids={"a": "X", "copy": "X"}).names == ("a", "copy")


def test_two_copies_without_the_original_count_as_new() -> None:
    registry = with_id(registry_of(storage("a", "1")), "a", "X")
    assert assign_names(registry, storage("b", "2"), storage("c", "3"), ids={"b": "X", "c": "X"}).names == ("b", "c")


def test_other_catalog_under_a_used_name_is_another_lake() -> None:
    found = assign_names(registry_of(lake("sales", "iceberg x")), lake("sales", "iceberg y"))
    assert found.names == ("sales_2",)
    assert "gc-assets rename sales sales --by WHO" in found.notes[0]


def test_lake_that_moved_together_with_the_state_keeps_its_records() -> None:
    registry = registry_of(lake("sales", "file:///a/catalog.db/", "state:../catalog.db"))
    assert assign_names(registry, lake("sales", "file:///b/catalog.db/", "state:../catalog.db")).names == ("sales",)


def test_table_patterns_distinguish_lakes_of_one_catalog() -> None:
    registry = registry_of(lake("a", "x", detail="eu.*"), lake("b", "x", detail="us.*"))
    assert assign_names(registry, lake("b", "x", detail="eu.*"), lake("a", "x", detail="us.*")).names == ("a", "b")
    assert assign_names(registry, lake("a", "x", detail="eu.* ch.*"), lake("b", "x", detail="us.*")).names == ("a", "b")
    assert assign_names(registry, lake("a", "x", detail="eu.*"), lake("c", "x", detail="us.*")).names == ("a", "b")


def test_former_location_is_recognized() -> None:
    registry = registry_of(storage("a", "1"))
    moved = registry.with_entries(assign_names(with_id(registry, "a", "X"), storage("a", "2"), ids={"a": "X"}).changed)
    assert assign_names(moved, storage("b", "1")).names == ("a",)
    assert assign_names(moved, storage("b", "1"), storage("a", "2")).names == ("b", "a")


def test_symbolic_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    assert canonical_location("", f"file://{tmp_path}/link/") == canonical_location("", f"{tmp_path}/disk") == f"file://{tmp_path}/disk/"


def test_server_location_is_recorded_as_its_address() -> None:
    assert canonical_location("nessie ", "http://nessie:19120/api/v2") == "nessie http://nessie:19120/api/v2"
    assert spellings_of("nessie ", "http://nessie:19120/api/v2", "/state") == ()


def test_location_relative_to_state_is_unchanged_after_move() -> None:
    (_, before), (_, after) = (spellings_of("", f"/{root}/catalog.db", f"/{root}/state") for root in ("a", "b/c"))
    assert before == after == "state:../catalog.db"


def test_registry_round_trips(tmp_path: Path) -> None:
    state, entry = (
        State.at(str(tmp_path)),
        RegistryEntry(recorded_name="a", scope="storage", names=("a", "b"), locations=("1",), storage_id="X"),
    )
    change_registry(state, lambda registry: registry.with_entries([entry]))
    assert read_registry(state).entries == (entry,)


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is damaged"),
        ('{"version": 2}', "upgrade gc-assets"),
        ("{}", r"is damaged \(without entries and version\)"),
        ('{"version": 1}', r"is damaged \(without entries\)"),
    ],
)
def test_unreadable_registry_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / REGISTRY_FILE).write_text(content)
    with pytest.raises(StateError, match=message):
        read_registry(State.at(str(tmp_path)))
