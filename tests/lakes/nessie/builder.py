"""Build real Iceberg tables under a real Nessie server: pyiceberg writes the files, API v2 commits.

Nessie sets the commit times from its own clock, so tests change the time of the policy and not that
of commits. File times are long before, so that no file is in the grace period.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata

from gc_assets.lakes.nessie.config import NessieLakeConfig
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.nessie.server import api_at, path_of

LONG_AGO = datetime.now(UTC).replace(microsecond=0) - timedelta(days=40)
Json = dict[str, Any]


class NessieBuilder:
    """The refs of one server over one warehouse directory.

    `listed` sets the snapshots in a metadata file: `one` as with Nessie's Iceberg REST, or `all` as
    with the native catalogs of engines.
    """

    def __init__(self, uri: str, warehouse: Path, listed: str = "one") -> None:
        self.uri = uri
        self.warehouse = warehouse
        self.listed = listed
        self.api = api_at(uri)
        warehouse.mkdir(parents=True, exist_ok=True)

    def config(self, name: str = "shop", **settings: Any) -> NessieLakeConfig:
        return NessieLakeConfig.model_validate({"name": name, "kind": "nessie", "uri": self.uri, **settings})

    def on(self, branch: str = "main") -> BranchBuilder:
        return BranchBuilder(self, branch)

    def ref(self, name: str) -> Json:
        return self._parse(self.api.get(f"trees/{quote(name, safe='')}"))["reference"]

    def head(self, name: str = "main") -> str:
        return self.ref(name)["hash"]

    def branch(self, name: str, source: str = "main", at: str | None = None) -> None:
        self._create(name, "BRANCH", source, at)

    def create_empty(self, name: str) -> None:
        """Create a branch without commits."""
        nothing = self._parse(self.api.get("config"))["noAncestorHash"]
        body = {"type": "BRANCH", "name": "main", "hash": nothing}
        self._parse(self.api.post("trees", params={"name": name, "type": "BRANCH"}, json=body))

    def tag(self, name: str, source: str = "main", at: str | None = None) -> None:
        self._create(name, "TAG", source, at)

    def drop(self, name: str) -> None:
        reference = self.ref(name)
        self._parse(self.api.delete(f"trees/{path_of(reference)}", params={"type": reference["type"]}))

    def assign(self, name: str, to: str) -> None:
        """Assign a ref to another commit."""
        reference = self.ref(name)
        target = {"type": "DETACHED", "hash": to}
        self._parse(self.api.put(f"trees/{path_of(reference)}", params={"type": reference["type"]}, json=target))

    def merge(self, source: str, into: str = "main") -> str:
        body = {"fromRefName": source, "fromHash": self.head(source)}
        self._parse(self.api.post(f"trees/{path_of(self.ref(into))}/history/merge", json=body))
        return self.head(into)

    def transplant(self, commits: Sequence[str], source: str, into: str = "main") -> str:
        body = {"fromRefName": source, "hashesToTransplant": list(commits)}
        self._parse(self.api.post(f"trees/{path_of(self.ref(into))}/history/transplant", json=body))
        return self.head(into)

    def commit(self, operations: Sequence[Json], branch: str = "main", message: str = "test") -> str:
        """Commit raw operations, and return the hash."""
        body = {"commitMeta": {"message": message}, "operations": list(operations)}
        return self._parse(self.api.post(f"trees/{path_of(self.ref(branch))}/history/commit", json=body))["targetBranch"]["hash"]

    def put(self, key: Sequence[str], content: Json, branch: str = "main") -> str:
        """Commit one content with its parent namespaces, and return the hash."""
        return self.commit([*self.namespaces(key, branch), put(key, content)], branch)

    def namespaces(self, key: Sequence[str], branch: str) -> list[Json]:
        parents = [tuple(key[:depth]) for depth in range(1, len(key))]
        return [put(name, {"type": "NAMESPACE", "elements": list(name)}) for name in parents if self.content(name, branch) is None]

    def content(self, key: Sequence[str], at: str = "main") -> Json | None:
        """Return the content of a key on a ref or at `@hash`, or None if it does not exist."""
        ref = at if at.startswith("@") else path_of(self.ref(at))
        found = self._parse(self.api.post(f"trees/{ref}/contents", json={"requestedKeys": [{"elements": list(key)}]}))
        return found["contents"][0]["content"] if found["contents"] else None

    def time_of(self, commit: str) -> datetime:
        """Return the commit time of Nessie."""
        entry = self._parse(self.api.get(f"trees/@{commit}/history", params={"max-records": 1}))["logEntries"][0]
        return parse_time(entry["commitMeta"]["commitTime"])

    def _create(self, name: str, kind: str, source: str, at: str | None) -> None:
        body = {**self.ref(source), "hash": at or self.head(source)}
        self._parse(self.api.post("trees", params={"name": name, "type": kind}, json=body))

    @staticmethod
    def _parse(answer: httpx.Response) -> Json:
        assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}


def parse_time(text: str) -> datetime:
    """Return the first microsecond at which the server shows a commit. Its times have nanoseconds, which Python drops."""
    has_nanoseconds = len(text.partition(".")[2].rstrip("Z0")) > 6
    return datetime.fromisoformat(text) + timedelta(microseconds=has_nanoseconds)


def put(key: Sequence[str], content: Json) -> Json:
    return {"type": "PUT", "key": {"elements": list(key)}, "content": content}


def delete(key: Sequence[str]) -> Json:
    return {"type": "DELETE", "key": {"elements": list(key)}}


def iceberg_table(metadata_location: str, snapshot_id: int = -1, content_id: str | None = None) -> Json:
    content = {"metadataLocation": metadata_location, "snapshotId": snapshot_id, "schemaId": 0, "specId": 0, "sortOrderId": 0}
    return {"type": "ICEBERG_TABLE", **content, **({} if content_id is None else {"id": content_id})}


class BranchBuilder(LakeBuilder):
    """The tables of one branch, written by `LakeBuilder`."""

    def __init__(self, nessie: NessieBuilder, branch: str) -> None:
        self.nessie = nessie
        self.branch_name = branch
        self.root = self.warehouse = nessie.warehouse
        self.address = f"file://{self.warehouse}"
        self.catalog = _Catalog(nessie, branch)  # type: ignore[assignment]  # it has all that LakeBuilder uses
        self._dated = self.files()

    def new(self, name: str, *, rows: bool = True, **settings: Any) -> TableBuilder:
        """Create a table with one data file."""
        table = self.table(name, LONG_AGO, **settings)
        if rows:
            self.append(name)
        return table

    def existing(self, name: str) -> TableBuilder:
        return TableBuilder(self, name)

    def append(self, name: str) -> str:
        """Append a data file, and return the hash of the commit."""
        TableBuilder(self, name).append(LONG_AGO)
        return self.nessie.head(self.branch_name)

    def overwrite(self, name: str) -> str:
        """Overwrite all rows by one new data file, and return the hash of the commit."""
        TableBuilder(self, name).overwrite(LONG_AGO)
        return self.nessie.head(self.branch_name)

    def move(self, name: str, place: str) -> str:
        """Change the location of the table without moving its files."""
        table, key = self.existing(name).table, tuple(name.split("."))
        location = f"file://{self.warehouse}/{place}"
        address = f"{location}/metadata/00099-{uuid.uuid4()}.metadata.json"
        MetastoreCatalog._write_metadata(table.metadata.model_copy(update={"location": location}), table.io, address)
        self.date_files(LONG_AGO)
        existing_content = self.nessie.content(key, self.branch_name)
        assert existing_content is not None
        return self.nessie.put(key, {**existing_content, "metadataLocation": address}, self.branch_name)

    def drop(self, name: str) -> str:
        return self.nessie.commit([delete(name.split("."))], self.branch_name)

    def rename(self, name: str, to: str) -> str:
        content = self.nessie.content(name.split("."), self.branch_name)
        assert content is not None
        return self.nessie.commit([delete(name.split(".")), put(to.split("."), content)], self.branch_name)

    def view(self, name: str) -> str:
        """Create a view or a new version of it, and return the address of its metadata file."""
        location = f"file://{self.warehouse}/{name.replace('.', '/')}"
        existing_content = self.nessie.content(name.split("."), self.branch_name)
        address = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        document = {"view-uuid": str(uuid.uuid4()), "format-version": 1, "location": location, "versions": [], "schemas": []}
        path = TableBuilder.path(address)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
        self.date_files(LONG_AGO)
        content = {"type": "ICEBERG_VIEW", "metadataLocation": address, "versionId": 1, "schemaId": 0, "sqlText": "s", "dialect": "d"}
        self.nessie.put(
            name.split("."), {**content, **({} if existing_content is None else {"id": existing_content["id"]})}, self.branch_name
        )
        return address


class _Catalog(NoopCatalog, MetastoreCatalog):
    """The catalog of `TableBuilder` for one branch, with Nessie's contents as table pointers."""

    def __init__(self, nessie: NessieBuilder, branch: str) -> None:
        super().__init__(branch, warehouse=f"file://{nessie.warehouse}")
        self._nessie = nessie
        self._branch = branch

    def create_namespace_if_not_exists(self, namespace: Any, properties: Mapping[str, str] | None = None) -> None:
        """Do nothing: namespaces are put with the first table in them."""

    def create_table(self, identifier: Any, schema: Any, location: str | None = None, partition_spec: Any = None, **settings: Any) -> Table:
        spec = partition_spec or UNPARTITIONED_PARTITION_SPEC
        # Each creation has a new location, as with Nessie's REST and Trino.
        location = location or f"file://{self._nessie.warehouse}/{'/'.join(_key(identifier))}_{uuid.uuid4()}"
        staged = self._create_staged_table(identifier, schema, location, spec, properties=settings.get("properties", {}))
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._nessie.put(_key(identifier), iceberg_table(staged.metadata_location), self._branch)
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        content = self._nessie.content(_key(identifier), self._branch)
        assert content is not None, f"{identifier} is not on {self._branch}"
        return open_table(content["metadataLocation"], _key(identifier), self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        current = self.load_table(table.name())
        existing_content = self._nessie.content(table.name(), self._branch)
        assert existing_content is not None
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        metadata = self._keep_current_snapshot(staged.metadata)
        self._write_metadata(metadata, staged.io, staged.metadata_location)
        head = metadata.current_snapshot_id
        content = iceberg_table(staged.metadata_location, -1 if head is None else head, existing_content["id"])
        self._nessie.put(table.name(), content, self._branch)
        return CommitTableResponse(metadata=metadata, metadata_location=staged.metadata_location)

    def _keep_current_snapshot(self, metadata: TableMetadata) -> TableMetadata:
        if self._nessie.listed == "all":
            return metadata
        current = metadata.current_snapshot_id
        return metadata.model_copy(
            update={
                "snapshots": [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id == current],
                "snapshot_log": [],
                "metadata_log": [],
                "statistics": [item for item in metadata.statistics if item.snapshot_id == current],
                "partition_statistics": [item for item in metadata.partition_statistics if item.snapshot_id == current],
            }
        )


def open_table(metadata_location: str, name: tuple[str, ...] = ("t",), catalog: Any = None) -> Table:
    """Open a metadata file with pyiceberg."""
    io = load_file_io({}, metadata_location)
    metadata = FromInputFile.table_metadata(io.new_input(metadata_location))
    return Table(name, metadata, metadata_location, io, catalog or NoopCatalog("none"))


def _key(identifier: Any) -> tuple[str, ...]:
    return tuple(identifier.split(".")) if isinstance(identifier, str) else tuple(identifier)
