"""Deliveries to each kind of target, with real servers, and failures without secrets in messages."""

from __future__ import annotations

import json
import logging
import shlex
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gc_assets.config.notify import Command, Email, Slack, Webhook
from gc_assets.core.notifications import Notification, format_body, to_document
from gc_assets.notify import DeliveryError, program, web
from gc_assets.notify.mail import send_mail
from gc_assets.notify.program import run_command
from gc_assets.notify.web import post_document, post_to_slack
from tests.notify.receivers import Web, smtp_server, web_server
from tests.ports import free_port

SECRET = "/services/T0/B0/s3cr3t"  # noqa: S105  (to be searched for)
SPACED = "/s3cr3t with a space"
TOKEN = {"Authorization": "Bearer s3cr3t"}
READY = Notification("plan_ready", "warehouse/plan_ready/1", "warehouse: plan 1 waits", "Can be undone: all <b>&</b> größer.", "warehouse")
UNREADABLE = Notification("table_unreadable", "sales/table_unreadable/u", "table <!channel> cannot be read", "torn", lake="sales")


@pytest.fixture
def server() -> Iterator[Web]:
    with web_server() as found:
        yield found


@pytest.fixture(autouse=True)
def check_log_for_secrets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Capture all logs, and fail if a secret is logged at any level."""
    caplog.set_level(logging.DEBUG)
    yield
    assert "s3cr3t" not in caplog.text


def webhook(url: str, **more: Any) -> Webhook:
    return Webhook.model_validate({"name": "alerts", "kind": "webhook", "url": url, **more})


def mail(port: int, **more: Any) -> Email:
    plain = {"name": "mail", "kind": "email", "server": "localhost", "port": port, "security": "none", "sender": "gc@example.org"}
    return Email.model_validate({**plain, "to": ["ada@example.org", "kim@example.org"], **more})


def command(*text: str) -> Command:
    return Command.model_validate({"name": "pager", "kind": "command", "command": text})


def error_message(undelivered: pytest.ExceptionInfo[DeliveryError]) -> str:
    """Return the error message, and check that its traceback contains no secret."""
    assert "s3cr3t" not in "".join(traceback.format_exception(undelivered.value))
    return str(undelivered.value)


def test_webhook_receives_all_events_in_one_document(server: Web) -> None:
    post_document(webhook(server.url + SECRET, headers=TOKEN), [READY, UNREADABLE])
    assert server.documents == [to_document([READY, UNREADABLE])]
    assert server.paths == [SECRET]
    assert (server.headers[0]["authorization"], server.headers[0]["content-type"]) == ("Bearer s3cr3t", "application/json")


def test_slack_text_contains_no_mentions(server: Web) -> None:
    target = Slack.model_validate({"name": "team", "kind": "slack", "url": server.url + SECRET})
    post_to_slack(target, [READY, UNREADABLE])
    (message,) = server.documents
    assert message.keys() == {"text"}
    assert "table &lt;!channel&gt; cannot be read" in message["text"]
    assert "&lt;b&gt;&amp;&lt;/b&gt; größer" in message["text"]


@pytest.mark.parametrize("status", [301, 307, 404, 500])
def test_redirect_or_error_status_is_a_failed_delivery(server: Web, status: int) -> None:
    server.status, server.location = status, server.url + "/elsewhere"
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(server.url + SECRET, headers=TOKEN), [READY])
    assert error_message(error) == f"the server answered {status}"
    assert server.paths == [SECRET]


def test_unreachable_server_is_reported_without_address() -> None:
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(f"http://127.0.0.1:{free_port()}{SECRET}"), [READY])
    assert error_message(error) == "no answer: Connection refused"


def test_server_without_tls_receives_nothing() -> None:
    with web_server() as server, pytest.raises(DeliveryError) as error:
        post_document(webhook(server.url.replace("http:", "https:") + SECRET), [READY])
    assert error_message(error).startswith("no answer: ")
    assert server.documents == []


def test_invalid_path_is_not_included_in_the_error() -> None:
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(f"http://127.0.0.1:1{SPACED}"), [READY])
    assert error_message(error) == "no answer: InvalidURL"


def test_slow_server_times_out(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT_SECONDS", 0.2)
    server.delay = threading.Event()
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(server.url + SECRET), [READY])
    assert error_message(error) == "no answer: TimeoutError"


def test_mail_contains_event_as_subject_and_advice_as_body() -> None:
    with smtp_server() as mailbox:
        send_mail(mail(mailbox.port), [READY, UNREADABLE])
    (message,) = mailbox.mails
    assert mailbox.recipients == [["ada@example.org", "kim@example.org"]]
    assert (message["Subject"], message["From"]) == ("gc-assets: warehouse: plan 1 waits (and 1 more)", "gc@example.org")
    assert (message["To"], message["Auto-Submitted"]) == ("ada@example.org, kim@example.org", "auto-generated")
    assert message["Date"]
    assert message["Message-ID"].endswith("@example.org>")
    assert message.get_content().replace("\r\n", "\n").rstrip() == format_body([READY, UNREADABLE])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a self-signed certificate of `localhost` with its key."""
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True)
    with path.open("a") as both:
        both.write(Path(f"{path}.crt").read_text())
    return path


def context(certificate: Path) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(certificate)
    return found


SUBMISSION = {"security": "starttls", "username": "gc", "password": "s3cr3t"}


def test_login_requires_tls(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with smtp_server(tls=context(certificate), password="s3cr3t") as mailbox:  # noqa: S106
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert mailbox.logins == [("gc", "s3cr3t", True)]
    assert len(mailbox.mails) == 1


def test_wrong_password_is_not_included_in_the_error(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with smtp_server(tls=context(certificate), password="another") as mailbox, pytest.raises(DeliveryError) as error:  # noqa: S106
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert error_message(error) == "the server answered 535 (SMTPAuthenticationError)"
    assert mailbox.mails == []


def test_password_requires_a_valid_certificate(certificate: Path) -> None:
    with smtp_server(tls=context(certificate), password="s3cr3t") as mailbox, pytest.raises(DeliveryError) as error:  # noqa: S106
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert "SSLCertVerificationError" in error_message(error) or "certificate" in error_message(error)
    assert mailbox.logins == []


def test_password_requires_starttls() -> None:
    with smtp_server() as mailbox, pytest.raises(DeliveryError) as error:
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert error_message(error) == "cannot send mail: SMTPNotSupportedError"
    assert (mailbox.mails, mailbox.logins) == ([], [])


def test_refused_recipient_does_not_affect_other_recipients(caplog: pytest.LogCaptureFixture) -> None:
    with smtp_server() as mailbox:
        mailbox.refused = {"ada@example.org"}
        send_mail(mail(mailbox.port), [READY])
    assert mailbox.recipients == [["kim@example.org"]]
    assert "mail: the server refused 1 of 2 mailboxes" in caplog.text


def test_mail_refused_for_all_recipients_fails() -> None:
    with smtp_server() as mailbox:
        mailbox.refused = {"ada@example.org", "kim@example.org"}
        with pytest.raises(DeliveryError) as error:
            send_mail(mail(mailbox.port), [READY])
    assert error_message(error) == "cannot send mail: SMTPRecipientsRefused"


def test_command_receives_the_document_on_stdin(tmp_path: Path) -> None:
    message = tmp_path / "name; $(touch hacked)"
    run_command(command("sh", "-c", 'cat > "$1"', "page", str(message)), [READY, UNREADABLE])
    assert json.loads(message.read_text()) == to_document([READY, UNREADABLE])
    assert [path.name for path in tmp_path.iterdir()] == [message.name]


def test_command_that_ignores_stdin_succeeds() -> None:
    run_command(command("true"), [READY] * 10_000)


@pytest.mark.parametrize(
    "text, message",
    [
        (("sh", "-c", "exit 3", "s3cr3t"), "the command ended with code 3"),
        (("/nowhere/s3cr3t",), "cannot start the command: No such file or directory"),
    ],
)
def test_failed_command_is_reported_by_exit_code(text: tuple[str, ...], message: str) -> None:
    with pytest.raises(DeliveryError) as error:
        run_command(command(*text), [READY])
    assert error_message(error) == message


def test_hanging_command_is_killed_with_child_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "TIMEOUT_SECONDS", 3)
    child = tmp_path / "child"
    script = f"import time; open({str(child)!r}, 'w').write(str(time.time())); time.sleep(60)"
    started = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} & echo $! > {shlex.quote(str(child))}.pid; wait"
    with pytest.raises(DeliveryError) as error:
        run_command(command("sh", "-c", started), [READY])
    assert error_message(error).startswith("the command did not end within")
    pid = int(Path(f"{child}.pid").read_text())
    for _ in range(100):
        if not _is_running(pid):
            return
        time.sleep(0.05)
    pytest.fail("a child of the command is still running")


def _is_running(pid: int) -> bool:
    """Return whether the process is running. A zombie process is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
