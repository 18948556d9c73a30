"""Of a REST catalog's answer only the metadata address is needed, and an odd answer affects one table or view.

pyiceberg refuses a table with a type that it does not know, such as `variant` of format version 3. The file itself is read without
knowledge of types. Views are listed, and their metadata is pinned.

Sources: apache/gravitino #11927, apache/iceberg-python #3975, trinodb/trino #26541, and the Iceberg view spec ("View Metadata").
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr
from pyiceberg.catalog import Catalog

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.iceberg.raw_pointers import RawPointer, read_raw_pointer
from gc_assets.lakes.protocol import FrozenRefs, View
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.rest_server import RestServer, serve_catalog
from tests.stages.lakehouse import NOW, days_ago

TABLES = ("good", "odd")
VIEW = {"view-uuid": "8f0a291b-f981-472c-9e4d-33ed4e5bab50", "location": "file:///v", "versions": [{"version-id": 1, "timestamp-ms": 7}]}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> LakeBuilder:
    builder = LakeBuilder(tmp_path_factory.mktemp("rest"))
    for name in TABLES:
        builder.table(f"db.{name}", days_ago(9)).append(days_ago(9))
    return builder


@pytest.fixture
def server(builder: LakeBuilder) -> Iterator[RestServer]:
    with serve_catalog(builder) as found:
        yield found


def freeze(server: RestServer) -> FrozenRefs:
    properties = {"type": SecretStr("rest"), "uri": SecretStr(server.uri)}
    config = server.builder.config("sales").model_copy(update={"catalog": properties})
    return IcebergLake(config, LocalObjects()).freeze(NOW)


def inject(server: RestServer, path: list[str], status: int, answer: Any) -> None:
    server.on_get = lambda requested: (status, answer) if requested == path else None


def table_answer(server: RestServer, name: str) -> dict[str, Any]:
    found = server.get(["namespaces", "db", "tables", name], {})
    assert found is not None
    return found


def table_names(frozen: FrozenRefs) -> set[str | None]:
    return {source.table_name for source in frozen.sources}


VARIANT = {"id": 9, "name": "v", "required": False, "type": "variant"}


def test_table_with_unknown_type_is_read_without_history_edits(server: RestServer, tmp_path: Path) -> None:
    answer = table_answer(server, "odd")
    answer["metadata"] |= {"format-version": 3, "next-row-id": 0}
    answer["metadata"]["schemas"][0]["fields"].append(VARIANT)
    file = tmp_path / "00002-v.metadata.json"
    file.write_text(json.dumps(answer["metadata"]))
    answer["metadata-location"] = f"file://{file}"
    inject(server, ["namespaces", "db", "tables", "odd"], 200, answer)
    frozen = freeze(server)
    assert frozen.unreadable == ()
    writable = {source.table_name: source.properties.get("writable") for source in frozen.sources}
    assert writable == {"db.good": None, "db.odd": "false"}
    assert {claim.table_name for claim in frozen.claims} == {"db.good", "db.odd"}


@pytest.mark.parametrize(
    "status, answer", [(404, {}), (403, {}), (500, {}), (200, {}), (200, []), (200, {"metadata-location": 7}), (200, "x")]
)
def test_table_that_fails_to_load_is_reported_by_name(server: RestServer, status: int, answer: Any) -> None:
    inject(server, ["namespaces", "db", "tables", "odd"], status, answer)
    frozen = freeze(server)
    assert table_names(frozen) == {"db.good"}
    assert [item.table_name for item in frozen.unreadable] == ["db.odd"]
    assert "table db.odd" in frozen.unreadable[0].reason


def serve_view(server: RestServer, answer: tuple[int, Any], listed: tuple[int, Any] | None = None) -> None:
    """Serve the view `db.v`. `answer` and `listed` are a status and a document."""
    names = (200, {"identifiers": [{"namespace": ["db"], "name": "v"}]})
    answers = {
        ("config",): (200, {"defaults": {}, "overrides": {"view-endpoints-supported": "true"}}),
        ("namespaces", "db", "views"): listed or names,
        ("namespaces", "db", "views", "v"): answer,
    }
    server.on_get = lambda path: answers.get(tuple(path))


def test_metadata_of_view_is_protected(server: RestServer, tmp_path: Path) -> None:
    file = tmp_path / "00001-v.gz.metadata.json"
    file.write_bytes(gzip.compress(json.dumps(VIEW).encode()))
    serve_view(server, (200, {"metadata-location": f"file://{file}", "metadata": {"unknown": 1}}))
    frozen = freeze(server)
    assert [(root.address, root.must_exist) for root in frozen.pinned if root.kind == Kind.VIEW_METADATA] == [(f"file://{file}", False)]
    assert frozen.views == (View(VIEW["view-uuid"], "db.v", 7),)
    assert table_names(frozen) == {"db.good", "db.odd"}


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"view-uuid": 1}'])
def test_unreadable_metadata_of_view_is_protected_with_note(server: RestServer, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "00001-v.gz.metadata.json"
    if content is not None:
        file.write_bytes(content)
    serve_view(server, (200, {"metadata-location": f"file://{file}"}))
    frozen = freeze(server)
    assert f"file://{file}" in {root.address for root in frozen.pinned}
    assert [note for note in frozen.notes if "view db.v" in note]
    assert table_names(frozen) == {"db.good", "db.odd"}


@pytest.mark.parametrize("answer, listed", [((403, {}), None), ((200, {"metadata-location": None}), None), ((200, {}), (500, {}))])
def test_view_that_fails_to_load_is_reported_as_note(server: RestServer, answer: tuple[int, Any], listed: tuple[int, Any] | None) -> None:
    serve_view(server, answer, listed)
    frozen = freeze(server)
    assert [note for note in frozen.notes if "cannot be read" in note and "foreign_metadata" in note]
    assert table_names(frozen) == {"db.good", "db.odd"}


class FakeHive:
    """The methods of pyiceberg's Hive and Glue catalogs that read a table, which need a server."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._get_glue_table = lambda database_name, table_name: {"Parameters": parameters, "Name": (database_name, table_name)}


def test_metadata_address_of_glue_table_is_read_from_table_parameters() -> None:
    client = cast("Catalog", FakeHive({"metadata_location": "s3://b/t/metadata/1.metadata.json"}))
    assert read_raw_pointer(client, ("db", "t")) == RawPointer("s3://b/t/metadata/1.metadata.json")


def test_catalog_of_unknown_type_has_no_raw_metadata_pointer() -> None:
    assert read_raw_pointer(cast("Catalog", SimpleNamespace()), ("db", "t")) is None
