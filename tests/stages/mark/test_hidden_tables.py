"""A table that the previous run could not read stays unreadable and protected if the catalog hides
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.protocol import FrozenRefs, UnreadableTable
from gc_assets.stages.mark.content_roots import RootTables
from gc_assets.stages.mark.lake_refs import lake_refs, read_frozen_refs
from gc_assets.stages.mark.last_known import LastKnown
from gc_assets.state.files import Files
from gc_assets.state.summaries import UnreadTable
from tests.lakes.iceberg.builder import SCHEMA, LakeBuilder
from tests.lakes.iceberg.expiry_actions import START


class HidingLake:
    """A lake with tables `db.secret` and `db.other`, whose catalog changes its list."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.builder, self.patch = LakeBuilder(root), patch
        for name in ("db.secret", "db.other"):
            self.builder.table(name, START)
        storage = StorageConfig.model_validate({"name": "w", "location": f"file://{root}/warehouse/", "rehearsals": "allowed"})
        self.config = Config(state=str(root / "state"), storages=(storage,), lakes=(self.builder.config("sales"),))
        self.listed = CatalogClient.list_pointers

    def freeze(self, clock: Clock, secret: UnreadableTable | None) -> FrozenRefs:
        """Freeze the lake with a list that has another entry for `db.secret`, or none."""

        def list_pointers(client: CatalogClient) -> Iterator[Any]:
            yield from (item for item in self.listed(client) if getattr(item, "name", "") != "db.secret")
            yield from [] if secret is None else [secret]

        self.patch.setattr(CatalogClient, "list_pointers", list_pointers)
        context = RunContext.of(self.config, clock, clock.today())
        return read_frozen_refs(context, "sales", lake_refs(context, "sales"))


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HidingLake:
    return HidingLake(tmp_path, monkeypatch)


def shields_of(refs: FrozenRefs) -> set[str]:
    return {claim.address for claim in refs.claims if claim.is_unread and claim.table_name == "db.secret"}


@pytest.mark.parametrize("is_first_real", [False, True])
def test_never_read_table_stays_unreadable_if_catalog_stops_listing_it(lake: HidingLake, is_first_real: bool) -> None:
    """A catalog that denies loading a table shows no uuid. A rehearsal also compares with real
    runs.
    """
    now = Clock().now()
    first = lake.freeze(Clock() if is_first_real else Clock(now), UnreadableTable("db.secret", "RESTError 403"))
    assert shields_of(first)
    for day in (1, 2):
        refs = lake.freeze(Clock(now + timedelta(days=day)), None)
        assert shields_of(refs) == shields_of(first)
        assert [(item.table_name, item.reason) for item in refs.unreadable] == [
            (
                "db.secret",
                "its catalog still has db.secret, but does not list it. Grant the user of gc-assets the right to list it, "
                "or set it aside, or run again",
            )
        ]
    lake.builder.catalog.drop_table("db.secret")
    refs = lake.freeze(Clock(now + timedelta(days=3)), None)
    assert not refs.unreadable
    assert not shields_of(refs)


@pytest.mark.parametrize("has_copy", [False, True])
def test_files_of_table_that_catalog_hides_are_protected(lake: HidingLake, has_copy: bool) -> None:
    """`register_table` makes a copy with the same uuid, whose history is its own from then on. The copy stays listed."""
    now, catalog = Clock().now(), lake.builder.catalog
    if has_copy:
        catalog.register_table("db.copy", catalog.load_table("db.secret").metadata_location)
    read = RunContext.of(lake.config, Clock(now), Clock(now).today())
    first = read_frozen_refs(read, "sales", lake_refs(read, "sales"))
    claims = {claim.address for claim in first.claims if claim.table_name == "db.secret"}
    assert claims
    for day in (1, 2):
        refs = lake.freeze(Clock(now + timedelta(days=day)), None)
        assert [item.table_name for item in refs.unreadable] == ["db.secret"]
        assert shields_of(refs) == claims
    catalog.drop_table("db.secret")
    refs = lake.freeze(Clock(now + timedelta(days=3)), None)
    assert not refs.unreadable
    assert not shields_of(refs)


def test_hidden_table_is_protected_if_listed_table_has_its_name(lake: HidingLake) -> None:
    catalog, now = lake.builder.catalog, Clock().now()
    catalog.create_namespace("db.x")
    catalog.create_table(("db.x", "t"), SCHEMA)
    hidden = catalog.create_table(("db", "x.t"), SCHEMA)

    def freeze(day: int) -> FrozenRefs:
        context = RunContext.of(lake.config, Clock(now + timedelta(days=day)), (now + timedelta(days=day)).date())
        return read_frozen_refs(context, "sales", lake_refs(context, "sales"))

    first = freeze(0)
    claims = {claim.address for claim in first.claims if claim.table_uuid == str(hidden.metadata.table_uuid)}
    address, listed = hidden.metadata_location, lake.listed
    lake.patch.setattr(
        CatalogClient,
        "list_pointers",
        lambda client: (item for item in listed(client) if getattr(item, "metadata_location", "") != address),
    )
    lake.patch.setattr(CatalogClient, "find_identifiers", lambda *_: [("db", "x", "t")])
    for day in (1, 2):
        refs = freeze(day)
        assert [item.table_name for item in refs.unreadable] == ["db.x.t"]
        assert {claim.address for claim in refs.claims if claim.is_unread} == claims
    catalog.drop_table(("db", "x.t"))
    refs = freeze(3)
    assert not refs.unreadable
    assert not [claim for claim in refs.claims if claim.is_unread]


def test_renamed_table_does_not_count_as_hidden(lake: HidingLake) -> None:
    now = Clock().now()
    lake.freeze(Clock(now), UnreadableTable("db.secret", "RESTError 403"))
    lake.builder.catalog.rename_table("db.other", "db.renamed")
    lake.builder.catalog.drop_table("db.secret")
    assert not lake.freeze(Clock(now + timedelta(days=1)), None).unreadable


def last_known(addresses: Mapping[str, str], *uuids: str) -> LastKnown:
    roots: Any = RootTables
    return LastKnown(
        Files("/nowhere"), date(2026, 3, 14), roots, (), (), {uuid: {uuid} for uuid in uuids}, (), (), addresses, KeyResolver([])
    )


def unread(name: str, address: str | None) -> UnreadTable:
    return UnreadTable(table_name=name, why="403", address=address)


def test_missing_table_matches_unreadable_table_in_its_location() -> None:
    known = last_known({"a": "s3://b/a/metadata/1.json", "b": "s3://b/b/metadata/1.json"}, "a", "b", "unknown", "found")
    located = unread("x", "s3://b/a/metadata/2.json")
    assert known.find_renamed([], ["found"]) == {}
    assert known.find_renamed([located], ["found"]) == {"a": located, "unknown": located}
    anywhere = unread("y", None)
    assert known.find_renamed([located, anywhere], ["found"]) == {"a": located, "b": anywhere, "unknown": located}


def test_many_missing_tables_are_compared_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    count, resolved = 300, list[str]()
    monkeypatch.setattr(KeyResolver, "resolve_one", lambda _, address: resolved.append(address))
    uuids = [f"{number:04}" for number in range(count)]
    known = last_known({uuid: f"s3://b/{uuid}/metadata/1.json" for uuid in uuids}, *uuids)
    items = [unread(f"x{uuid}", f"s3://b/{uuid}/metadata/2.json") for uuid in uuids]
    assert known.find_renamed(items, []) == dict(zip(uuids, items, strict=True))
    assert len(resolved) == 2 * count
