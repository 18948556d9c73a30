"""Notifications by mail."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Final

from gc_assets.config.notify import Email
from gc_assets.core.notifications import Notification, body, subject
from gc_assets.notify.undelivered import SECONDS, Undelivered

_log: Final = logging.getLogger(__name__)


def send_mail(target: Email, told: Sequence[Notification]) -> None:
    """Sends one mail to all mailboxes of the target. Raises `Undelivered` where no mailbox gets it.

    Some mailboxes that are refused are a line in the log: the others would get it again and again.
    """
    message = EmailMessage()
    message["Subject"] = subject(told)
    message["From"] = target.sender
    message["To"] = ", ".join(target.to)
    message["Date"] = formatdate(usegmt=True)
    message["Message-ID"] = make_msgid(domain=target.sender.rpartition("@")[2])
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(body(told))
    try:
        refused = _deliver(target, message)
    except smtplib.SMTPResponseException as error:
        raise Undelivered(f"the server answered {error.smtp_code} ({type(error).__name__})") from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise Undelivered(f"no mail could be sent: {why}") from None
    if refused:
        _log.warning("notify: %s: the server refused %d of %d mailboxes", target.name, len(refused), len(target.to))


def _deliver(target: Email, message: EmailMessage) -> dict[str, tuple[int, bytes]]:
    context = ssl.create_default_context()
    if target.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(target.server, target.port, timeout=SECONDS, context=context)
    else:
        server = smtplib.SMTP(target.server, target.port, timeout=SECONDS)
    with server:
        if target.security == "starttls":
            server.starttls(context=context)
        if target.username is not None and target.password is not None:
            server.login(target.username, target.password.get_secret_value())
        return server.send_message(message)
