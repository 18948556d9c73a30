"""Send notifications by mail."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Final

from gc_assets.config.notify import Email
from gc_assets.core.notifications import Notification, format_body, format_subject
from gc_assets.notify import TIMEOUT_SECONDS, DeliveryError

_log: Final = logging.getLogger(__name__)


def send_mail(target: Email, notifications: Sequence[Notification]) -> None:
    """Send all notifications in a single mail.

    If the server rejects only some of the mailboxes, a warning is logged. This is not an error,
    because a retry would send the mail to the other mailboxes again.

    Raises:
        DeliveryError: If the mail cannot be sent to any mailbox.
    """
    message = EmailMessage()
    message["Subject"] = format_subject(notifications)
    message["From"] = target.sender
    message["To"] = ", ".join(target.to)
    message["Date"] = formatdate(usegmt=True)
    message["Message-ID"] = make_msgid(domain=target.sender.rpartition("@")[2])
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(format_body(notifications))
    try:
        refused = _send_message(target, message)
    except smtplib.SMTPResponseException as error:
        raise DeliveryError(f"the server answered {error.smtp_code} ({type(error).__name__})") from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise DeliveryError(f"cannot send mail: {reason}") from None
    if refused:
        _log.warning("notify: %s: the server refused %d of %d mailboxes", target.name, len(refused), len(target.to))


def _send_message(target: Email, message: EmailMessage) -> dict[str, tuple[int, bytes]]:
    context = ssl.create_default_context()
    if target.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(target.server, target.port, timeout=TIMEOUT_SECONDS, context=context)
    else:
        server = smtplib.SMTP(target.server, target.port, timeout=TIMEOUT_SECONDS)
    with server:
        if target.security == "starttls":
            server.starttls(context=context)
        if target.username is not None and target.password is not None:
            server.login(target.username, target.password.get_secret_value())
        return server.send_message(message)
