"""Requests to servers that send single bytes without an end fail with an error that shows the
request.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.iceberg.catalog import CatalogClient, list_tables
from gc_assets.lakes.lakefs.client import RepositoryClient, Server
from gc_assets.lakes.nessie.client import NessieClient
from gc_assets.stores.s3.objects import S3Objects

BOUND = 0.3
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n"
    b'ETag: "e"\r\nLast-Modified: Mon, 23 Nov 2026 00:00:00 GMT\r\n\r\n'
)


@pytest.fixture(scope="module")
def trickling() -> Iterator[str]:
    """A server whose responses never end."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(HEAD)
            while not over.wait(0.05):
                connection.sendall(b" ")

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=trickle, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    over.set()
    listening.close()


def an_object(server: str) -> object:
    return S3Objects(Connections.of(S3Config(endpoint=server, region="us-east-1", anonymous=True), read_seconds=BOUND)).read(
        "s3://b/manifest"
    )


def a_catalog(server: str) -> object:
    return list(list_tables("sales", "default", {"type": "rest", "uri": server}, BOUND))


def a_table(server: str) -> object:
    return CatalogClient("sales", "default", {"type": "rest", "uri": server}, BOUND).load(("db", "orders"))


def a_nessie_server(server: str) -> object:
    return NessieClient("shop", server, read_seconds=BOUND).get_config()


def a_lakefs_server(server: str) -> object:
    return RepositoryClient(Server(server, "key", "secret", read_seconds=BOUND), "ml").repository()


@pytest.mark.parametrize(
    "ask, named",
    [
        (an_object, "s3://b/manifest"),
        (a_catalog, "list of tables of catalog 'default'"),
        (a_table, "table db.orders"),
        (a_nessie_server, "lake shop: GET .*/config"),
        (a_lakefs_server, "lakeFS repository ml"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_endless_response_raises_error_that_shows_request(trickling: str, ask: Callable[[str], object], named: str) -> None:
    began = time.monotonic()
    with pytest.raises((OSError, LakeUnreadable), match=named) as stopped:
        ask(trickling)
    assert "in 0.3 s (`read_timeout`)" in str(stopped.value)
    assert time.monotonic() - began < 10
