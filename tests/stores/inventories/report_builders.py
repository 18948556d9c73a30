"""Inventory reports about a bucket, written by the documented layouts without the code under test.

The layouts are those of AWS S3 Inventory (User Guide, storage-inventory-location), and of
`docs/s3-reference.md` for plain reports.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from gc_assets.config.models import InventoryConfig, StorageConfig
from gc_assets.stores.protocol import Lister
from gc_assets.stores.store import open_lister
from tests.stores.s3_bench import S3Bench

Row = dict[str, Any]
Put = Callable[[str, bytes], None]

# Field of the configuration, column of ORC and Parquet, Arrow type, and type in each `fileSchema`.
FIELDS: Final = (
    ("Bucket", "bucket", pa.string(), "string", "required binary {} (UTF8)"),
    ("Key", "key", pa.string(), "string", "required binary {} (UTF8)"),
    ("VersionId", "version_id", pa.string(), "string", "optional binary {} (UTF8)"),
    ("IsLatest", "is_latest", pa.bool_(), "boolean", "optional boolean {}"),
    ("IsDeleteMarker", "is_delete_marker", pa.bool_(), "boolean", "optional boolean {}"),
    ("Size", "size", pa.int64(), "bigint", "optional int64 {}"),
    ("LastModifiedDate", "last_modified_date", pa.timestamp("ms", "UTC"), "timestamp", "optional int64 {} (TIMESTAMP(MILLIS,true))"),
    ("ETag", "e_tag", pa.string(), "string", "optional binary {} (UTF8)"),
    ("StorageClass", "storage_class", pa.string(), "string", "optional binary {} (UTF8)"),
    ("EncryptionStatus", "encryption_status", pa.string(), "string", "optional binary {} (UTF8)"),
)
VERSION_FIELDS: Final = {"VersionId", "IsLatest", "IsDeleteMarker"}


def list_rows(bench: S3Bench, whole_bucket: bool = True) -> list[Row]:
    """Return what boto3 lists, with the column names of ORC and Parquet.

    Lists the whole bucket, or the storage's prefix.
    """
    prefix = "" if whole_bucket else bench.prefix
    params = {"Bucket": bench.bucket, "Prefix": prefix}
    if bench.mode != "versioned":
        found = [item for page in bench.client.get_paginator("list_objects_v2").paginate(**params) for item in page.get("Contents", [])]
        return [_row(bench.bucket, item) for item in found]
    pages = list(bench.client.get_paginator("list_object_versions").paginate(**params))
    versions = [{**item, "IsDeleteMarker": False} for page in pages for item in page.get("Versions", [])]
    versions += [{**item, "IsDeleteMarker": True} for page in pages for item in page.get("DeleteMarkers", [])]
    return [{**_row(bench.bucket, item), **_version(item)} for item in versions]


def _row(bucket: str, item: Mapping[str, Any]) -> Row:
    etag = item.get("ETag")
    values: Row = {"bucket": bucket, "key": item["Key"], "last_modified_date": item["LastModified"]}
    values |= {"size": item.get("Size"), "e_tag": etag and etag.strip('"'), "storage_class": item.get("StorageClass")}
    return {**values, "encryption_status": "NOT-SSE"}


def _version(item: Mapping[str, Any]) -> Row:
    return {"version_id": item["VersionId"], "is_latest": item["IsLatest"], "is_delete_marker": item["IsDeleteMarker"]}


@dataclass
class S3Report:
    """An S3 Inventory of these rows in `YYYY-MM-DDTHH-MMZ/`. Fields inject defects."""

    rows: Sequence[Row]
    scan: datetime
    file_format: str = "CSV"
    bucket: str = "source"
    fields: Sequence[str] | None = None
    files: int = 2
    manifest: dict[str, Any] = field(default_factory=dict)
    unfinished: bool = False
    spoil: Callable[[str, bytes], bytes | None] = lambda _, content: content

    def write(self, put: Put) -> None:
        files = []
        for number in range(self.files):
            content = self._content(self.rows[number :: self.files])
            name = f"data/{self.scan:%m%d%H%M}-{number:04d}.{'csv.gz' if self.file_format == 'CSV' else self.file_format.lower()}"
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            files.append({"key": f"reports/{self.bucket}/daily/{name}", "size": len(content), "MD5checksum": md5})
            self._put(put, name, content)
        folder = f"{self.scan:%Y-%m-%dT%H-%MZ}/"
        document = {
            "sourceBucket": self.bucket,
            "destinationBucket": "arn:aws:s3:::reports",
            "version": "2016-11-30",
            "creationTimestamp": str(int(self.scan.timestamp() * 1000)),
            "fileFormat": self.file_format,
            "fileSchema": self._schema(),
            "files": files,
        }
        content = json.dumps({**document, **self.manifest}).encode()
        self._put(put, f"{folder}manifest.json", content)
        put(f"hive/dt={self.scan:%Y-%m-%d-%H-%M}/symlink.txt", b"")
        if not self.unfinished:
            self._put(put, f"{folder}manifest.checksum", hashlib.md5(content, usedforsecurity=False).hexdigest().encode())

    def _put(self, put: Put, name: str, content: bytes) -> None:
        damaged = self.spoil(name, content)
        if damaged is not None:
            put(name, damaged)

    def _columns(self) -> list[tuple[str, str, pa.DataType, str, str]]:
        versions = any("version_id" in row for row in self.rows)
        names = self.fields or [name for name, *_ in FIELDS if versions or name not in VERSION_FIELDS]
        return [next(column for column in FIELDS if column[0] == name) for name in names]

    def _schema(self) -> str:
        columns = self._columns()
        if self.file_format == "CSV":
            return ", ".join(name for name, *_ in columns)
        if self.file_format == "ORC":
            return f"struct<{','.join(f'{column}:{kind}' for _, column, _, kind, _ in columns)}>"
        return f"message s3.inventory {{ {' '.join(text.format(column) + ';' for _, column, _, _, text in columns)} }}"

    def _content(self, rows: Sequence[Row]) -> bytes:
        columns = self._columns()
        if self.file_format == "CSV":
            text = io.StringIO()
            writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
            writer.writerows([_cell(name, row.get(column)) for name, column, *_ in columns] for row in rows)
            return gzip.compress(text.getvalue().encode())
        schema = pa.schema([(column, kind) for _, column, kind, *_ in columns])
        table, out = (
            pa.Table.from_pylist([{column: row.get(column) for column in schema.names} for row in rows], schema=schema),
            io.BytesIO(),
        )
        if self.file_format == "ORC":
            orc.write_table(table, out, compression="ZLIB")
        else:
            pq.write_table(table, out, compression="snappy")
        return out.getvalue()


def _cell(name: str, value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else quote_plus(str(value), safe="/*-._") if name == "Key" else str(value)


# Columns of a plain report, by those of ORC and Parquet.
PLAIN_COLUMNS: Final = {"size": "size_bytes", "last_modified_date": "last_modified", "e_tag": "etag"}


@dataclass
class PlainReport:
    """A plain report of these rows."""

    rows: Sequence[Row]
    scan: datetime
    file_format: str = "parquet"
    bucket: str = "source"
    prefix: str = ""
    manifest: dict[str, Any] = field(default_factory=dict)
    file: dict[str, Any] = field(default_factory=dict)

    def write(self, put: Put) -> None:
        folder = f"{self.scan:%Y-%m-%dT%H-%M-%SZ}/"
        rows = [{PLAIN_COLUMNS.get(name, name): value for name, value in row.items() if name != "encryption_status"} for row in self.rows]
        content = self._csv(rows) if self.file_format == "csv" else self._parquet(rows)
        put(f"{folder}part-0.{self.file_format}", content)
        file = {"name": f"part-0.{self.file_format}", "size": len(content), "rows": len(rows), **self.file}
        versions = any("version_id" in row for row in rows)
        document = {"bucket": self.bucket, "prefix": self.prefix, "format": self.file_format, "versions": versions, "files": [file]}
        put(f"{folder}manifest.json", json.dumps({**document, **self.manifest}).encode())

    def _csv(self, rows: Sequence[Row]) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        names = list(rows[0]) if rows else ["key", "size_bytes", "last_modified", "etag"]
        writer.writerow(names)
        writer.writerows([_cell("", row[name]) for name in names] for row in rows)
        return text.getvalue().encode()

    def _parquet(self, rows: Sequence[Row]) -> bytes:
        out = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(rows)), out)
        return out.getvalue()


@dataclass
class AzureReport:
    """A report of the `name` rule of Azure Blob inventory, with one blob for each name."""

    blobs: Sequence[str]
    scan: datetime
    name: str = "rule"
    filters: dict[str, Any] = field(default_factory=dict)
    rule: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    spoil: Callable[[str, bytes], bytes] = lambda _, content: content

    def write(self, put: Put) -> None:
        folder = f"{self.scan:%Y/%m/%d/%H-%M-%S}/{self.name}/"
        time = f"{self.scan:%Y-%m-%dT%H:%M:%SZ}"
        rows = "".join(f"{blob},{time},1,e\n" for blob in self.blobs)
        content = f"Name,Last-Modified,Content-Length,Etag\n{rows}".encode()
        put(f"{folder}{self.name}.csv", content)
        filters = {"blobTypes": ["blockBlob", "appendBlob"], "prefixMatch": ["source/"], **self.filters}
        document = {
            "files": [{"blob": f"{folder}{self.name}.csv", "size": len(content)}],
            "inventoryStartTime": time,
            "ruleDefinition": {"filters": filters, "format": "csv", "objectType": "blob", **self.rule},
            "ruleName": self.name,
            "status": "Succeeded",
            "summary": {"objectCount": len(self.blobs)},
        }
        manifest = json.dumps({**document, **self.manifest}).encode()
        checksum = hashlib.md5(manifest, usedforsecurity=False).hexdigest().encode()
        for name, content in ((f"{folder}{self.name}-manifest.json", manifest), (f"{folder}{self.name}-manifest.checksum", checksum)):
            put(name, self.spoil(name, content))


@dataclass
class GcsReport:
    """A report of the configuration `config` about a bucket, with one object for each name."""

    names: Sequence[str]
    scan: datetime
    config: str = "7f"
    bucket: Any = "source"
    options: str = "object_metadata_report_options"
    filters: str = "storage_filters"
    manifest: dict[str, Any] = field(default_factory=dict)

    def write(self, put: Put) -> None:
        prefix, time = f"{self.config}_{self.scan:%Y-%m-%dT%H:%M}", f"{self.scan:%Y-%m-%dT%H:%M:%SZ}"
        rows = "".join(f"{self.bucket},{name},1,{time},17,1,\n" for name in self.names)
        put(f"{prefix}_0.csv", f"bucket,name,size,updated,generation,metageneration,timeDeleted\n{rows}".encode())
        document = {
            "report_config": {self.options: {self.filters: {"bucket": self.bucket}}},
            "records_processed": len(self.names),
            "snapshot_time": time,
            "shard_count": 1,
            "report_shards_file_names": [f"{prefix}_0.csv"],
        }
        put(f"{prefix}_manifest.json", json.dumps({**document, **self.manifest}).encode())


def write_to_disk(root: Path) -> Put:
    def put(name: str, content: bytes) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return put


def write_to_bucket(client: Any, bucket: str, prefix: str) -> Put:
    return lambda name, content: client.put_object(Bucket=bucket, Key=prefix + name, Body=content)


def open_report_lister(bench: S3Bench, location: str, kind: str = "s3", **settings: Any) -> Lister:
    inventory = InventoryConfig.model_validate({"kind": kind, "location": location, **settings})
    return open_lister(StorageConfig(name="s", location=bench.store.location, inventory=inventory), bench.connections)


def formats() -> Iterator[str]:
    yield from ("CSV", "ORC", "Parquet")
