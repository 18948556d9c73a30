"""Local HTTP and SMTP servers that record what they receive."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session

from tests.ports import free_port


@dataclass
class Web:
    """An HTTP server that answers with `status` and records path, headers and JSON of each request."""

    url: str = ""
    status: int = 200
    location: str | None = None
    delay: threading.Event | None = None
    paths: list[str] = field(default_factory=list[str])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    documents: list[Any] = field(default_factory=list[Any])


@contextmanager
def web_server() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            web.paths.append(self.path)
            web.headers.append({name.lower(): value for name, value in self.headers.items()})
            web.documents.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if web.delay is not None:
                web.delay.wait(30)
            self.send_response(web.status)
            if web.location is not None:
                self.send_header("Location", web.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815  (http.server's name)

        def log_message(self, format: str, *args: object) -> None:
            """Discard log messages."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    serving.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        if web.delay is not None:
            web.delay.set()
        server.shutdown()
        server.server_close()


@dataclass
class Mailbox:
    """An SMTP server that records each mail and login, and refuses the mailboxes in `refused`."""

    port: int
    refused: set[str] = field(default_factory=set[str])
    mails: list[EmailMessage] = field(default_factory=list[EmailMessage])
    recipients: list[list[str]] = field(default_factory=list[list[str]])
    logins: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])

    async def handle_RCPT(self, _: object, session: Session, envelope: Envelope, address: str, options: list[str]) -> str:  # noqa: N802  (aiosmtpd's name)
        if address in self.refused:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: object, session: Session, envelope: Envelope) -> str:  # noqa: N802  (aiosmtpd's name)
        self.mails.append(cast(EmailMessage, BytesParser(policy=default).parsebytes(cast(bytes, envelope.content))))
        self.recipients.append(list(envelope.rcpt_tos))
        return "250 OK"


@contextmanager
def smtp_server(*, tls: ssl.SSLContext | None = None, password: str | None = None) -> Iterator[Mailbox]:
    """Start the server. `tls` offers STARTTLS. `password` requires a login over TLS."""
    mailbox = Mailbox(free_port())

    def authenticator(_: object, session: Session, __: object, mechanism: str, data: object) -> AuthResult:
        del mechanism
        assert isinstance(data, LoginPassword)
        mailbox.logins.append((data.login.decode(), data.password.decode(), session.ssl is not None))
        return AuthResult(success=data.password.decode() == password, handled=False)

    commands = {"authenticator": authenticator, "auth_required": True, "auth_require_tls": True} if password is not None else {}
    controller = Controller(mailbox, hostname="127.0.0.1", port=mailbox.port, tls_context=tls, require_starttls=tls is not None, **commands)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop(no_assert=True)
