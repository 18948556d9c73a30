"""An S3 server through a proxy that knows every request and can spoil it: before the server acts, after it, or in its answer.

    with proxied(ceph, Rule(lists, answer_slow_down, times=2)) as proxy:
        proxy.server.client().list_objects_v2(Bucket=bucket)

Requests go on byte for byte, the Host header too: a signature for the proxy is one for the server behind it.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import unescape

from tests.s3.servers import S3Server

# Of one connection, or set anew for the answer as it is sent on.
OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}
ENTITIES = {"&quot;": '"', "&apos;": "'", "&#xA;": "\n", "&#xD;": "\r", "&#10;": "\n", "&#13;": "\r"}


@dataclass(frozen=True)
class Request:
    """The `number`-th request, from 1. `target` is path and query, `keys` what a DeleteObjects names, `port` the client's."""

    number: int
    method: str
    target: str
    keys: tuple[str, ...] = ()
    port: int = 0

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query, keep_blank_values=True).items()}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class Exchange:
    """One request on its way, and what a fault can do with it. `before` are the answers of earlier requests by their numbers."""

    request: Request
    before: dict[int, Answer]
    forward: Callable[[], Answer]
    reply: Callable[[Answer], None]
    # Sends only so many bytes of the body that the head promises, and closes the connection.
    cut: Callable[[Answer, int], None]
    drop: Callable[[], None]


Fault = Callable[[Exchange], None]


@dataclass
class Rule:
    """What happens to the first `times` requests for which `when` is true. The first rule that fits counts."""

    when: Callable[[Request], bool]
    fault: Fault
    times: int = 1


def always(request: Request) -> bool:
    return True


def nth(number: int) -> Callable[[Request], bool]:
    return lambda request: request.number == number


def lists(request: Request) -> bool:
    """Whether it asks for a page of objects or of versions."""
    return request.method == "GET" and ("list-type" in request.query or "versions" in request.query)


def pass_on(exchange: Exchange) -> None:
    exchange.reply(exchange.forward())


def delay(seconds: float) -> Fault:
    def fault(exchange: Exchange) -> None:
        time.sleep(seconds)
        pass_on(exchange)

    return fault


def drop_request(exchange: Exchange) -> None:
    """The server never hears of it."""
    exchange.drop()


def drop_answer(exchange: Exchange) -> None:
    """The server has acted, and nobody hears of it."""
    exchange.forward()
    exchange.drop()


def answer_slow_down(exchange: Exchange) -> None:
    exchange.reply(error_answer(503, "SlowDown"))


def answer_error_in_200(exchange: Exchange) -> None:
    exchange.reply(error_answer(200, "InternalError"))


def cut_body(exchange: Exchange) -> None:
    answer = exchange.forward()
    exchange.cut(answer, len(answer.body) // 2)


def repeat_answer_to(number: int) -> Fault:
    """The answer of an earlier request, as a cache gives it."""
    return lambda exchange: exchange.reply(exchange.before[number])


def rewrite(change: Callable[[bytes], bytes]) -> Fault:
    """The server's answer with another body."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.reply(replace(answer, body=change(answer.body)))

    return fault


def call_before(hook: Callable[[], object]) -> Fault:
    """Calls, then lets the request through: kill a process here, and the server still gets what it had sent."""

    def fault(exchange: Exchange) -> None:
        hook()
        pass_on(exchange)

    return fault


def call_after(hook: Callable[[], object]) -> Fault:
    """Calls when the server has acted and the client has not heard of it."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        hook()
        exchange.reply(answer)

    return fault


def call_instead(hook: Callable[[], object]) -> Fault:
    """Calls, and the server never hears of the request: the process died before it was sent."""

    def fault(exchange: Exchange) -> None:
        hook()
        exchange.drop()

    return fault


def error_answer(status: int, code: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>'
    return Answer(status, (("Content-Type", "application/xml"),), body.encode())


@dataclass
class Proxy:
    """`server` is what stands behind, at the address of the proxy. `requests` come in the order in which they arrived."""

    server: S3Server
    rules: list[Rule]
    requests: list[Request] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def record_request(self, method: str, target: str, body: bytes, port: int) -> tuple[Request, Fault]:
        """Records a request, and tells what happens to it."""
        is_batch = method == "POST" and "delete" in parse_qs(urlsplit(target).query, keep_blank_values=True)
        keys = tuple(unescape(key, ENTITIES) for key in re.findall(r"<Key>(.*?)</Key>", body.decode(), re.DOTALL)) if is_batch else ()
        with self._lock:
            request = Request(len(self.requests) + 1, method, target, keys, port)
            self.requests.append(request)
            rule = next((rule for rule in self.rules if rule.times > 0 and rule.when(request)), None)
            if rule is None:
                return request, pass_on
            rule.times -= 1
            return request, rule.fault


@contextmanager
def run_proxy(server: S3Server, *rules: Rule) -> Iterator[Proxy]:
    listening = _Listening(("127.0.0.1", 0), _Handler)
    behind = str(urlsplit(server.endpoint).netloc)
    listening.behind = behind
    listening.proxy = Proxy(replace(server, endpoint=f"http://127.0.0.1:{listening.server_port}"), list(rules))
    thread = Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield listening.proxy
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


class _Listening(ThreadingHTTPServer):
    request_queue_size = 128
    behind: str
    proxy: Proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet: a client that was killed or lost patience closes its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Listening

    def do_any(self) -> None:
        body = self._body()
        if len(body) < int(self.headers.get("Content-Length", 0)):
            self._drop()  # the client died as it sent: no server takes this for a whole request
            return
        proxy = self.server.proxy
        request, fault = proxy.record_request(self.command, self.path, body, self.client_address[1])

        def forward() -> Answer:
            proxy.answers[request.number] = self._parse_delete_keys(body)
            return proxy.answers[request.number]

        fault(Exchange(request, proxy.answers, forward, self._reply, self._cut, self._drop))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815

    def handle_expect_100(self) -> bool:
        """A client waits a second for this answer, which would lie in the buffer."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _parse_delete_keys(self, body: bytes) -> Answer:
        behind = http.client.HTTPConnection(self.server.behind, timeout=60)
        try:
            behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in OWN_HEADERS | {"expect"}:
                    behind.putheader(name, value)
            if body or "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
                behind.putheader("Content-Length", str(len(body)))
            behind.endheaders(body)
            answer = behind.getresponse()
            return Answer(answer.status, tuple(answer.getheaders()), answer.read())
        finally:
            behind.close()

    def _reply(self, answer: Answer) -> None:
        self._head(answer)
        self.wfile.write(answer.body)

    def _cut(self, answer: Answer, length: int) -> None:
        self._head(answer)
        self.wfile.write(answer.body[:length])
        self.wfile.flush()
        self._drop()

    def _head(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        # An answer to HEAD tells the length of a body that it does not have.
        own = OWN_HEADERS - {"content-length"} if self.command == "HEAD" else OWN_HEADERS
        for name, value in answer.headers:
            if name.lower() not in own:
                self.send_header(name, value)
        if self.command != "HEAD" and answer.status not in {204, 304}:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
