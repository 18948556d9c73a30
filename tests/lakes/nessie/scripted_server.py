"""Serve scripted answers of a Nessie server, to inject failures."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gc_assets.lakes.nessie.client import NessieClient

Answer = tuple[int, Any]
# No answer: the server closes the connection.
GONE = 0
CONFIG = {"defaultBranch": "main", "noAncestorHash": "00", "maxSupportedApiVersion": 2}


@contextmanager
def serve_answers(answer: Callable[[str, dict[str, str]], Answer]) -> Iterator[tuple[NessieClient, list[str]]]:
    """Yield a client of a server with scripted answers, and the list of its requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # one packet for header and body, so that no answer waits for an acknowledgement

        def do_GET(self) -> None:
            requests.append(self.path)
            split = urlsplit(self.path)
            status, body = answer(split.path.removeprefix("/api/v2/"), {name: items[0] for name, items in parse_qs(split.query).items()})
            if status == GONE:
                self.close_connection = True
                return
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with NessieClient("shop", f"http://127.0.0.1:{server.server_port}/api/v2", max_wait=0.01) as client:
            yield client, requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
