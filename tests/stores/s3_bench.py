"""A bucket of a real S3 server as a store under test, with boto3 as the other writer."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from botocore.exceptions import ClientError

from gc_assets.config.connections import Connections
from gc_assets.stores.protocol import QuarantineMode, Store
from gc_assets.stores.store import open_store
from tests.depth import example_count
from tests.s3.servers import S3Server, shared_server

PREFIX = "lake/ä b+%2F/"


@dataclass(frozen=True)
class S3Bench:
    """`prefix` is the storage's prefix in the bucket."""

    server: S3Server
    client: Any
    bucket: str
    prefix: str
    store: Store
    connections: Connections
    mode: QuarantineMode
    # Answers to GET and HEAD have times in whole seconds.
    tick: timedelta = timedelta(seconds=1)
    many: int = example_count(40, 100)
    refused: frozenset[str] = frozenset()

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=content)

    def get(self, key: str) -> bytes | None:
        try:
            return self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:
                return None
            raise

    def remove(self, key: str) -> None:
        """Remove an object permanently, with all versions, including those under a delete marker."""
        listed = self.client.list_object_versions(Bucket=self.bucket, Prefix=self.prefix + key)
        versions = [item for kind in ("Versions", "DeleteMarkers") for item in listed.get(kind, [])]
        for item in versions:
            if item["Key"] == self.prefix + key:
                self.client.delete_object(Bucket=self.bucket, Key=item["Key"], VersionId=item["VersionId"])

    def everything(self) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        return {item["Key"].removeprefix(self.prefix) for page in pages for item in page.get("Contents", [])}


@functools.cache
def _bucket(server: S3Server, *, versioned: bool, suspended: bool) -> str:
    """Return a bucket that all tests share. Each test has its own prefix."""
    name = server.bucket(versioned=versioned or suspended)
    if suspended:
        server.client().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    return name


@contextmanager
def open_s3_bench(
    kind: str, *, versioned: bool = False, suspended: bool = False, prefix: str = PREFIX, own: bool = False
) -> Iterator[S3Bench]:
    """Return a new storage under its own prefix in a shared bucket of the server.

    With `own`, the bucket is new, for tests that change its settings.
    """
    server, storage_prefix = shared_server(kind), f"{prefix}{secrets.token_hex(4)}/"
    bucket = server.bucket(versioned) if own else _bucket(server, versioned=versioned, suspended=suspended)
    connections = Connections.of(server.settings)
    yield S3Bench(
        server,
        server.client(),
        bucket,
        storage_prefix,
        open_store(f"s3://{bucket}/{storage_prefix}", connections),
        connections,
        "versioned" if versioned else "trash",
    )
