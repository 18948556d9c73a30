"""A container of Azurite as a store under test, with Microsoft's library as the other writer."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import ContainerClient

from gc_assets.config.connections import Connections
from gc_assets.stores.protocol import QuarantineMode, Store
from gc_assets.stores.store import open_store
from tests.azure.credentials import ACCOUNT
from tests.azure.servers import AzureServer, shared_server
from tests.depth import example_count

PREFIX = "lake/ä b+%2F/"


@dataclass(frozen=True)
class AzureBench:
    """`prefix` is the storage's prefix in the container."""

    server: AzureServer
    client: ContainerClient
    prefix: str
    store: Store
    connections: Connections
    mode: QuarantineMode = "trash"
    # Times have whole seconds.
    tick: timedelta = timedelta(seconds=1)
    many: int = example_count(40, 300)
    # The server reads it as `t/a/b`, the name of another blob.
    refused: frozenset[str] = frozenset({"t/a\\b"})

    def put(self, key: str, content: bytes) -> None:
        self.client.upload_blob(self.prefix + key, content, overwrite=True)

    def get(self, key: str) -> bytes | None:
        try:
            return self.client.download_blob(self.prefix + key).readall()
        except ResourceNotFoundError:
            return None

    def remove(self, key: str) -> None:
        self.client.delete_blob(self.prefix + key)

    def everything(self) -> set[str]:
        return {name.removeprefix(self.prefix) for name in self.client.list_blob_names(name_starts_with=self.prefix)}


@functools.cache
def _container(server: AzureServer) -> str:
    """Return a container that all tests share. Each test has its own prefix."""
    return server.container()


def location_of(container: str, prefix: str) -> str:
    return f"abfss://{container}@{ACCOUNT}.dfs.core.windows.net/{prefix}"


@contextmanager
def open_azure_bench(*, prefix: str = PREFIX, server: AzureServer | None = None, own: bool = False) -> Iterator[AzureBench]:
    """Return a new storage under its own prefix in a shared container.

    Args:
        prefix: The storage's prefix begins with it.
        server: A proxy in front of the server. By default, the store reaches the server itself.
        own: Whether the container is new, for tests that change its settings.
    """
    direct, storage_prefix = shared_server(), f"{prefix}{secrets.token_hex(4)}/"
    container = direct.container() if own else _container(direct)
    connections = Connections.of((server or direct).settings)
    store = open_store(location_of(container, storage_prefix), connections)
    yield AzureBench(direct, direct.client().get_container_client(container), storage_prefix, store, connections)
