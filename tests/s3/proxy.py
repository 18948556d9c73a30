"""A proxy in front of an object store that records requests and injects faults.

A fault applies before the server acts, after it, or to its answer:

    with run_proxy(ceph, Rule(lists, answer_slow_down, times=2)) as proxy:
        proxy.server.client().list_objects_v2(Bucket=bucket)

Requests are forwarded byte for byte, including the Host header, so their signatures stay valid.
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
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import unescape


class Server(Protocol):
    """A server of object storage, as a dataclass."""

    @property
    def endpoint(self) -> str: ...


_Server = TypeVar("_Server", bound=Server)

# Headers of one connection, or set again for the forwarded answer.
OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}
ENTITIES = {"&quot;": '"', "&apos;": "'", "&#xA;": "\n", "&#xD;": "\r", "&#10;": "\n", "&#13;": "\r"}


@dataclass(frozen=True)
class Request:
    """One request.

    `number` counts from 1. `target` is path and query, `keys` are those of a DeleteObjects, `port`
    is the client's.
    """

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
    """One request, and the actions of a fault. `before` are the answers of earlier requests by
    number.
    """

    request: Request
    before: dict[int, Answer]
    forward: Callable[[], Answer]
    reply: Callable[[Answer], None]
    # Sends only this number of bytes of the body, and closes the connection.
    cut: Callable[[Answer, int], None]
    drop: Callable[[], None]


Fault = Callable[[Exchange], None]


@dataclass
class Rule:
    """A fault for the first `times` requests for which `when` is true. The first matching rule
    applies.
    """

    when: Callable[[Request], bool]
    fault: Fault
    times: int = 1


def always(request: Request) -> bool:
    return True


def nth(number: int) -> Callable[[Request], bool]:
    return lambda request: request.number == number


def lists(request: Request) -> bool:
    """Return True for a request of a page of objects or versions."""
    return request.method == "GET" and ("list-type" in request.query or "versions" in request.query)


def pass_on(exchange: Exchange) -> None:
    exchange.reply(exchange.forward())


def delay(seconds: float) -> Fault:
    def fault(exchange: Exchange) -> None:
        time.sleep(seconds)
        pass_on(exchange)

    return fault


def drop_request(exchange: Exchange) -> None:
    """Close the connection before the server receives the request."""
    exchange.drop()


def drop_answer(exchange: Exchange) -> None:
    """Close the connection after the server has acted."""
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
    """Return the answer of an earlier request, as a cache does."""
    return lambda exchange: exchange.reply(exchange.before[number])


def rewrite(change: Callable[[bytes], bytes]) -> Fault:
    """Change the body of the server's answer."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.reply(replace(answer, body=change(answer.body)))

    return fault


def call_before(hook: Callable[[], object]) -> Fault:
    """Call the hook, then forward the request: as if the client dies after it was sent."""

    def fault(exchange: Exchange) -> None:
        hook()
        pass_on(exchange)

    return fault


def call_after(hook: Callable[[], object]) -> Fault:
    """Call the hook after the server has acted and before the client receives the answer."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        hook()
        exchange.reply(answer)

    return fault


def call_instead(hook: Callable[[], object]) -> Fault:
    """Call the hook instead of forwarding the request: as if the client dies before it was sent."""

    def fault(exchange: Exchange) -> None:
        hook()
        exchange.drop()

    return fault


def error_answer(status: int, code: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>'
    return Answer(status, (("Content-Type", "application/xml"),), body.encode())


@dataclass
class Proxy(Generic[_Server]):
    """A running proxy. `server` is the upstream server at the proxy's address. `requests` are in
    order of arrival.
    """

    server: _Server
    rules: list[Rule]
    requests: list[Request] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def record_request(self, method: str, target: str, body: bytes, port: int) -> tuple[Request, Fault]:
        """Record a request and return its fault."""
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
def run_proxy(server: _Server, *rules: Rule) -> Iterator[Proxy[_Server]]:
    server_of_proxy = _ProxyServer(("127.0.0.1", 0), _Handler)
    server_of_proxy.upstream = str(urlsplit(server.endpoint).netloc)
    endpoint = f"http://127.0.0.1:{server_of_proxy.server_port}{urlsplit(server.endpoint).path}"
    server_of_proxy.proxy = Proxy(replace(server, endpoint=endpoint), list(rules))  # type: ignore[type-var]
    thread = Thread(target=server_of_proxy.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server_of_proxy.proxy
    finally:
        server_of_proxy.shutdown()
        thread.join()
        server_of_proxy.server_close()


class _ProxyServer(ThreadingHTTPServer):
    request_queue_size = 128
    upstream: str
    proxy: Proxy[Any]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a killed client closes its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _ProxyServer

    def do_any(self) -> None:
        body = self._body()
        if len(body) < int(self.headers.get("Content-Length", 0)):
            self._drop()  # the client died while sending: the request is incomplete
            return
        proxy = self.server.proxy
        request, fault = proxy.record_request(self.command, self.path, body, self.client_address[1])

        def forward() -> Answer:
            proxy.answers[request.number] = self._forward(body)
            return proxy.answers[request.number]

        fault(Exchange(request, proxy.answers, forward, self._reply, self._cut, self._drop))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815

    def handle_expect_100(self) -> bool:
        """Flush the answer, for which a client waits up to a second."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _forward(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in OWN_HEADERS | {"expect"}:
                    connection.putheader(name, value)
            if body or "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, tuple(answer.getheaders()), answer.read())
        finally:
            connection.close()

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
        # An answer to HEAD has the length of a body that is not sent.
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
