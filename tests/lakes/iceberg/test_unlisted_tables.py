"""A dropped table must not exist in its catalog under any identifier that its dotted name can mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from gc_assets.lakes.iceberg.catalog import CatalogClient, NotIceberg
from gc_assets.lakes.iceberg.unlisted_tables import find_listed, list_identifiers
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.expiry_actions import DAY, START
from tests.lakes.iceberg.rest_server import RestServer, serve_catalog

UNKNOWN = "7c0f5a52-3b1e-4f3c-9d0e-5b7d3c2a1f00"


class HidingServer:
    """A REST catalog with one table, which it returns only under one identifier."""

    def __init__(self, server: RestServer, uuid: str) -> None:
        self.uuid = uuid
        self.path: list[str] = []
        self.namespaces: dict[str, bool] = {"db": True}
        self.status = 404
        self.namespace_status = 200
        self.client = CatalogClient("sales", "rest", {"type": "rest", "uri": server.uri})
        self._document = server.get(["namespaces", "db", "tables", "t"], {})
        server.on_get = self._answer

    def _answer(self, path: list[str]) -> tuple[int, Any] | None:
        if path == ["config"]:
            return None
        if path == self.path:
            return 200, self._document
        if path == ["namespaces"]:
            return 200, {"namespaces": [[name] for name, is_listed in self.namespaces.items() if is_listed]}
        if len(path) == 2 and self.namespace_status == 403:
            return 403, {"error": {"message": "no access", "type": "ForbiddenException", "code": 403}}
        if len(path) == 2 and path[1] in self.namespaces:
            return 200, {"namespace": [path[1]], "properties": {}}
        return self.status, {"error": {"message": "no such table", "type": "NoSuchTableException", "code": self.status}}

    def ask(self, uuid: str, name: str, *, is_strict: bool = True) -> str | None:
        return find_listed(self.client, {uuid: name}, is_strict=is_strict).get(uuid)


@pytest.fixture
def hiding(tmp_path: Path) -> Iterator[HidingServer]:
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", START)
    table.append(START + DAY)
    with serve_catalog(builder) as server:
        yield HidingServer(server, str(table.table.metadata.table_uuid))


@pytest.mark.parametrize(
    "path",
    [
        ["namespaces", "eu%1Fshop", "tables", "orders"],
        ["namespaces", "eu.shop", "tables", "orders"],
        ["namespaces", "eu", "tables", "shop.orders"],
    ],
)
def test_table_missing_from_list_is_found_under_each_identifier(hiding: HidingServer, path: list[str]) -> None:
    hiding.path = path
    assert hiding.ask(hiding.uuid, "eu.shop.orders") == "its catalog still has eu.shop.orders, but does not list it"


def test_dropped_table_is_not_found_in_its_catalog(hiding: HidingServer) -> None:
    assert hiding.ask(hiding.uuid, "eu.shop.orders") is None


def test_another_table_missing_from_list_is_reported(hiding: HidingServer) -> None:
    hiding.path = ["namespaces", "db", "tables", "t"]
    assert hiding.ask(UNKNOWN, "db.t") == f"its catalog has another table db.t with uuid {hiding.uuid}, but does not list it"


def test_namespace_missing_from_list_is_found(hiding: HidingServer) -> None:
    hiding.namespaces = {"db": False}
    assert hiding.ask(hiding.uuid, "db.t") == "its catalog still has the namespace db, but does not list it"
    hiding.namespaces = {}
    assert hiding.ask(hiding.uuid, "db.t") is None


def test_denied_namespace_is_reported_only_in_strict_mode(hiding: HidingServer) -> None:
    hiding.namespace_status = 403
    assert (hiding.ask(UNKNOWN, "db.gone") or "").startswith("its catalog may still contain its namespace: ")
    assert hiding.ask(UNKNOWN, "db.gone", is_strict=False) is None
    hiding.path = ["namespaces", "db", "tables", "t"]
    assert hiding.ask(hiding.uuid, "db.t", is_strict=False) == "its catalog still has db.t, but does not list it"


def test_table_of_another_format_is_reported_only_in_strict_mode(hiding: HidingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(client: CatalogClient, identifier: tuple[str, ...]) -> None:
        raise NotIceberg(f"table {identifier} is not an Iceberg table")

    monkeypatch.setattr(CatalogClient, "load", load)
    assert (hiding.ask(UNKNOWN, "db.gone") or "").startswith("its catalog may still contain it: ")
    assert hiding.ask(UNKNOWN, "db.gone", is_strict=False) is None


@pytest.mark.parametrize("status", [403, 500])
def test_table_may_exist_if_catalog_returns_error(hiding: HidingServer, status: int) -> None:
    hiding.status = status
    assert (hiding.ask(hiding.uuid, "db.t") or "").startswith("its catalog may still contain it: ")


@pytest.mark.parametrize("hanging", ["load_table", "load_namespace_properties"])
@pytest.mark.parametrize("is_strict", [True, False])
def test_hanging_catalog_gets_only_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: str, is_strict: bool) -> None:
    """Each request to such a catalog waits for the whole deadline."""
    calls: list[object] = []

    def hang(client: RestCatalog, name: object) -> None:
        calls.append(name)
        raise TimeoutError("no answer after 300 s")

    with serve_catalog(LakeBuilder(tmp_path)) as server:
        client = CatalogClient("sales", "rest", {"type": "rest", "uri": server.uri})
        monkeypatch.setattr(RestCatalog, hanging, hang)
        found = find_listed(client, {"1": "a.x", "2": "a.y", "3": "b.z"}, is_strict=is_strict)
    assert len(calls) == 1
    assert found.keys() == {"1", "2", "3"}
    assert all(reason.startswith("its catalog may still contain it: ") for reason in found.values())


def test_table_without_a_known_uuid_is_found_by_its_name(hiding: HidingServer) -> None:
    hiding.path = ["namespaces", "db", "tables", "t"]
    assert hiding.ask("db.t", "db.t", is_strict=False) == "its catalog still has db.t, but does not list it"


def test_dotted_name_is_split_into_all_possible_identifiers() -> None:
    assert list(list_identifiers("t")) == []
    assert list(list_identifiers("db.t")) == [("db", "t")]
    assert list(list_identifiers("a.b.t")) == [("a", "b", "t"), ("a", "b.t"), ("a.b", "t")]
    assert len(list(list_identifiers("a.b.c.d.e.t"))) == 31
    assert len(list(list_identifiers(".".join("abcdefghijkl")))) == 12
