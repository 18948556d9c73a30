"""Each kind of target, told for real: what arrives there, and how it fails without telling a secret."""

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
SICK = Notification("table_unreadable", "sales/table_unreadable/u", "table <!channel> cannot be read", "torn", lake="sales")


@pytest.fixture
def server() -> Iterator[Web]:
    with web_server() as found:
        yield found


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test of this module may let a secret into the log, at whatever level."""
    caplog.set_level(logging.DEBUG)
    yield
    assert "s3cr3t" not in caplog.text


def webhook(url: str, **more: Any) -> Webhook:
    return Webhook.model_validate({"name": "alerts", "kind": "webhook", "url": url, **more})


def mail(port: int, **more: Any) -> Email:
    plain = {"name": "mail", "kind": "email", "server": "localhost", "port": port, "security": "none", "sender": "gc@example.org"}
    return Email.model_validate({**plain, "to": ["ada@example.org", "kim@example.org"], **more})


def command(*words: str) -> Command:
    return Command.model_validate({"name": "pager", "kind": "command", "command": words})


def why(undelivered: pytest.ExceptionInfo[DeliveryError]) -> str:
    """What is said of it. Its trace, as a log would show it, holds no secret either."""
    assert "s3cr3t" not in "".join(traceback.format_exception(undelivered.value))
    return str(undelivered.value)


def test_a_webhook_gets_one_document_with_all_that_is_new(server: Web) -> None:
    post_document(webhook(server.url + SECRET, headers=TOKEN), [READY, SICK])
    assert server.documents == [to_document([READY, SICK])]
    assert server.paths == [SECRET]
    assert (server.headers[0]["authorization"], server.headers[0]["content-type"]) == ("Bearer s3cr3t", "application/json")


def test_slack_gets_the_words_and_no_name_in_them_calls_anybody(server: Web) -> None:
    target = Slack.model_validate({"name": "team", "kind": "slack", "url": server.url + SECRET})
    post_to_slack(target, [READY, SICK])
    (told,) = server.documents
    assert told.keys() == {"text"}
    assert "table &lt;!channel&gt; cannot be read" in told["text"]
    assert "&lt;b&gt;&amp;&lt;/b&gt; größer" in told["text"]


@pytest.mark.parametrize("status", [301, 307, 404, 500])
def test_only_an_answer_that_accepts_is_a_delivery(server: Web, status: int) -> None:
    server.status, server.location = status, server.url + "/elsewhere"
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(server.url + SECRET, headers=TOKEN), [READY])
    assert why(error) == f"the server answered {status}"
    assert server.paths == [SECRET]


def test_a_server_that_is_not_there_is_named_by_its_fault_and_not_by_its_address() -> None:
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(f"http://127.0.0.1:{free_port()}{SECRET}"), [READY])
    assert why(error) == "no answer: Connection refused"


def test_a_server_that_speaks_no_tls_is_not_told() -> None:
    with web_server() as server, pytest.raises(DeliveryError) as error:
        post_document(webhook(server.url.replace("http:", "https:") + SECRET), [READY])
    assert why(error).startswith("no answer: ")
    assert server.documents == []


def test_a_path_that_no_request_can_have_is_not_repeated() -> None:
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(f"http://127.0.0.1:1{SPACED}"), [READY])
    assert why(error) == "no answer: InvalidURL"


def test_a_server_that_does_not_answer_is_given_up(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SECONDS", 0.2)
    server.delay = threading.Event()
    with pytest.raises(DeliveryError) as error:
        post_document(webhook(server.url + SECRET), [READY])
    assert why(error) == "no answer: TimeoutError"


def test_a_mail_says_in_its_subject_what_happened_and_in_its_text_what_to_do() -> None:
    with smtp_server() as mailbox:
        send_mail(mail(mailbox.port), [READY, SICK])
    (message,) = mailbox.mails
    assert mailbox.recipients == [["ada@example.org", "kim@example.org"]]
    assert (message["Subject"], message["From"]) == ("gc-assets: warehouse: plan 1 waits (and 1 more)", "gc@example.org")
    assert (message["To"], message["Auto-Submitted"]) == ("ada@example.org, kim@example.org", "auto-generated")
    assert message["Date"]
    assert message["Message-ID"].endswith("@example.org>")
    assert message.get_content().replace("\r\n", "\n").rstrip() == format_body([READY, SICK])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of `localhost`, that nobody else signed, with its key."""
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


def test_a_mail_server_is_told_who_sends_over_tls_only(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with smtp_server(tls=context(certificate), password="s3cr3t") as mailbox:  # noqa: S106
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert mailbox.logins == [("gc", "s3cr3t", True)]
    assert len(mailbox.mails) == 1


def test_a_wrong_password_is_refused_and_not_repeated(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with smtp_server(tls=context(certificate), password="another") as mailbox, pytest.raises(DeliveryError) as error:  # noqa: S106
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert why(error) == "the server answered 535 (SMTPAuthenticationError)"
    assert mailbox.mails == []


def test_a_mail_server_that_cannot_prove_its_name_is_not_told_the_password(certificate: Path) -> None:
    with smtp_server(tls=context(certificate), password="s3cr3t") as mailbox, pytest.raises(DeliveryError) as error:  # noqa: S106
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert "SSLCertVerificationError" in why(error) or "certificate" in why(error)
    assert mailbox.logins == []


def test_a_server_without_starttls_is_not_told_the_password() -> None:
    with smtp_server() as mailbox, pytest.raises(DeliveryError) as error:
        send_mail(mail(mailbox.port, **SUBMISSION), [READY])
    assert why(error) == "no mail could be sent: SMTPNotSupportedError"
    assert (mailbox.mails, mailbox.logins) == ([], [])


def test_a_mailbox_that_is_refused_keeps_the_others_from_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with smtp_server() as mailbox:
        mailbox.refused = {"ada@example.org"}
        send_mail(mail(mailbox.port), [READY])
    assert mailbox.recipients == [["kim@example.org"]]
    assert "mail: the server refused 1 of 2 mailboxes" in caplog.text


def test_a_mail_that_every_mailbox_refuses_is_undelivered() -> None:
    with smtp_server() as mailbox:
        mailbox.refused = {"ada@example.org", "kim@example.org"}
        with pytest.raises(DeliveryError) as error:
            send_mail(mail(mailbox.port), [READY])
    assert why(error) == "no mail could be sent: SMTPRecipientsRefused"


def test_a_command_gets_the_document_on_its_standard_input(tmp_path: Path) -> None:
    told = tmp_path / "told; $(touch hacked)"
    run_command(command("sh", "-c", 'cat > "$1"', "page", str(told)), [READY, SICK])
    assert json.loads(told.read_text()) == to_document([READY, SICK])
    assert [path.name for path in tmp_path.iterdir()] == [told.name]


def test_a_command_that_reads_nothing_is_told() -> None:
    run_command(command("true"), [READY] * 10_000)


@pytest.mark.parametrize(
    "words, said",
    [
        (("sh", "-c", "exit 3", "s3cr3t"), "the command ended with code 3"),
        (("/nowhere/s3cr3t",), "the command cannot be started: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_named_by_its_end_and_not_by_its_words(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(DeliveryError) as error:
        run_command(command(*words), [READY])
    assert why(error) == said


def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SECONDS", 3)
    child = tmp_path / "child"
    script = f"import time; open({str(child)!r}, 'w').write(str(time.time())); time.sleep(60)"
    started = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} & echo $! > {shlex.quote(str(child))}.pid; wait"
    with pytest.raises(DeliveryError) as error:
        run_command(command("sh", "-c", started), [READY])
    assert why(error).startswith("the command did not end within")
    pid = int(Path(f"{child}.pid").read_text())
    for _ in range(100):
        if not _lives(pid):
            return
        time.sleep(0.05)
    pytest.fail("what the command started still runs")


def _lives(pid: int) -> bool:
    """Says whether the process runs. One that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
