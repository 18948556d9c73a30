"""The recorded names of the storages and lakes of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gc_assets.core.errors import StateError
from gc_assets.state.journal import State
from gc_assets.state.places import (
    PLACES,
    Assignment,
    ConfiguredPlace,
    Place,
    Registry,
    assign,
    canonical_place,
    change_registry,
    read_registry,
    spellings_of,
)


def storage(name: str, place: str) -> ConfiguredPlace:
    return ConfiguredPlace("storage", name, place)


def lake(name: str, place: str, *spellings: str, detail: str = "") -> ConfiguredPlace:
    return ConfiguredPlace("lake", name, place, spellings, detail)


def assigned(registry: Registry, *configured: ConfiguredPlace, ids: Mapping[str, str] = {}, existing: tuple[str, ...] = ()) -> Assignment:
    return assign(configured, registry, set(existing).__contains__, ids.get)


def recorded(*configured: ConfiguredPlace) -> Registry:
    """Return the registry after a run of these places."""
    return Registry().with_places(assigned(Registry(), *configured).changed)


def with_id(registry: Registry, name: str, storage_id: str) -> Registry:
    place = registry.find("storage", name)
    assert place is not None
    return registry.with_places([place.model_copy(update={"storage_id": storage_id})])


def test_first_run_keeps_all_names() -> None:
    found = assigned(Registry(), storage("warehouse", "file:///a/"), lake("sales", "iceberg x"))
    assert found.names == ("warehouse", "sales")
    assert found.notes == ()


def test_second_run_changes_nothing() -> None:
    configured = storage("warehouse", "file:///a/"), lake("sales", "iceberg x")
    assert assigned(recorded(*configured), *configured).changed == ()


def test_renamed_storage_keeps_its_records() -> None:
    registry = recorded(storage("lake", "file:///a/"))
    found = assigned(registry, storage("warehouse", "file:///a/"))
    assert found.names == ("lake",)
    assert "of storage warehouse have the name lake" in found.notes[0]
    assert assigned(registry.with_places(found.changed), storage("lake", "file:///a/")).names == ("lake",)


@pytest.mark.parametrize("scope", ["storage", "lake"])
def test_swapped_names_keep_their_own_records(scope: str) -> None:
    make = storage if scope == "storage" else lake
    registry = recorded(make("a", "file:///a/"), make("b", "file:///b/"))
    assert assigned(registry, make("a", "file:///b/"), make("b", "file:///a/")).names == ("b", "a")


def test_names_that_rotate_keep_their_own_records() -> None:
    registry = recorded(storage("a", "1"), storage("b", "2"), storage("c", "3"))
    assert assigned(registry, storage("a", "2"), storage("b", "3"), storage("c", "1")).names == ("b", "c", "a")


def test_new_storage_under_a_used_name_gets_records_of_its_own() -> None:
    registry = recorded(storage("lake", "file:///a/"))
    found = assigned(registry, storage("warehouse", "file:///a/"), storage("lake", "file:///b/"))
    assert found.names == ("lake", "lake_2")
    assert assigned(registry.with_places(found.changed), storage("lake", "file:///b/")).names == ("lake_2",)


def test_new_name_avoids_directories_and_configured_names() -> None:
    registry = with_id(recorded(storage("a", "1")), "a", "X")
    configured = storage("a", "2"), storage("a_2", "3")
    assert assigned(registry, *configured, existing=("a_3",)).names == ("a_4", "a_2")


def test_name_of_a_storage_is_not_used_for_a_lake() -> None:
    assert assigned(recorded(storage("x", "1")), lake("x", "1")).names == ("x_2",)


def test_moved_storage_with_its_id_keeps_its_records() -> None:
    registry = with_id(recorded(storage("a", "1"), storage("b", "2")), "a", "X")
    found = assigned(registry, storage("c", "3"), storage("b", "2"), ids={"c": "X"})
    assert found.names == ("a", "b")


def test_moved_storage_without_its_id_counts_as_new() -> None:
    registry = with_id(recorded(storage("a", "1")), "a", "X")
    found = assigned(registry, storage("a", "3"))
    assert found.names == ("a_2",)
    assert "gc-assets rename a a --by WHO" in found.notes[0]


def test_moved_storage_that_was_never_changed_keeps_its_records() -> None:
    found = assigned(recorded(storage("a", "1")), storage("a", "3"))
    assert found.names == ("a",)
    assert found.notes == ("storage a is at 3 now, and was at 1",)


def test_copy_of_a_storage_counts_as_new() -> None:
    registry = with_id(recorded(storage("a", "1")), "a", "X")
    assert assigned(registry, storage("a", "1"), storage("copy", "3"), ids={"a": "X", "copy": "X"}).names == ("a", "copy")


def test_two_copies_without_the_original_count_as_new() -> None:
    registry = with_id(recorded(storage("a", "1")), "a", "X")
    assert assigned(registry, storage("b", "2"), storage("c", "3"), ids={"b": "X", "c": "X"}).names == ("b", "c")


def test_other_catalog_under_a_used_name_is_another_lake() -> None:
    found = assigned(recorded(lake("sales", "iceberg x")), lake("sales", "iceberg y"))
    assert found.names == ("sales_2",)
    assert "gc-assets rename sales sales --by WHO" in found.notes[0]


def test_lake_that_moved_together_with_the_state_keeps_its_records() -> None:
    registry = recorded(lake("sales", "file:///a/catalog.db/", "state:../catalog.db"))
    assert assigned(registry, lake("sales", "file:///b/catalog.db/", "state:../catalog.db")).names == ("sales",)


def test_lakes_of_one_catalog_are_told_apart_by_their_tables() -> None:
    registry = recorded(lake("a", "x", detail="eu.*"), lake("b", "x", detail="us.*"))
    assert assigned(registry, lake("b", "x", detail="eu.*"), lake("a", "x", detail="us.*")).names == ("a", "b")
    assert assigned(registry, lake("a", "x", detail="eu.* ch.*"), lake("b", "x", detail="us.*")).names == ("a", "b")
    assert assigned(registry, lake("a", "x", detail="eu.*"), lake("c", "x", detail="us.*")).names == ("a", "b")


def test_former_place_is_recognized() -> None:
    registry = recorded(storage("a", "1"))
    moved = registry.with_places(assigned(registry, storage("a", "2")).changed)
    assert assigned(moved, storage("b", "1")).names == ("a",)
    assert assigned(moved, storage("b", "1"), storage("a", "2")).names == ("b", "a")


def test_symbolic_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    assert canonical_place("", f"file://{tmp_path}/link/") == canonical_place("", f"{tmp_path}/disk") == f"file://{tmp_path}/disk/"


def test_place_of_a_server_is_its_address() -> None:
    assert canonical_place("nessie ", "http://nessie:19120/api/v2") == "nessie http://nessie:19120/api/v2"
    assert spellings_of("nessie ", "http://nessie:19120/api/v2", "/state") == ()


def test_spelling_relative_to_the_state_survives_a_move() -> None:
    (_, before), (_, after) = (spellings_of("", f"/{root}/catalog.db", f"/{root}/state") for root in ("a", "b/c"))
    assert before == after == "state:../catalog.db"


def test_registry_is_read_as_written(tmp_path: Path) -> None:
    state, place = State.at(str(tmp_path)), Place(recorded_name="a", scope="storage", names=("a", "b"), places=("1",), storage_id="X")
    change_registry(state, lambda registry: registry.with_places([place]))
    assert read_registry(state).places == (place,)


@pytest.mark.parametrize("content, message", [("{", "is damaged"), ('{"version": 2}', "upgrade gc-assets")])
def test_unreadable_registry_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / PLACES).write_text(content)
    with pytest.raises(StateError, match=message):
        read_registry(State.at(str(tmp_path)))
