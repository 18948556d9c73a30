"""Serve a SQL catalog over Iceberg's REST protocol, with injected failures.

Like other servers, it applies the updates of the protocol to the current table, and drops refs
together with their snapshots.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadata

from tests.lakes.iceberg.builder import LakeBuilder


class Refusal(Exception):
    """The status of an answer to a GET request, instead of a document."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class RestServer:
    """A REST catalog that supports the calls of pyiceberg.

    `commits` counts the requests to commit. `on_commit` is called with the commit and returns the
    status of the answer. `on_get` is called with the path and returns a status and an answer, or
    None for the answer of the catalog.
    """

    def __init__(self, builder: LakeBuilder) -> None:
        self.builder = builder
        self.commits = 0
        self.on_commit: Callable[[Callable[[], int]], int] = lambda commit: commit()
        self.on_get: Callable[[list[str]], tuple[int, Any] | None] = lambda path: None
        self.uri = ""

    def get(self, path: list[str], query: dict[str, list[str]]) -> dict[str, Any] | None:
        match path:
            case ["config"]:
                return {"defaults": {}, "overrides": {}}
            case ["namespaces"]:
                parent = tuple(query["parent"][0].split("\x1f")) if "parent" in query else ()
                return {"namespaces": [list(item) for item in self.builder.catalog.list_namespaces(parent)]}
            case ["namespaces", namespace, "tables"]:
                names = self.builder.catalog.list_tables(namespace)
                return {"identifiers": [{"namespace": list(name[:-1]), "name": name[-1]} for name in names]}
            case ["namespaces", namespace, "tables", name]:
                table = self.builder.catalog.load_table((namespace, name))
                return {
                    "metadata-location": table.metadata_location,
                    "metadata": json.loads(table.metadata.model_dump_json()),
                    "config": {},
                }
        return None

    def commit(self, path: list[str], body: bytes) -> tuple[int, dict[str, Any]]:
        request = CommitTableRequest.model_validate_json(body)
        answer: dict[str, Any] = {}

        def apply() -> int:
            table = self.builder.catalog.load_table((path[1], path[3]))
            try:
                response = self.builder.catalog.commit_table(table, request.requirements, request.updates)
            except CommitFailedException as error:
                answer.update(_error(409, "CommitFailedException", str(error)))
                return 409
            answer.update(_answer(response.metadata_location, response.metadata))
            return 200

        self.commits += 1
        status = self.on_commit(apply)
        if status not in {200, 409} or not answer:
            answer = _error(status, "Injected", "injected error with password=hunter2")
        return status, answer


@contextmanager
def serve_catalog(builder: LakeBuilder, server: RestServer | None = None) -> Iterator[RestServer]:
    server = server or RestServer(builder)

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # one packet for header and body, so that no answer waits for an acknowledgement

        def do_GET(self) -> None:
            url = urlparse(self.path)
            path = url.path.strip("/").split("/")[1:]
            if (injected := server.on_get(path)) is not None:
                self._answer(*injected)
                return
            try:
                answer = server.get(path, parse_qs(url.query))
            except Refusal as refusal:
                self._answer(refusal.status, _error(refusal.status, "Refused", "refused with password=hunter2"))
                return
            except NoSuchTableError as error:
                self._answer(404, _error(404, "NoSuchTableException", str(error)))
                return
            self._answer(200, answer) if answer is not None else self._answer(404, _error(404, "NotFound", self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(*server.commit(urlparse(self.path).path.strip("/").split("/")[1:], body))

        def _answer(self, status: int, document: Any) -> None:
            payload = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.uri = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def _answer(location: str, metadata: TableMetadata) -> dict[str, Any]:
    return {"metadata-location": location, "metadata": json.loads(metadata.model_dump_json())}


def _error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}
