"""A bucket of a real S3 server as a store under test, and another writer there: boto3."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from botocore.exceptions import ClientError

from gc_assets.config.s3 import Connections
from gc_assets.stores.protocol import QuarantineMode, Store
from gc_assets.stores.store import open_store
from tests.depth import example_count
from tests.s3.servers import S3Server, shared_server

PREFIX = "lake/ä b+%2F/"


@dataclass(frozen=True)
class S3Bench:
    """`prefix` is where the storage lies in the bucket."""

    server: S3Server
    client: Any
    bucket: str
    prefix: str
    store: Store
    connections: Connections
    mode: QuarantineMode
    # Answers to GET and HEAD say the time in whole seconds.
    tick: timedelta = timedelta(seconds=1)
    many: int = example_count(40, 100)

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
        """For good, with all versions: what lies below a delete marker is not gone."""
        listed = self.client.list_object_versions(Bucket=self.bucket, Prefix=self.prefix + key)
        versions = [item for kind in ("Versions", "DeleteMarkers") for item in listed.get(kind, [])]
        for item in versions:
            if item["Key"] == self.prefix + key:
                self.client.delete_object(Bucket=self.bucket, Key=item["Key"], VersionId=item["VersionId"])

    def everything(self) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        return {item["Key"].removeprefix(self.prefix) for page in pages for item in page.get("Contents", [])}


@functools.cache
def _bucket(server: S3Server, *, versioned: bool) -> str:
    """One for all tests; each has a prefix of its own in it."""
    return server.bucket(versioned=versioned)


@contextmanager
def open_s3_bench(kind: str, *, versioned: bool = False, prefix: str = PREFIX, own: bool = False) -> Iterator[S3Bench]:
    """A place of its own below a prefix in a bucket of the suite's server of that kind; `own` where the test changes the bucket."""
    server, below = shared_server(kind), f"{prefix}{secrets.token_hex(4)}/"
    bucket = server.bucket(versioned) if own else _bucket(server, versioned=versioned)
    connections = Connections(default=server.settings)
    yield S3Bench(
        server,
        server.client(),
        bucket,
        below,
        open_store(f"s3://{bucket}/{below}", connections),
        connections,
        "versioned" if versioned else "trash",
    )
