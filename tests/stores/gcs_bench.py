"""A bucket of a server of Google Cloud Storage as a store under test, with Google's library as the other writer."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.cloud.storage import Client

from gc_assets.config.connections import Connections
from gc_assets.stores.protocol import QuarantineMode, Store
from gc_assets.stores.store import open_store
from tests.depth import example_count
from tests.gcs.servers import GcsServer, own_server

PREFIX = "lake/ä b+%2F/"


@dataclass(frozen=True)
class GcsBench:
    """`prefix` is the storage's prefix in the bucket."""

    server: GcsServer
    client: Client
    bucket: str
    prefix: str
    store: Store
    connections: Connections
    mode: QuarantineMode
    # The answer with the server's time has whole seconds.
    tick: timedelta = timedelta(seconds=1)
    many: int = example_count(40, 100)
    # An object name has no line break.
    refused: frozenset[str] = frozenset({"t/new\nline"})

    def put(self, key: str, content: bytes) -> None:
        self.client.bucket(self.bucket).blob(self.prefix + key).upload_from_string(content)

    def get(self, key: str) -> bytes | None:
        blob = self.client.bucket(self.bucket).get_blob(self.prefix + key)
        return None if blob is None else blob.download_as_bytes()

    def remove(self, key: str) -> None:
        """Remove an object permanently, with all generations."""
        for blob in self.client.list_blobs(self.bucket, prefix=self.prefix + key, versions=True):
            if blob.name == self.prefix + key:
                blob.delete(if_generation_match=blob.generation)

    def everything(self) -> set[str]:
        return {blob.name.removeprefix(self.prefix) for blob in self.client.list_blobs(self.bucket, prefix=self.prefix)}


@functools.cache
def _client(server: GcsServer) -> Client:
    return server.client()


@functools.cache
def _bucket(server: GcsServer, *, versioned: bool) -> str:
    """Return a bucket that all tests share. Each test has its own prefix."""
    return server.bucket(versioning={"enabled": versioned}, softDeletePolicy={"retentionDurationSeconds": "0"})


@contextmanager
def open_gcs_bench(
    server: GcsServer | None = None, *, versioned: bool = False, prefix: str = PREFIX, **settings: Any
) -> Iterator[GcsBench]:
    """Return a new storage under its own prefix in a shared bucket of a server, by default our own one.

    With `settings` of the bucket, it is new.
    """
    server, storage_prefix = server or own_server(), f"{prefix}{secrets.token_hex(4)}/"
    bucket = server.bucket(versioning={"enabled": versioned}, **settings) if settings else _bucket(server, versioned=versioned)
    connections = Connections.of(server.settings)
    yield GcsBench(
        server,
        _client(server),
        bucket,
        storage_prefix,
        open_store(f"gs://{bucket}/{storage_prefix}", connections),
        connections,
        "versioned" if versioned else "trash",
    )
