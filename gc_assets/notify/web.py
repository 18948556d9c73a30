"""Post notifications to webhooks (as JSON) and to Slack (as text)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException, HTTPMessage
from typing import IO, Any

from gc_assets._version import __version__
from gc_assets.config.notify import Slack, Webhook
from gc_assets.core.notifications import Notification, format_body, to_document
from gc_assets.notify import TIMEOUT_SECONDS, DeliveryError


def post_document(target: Webhook, notifications: Sequence[Notification]) -> None:
    """Post all notifications to a webhook, in one JSON document.

    Raises:
        DeliveryError: If the server does not accept the document.
    """
    headers = {name: value.get_secret_value() for name, value in target.headers.items()}
    _post(target.url.get_secret_value(), to_document(notifications), headers)


def post_to_slack(target: Slack, notifications: Sequence[Notification]) -> None:
    """Post all notifications to Slack, in one message.

    Raises:
        DeliveryError: If the server does not accept the message.
    """
    text = format_body(notifications)
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # otherwise a name could mention a user
        text = text.replace(letter, entity)
    _post(target.url.get_secret_value(), {"text": text}, {})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Reject redirects.

    A redirect is not a delivery, and the headers must not be sent to another server.
    """

    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str) -> None:
        """Do not follow the redirect. urllib then raises an error."""


def _post(url: str, content: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    # urllib3 and httpx log the path of the URL, which may be a secret.
    opener = urllib.request.build_opener(_NoRedirect)
    ours = {"Content-Type": "application/json", "User-Agent": f"gc-assets/{__version__}"}
    try:
        request = urllib.request.Request(url, json.dumps(content).encode(), {**ours, **headers}, method="POST")  # noqa: S310  (lakes.yaml allows http and https)
        opener.open(request, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise DeliveryError(f"the server answered {error.code}") from None
    except urllib.error.URLError as error:
        reason = error.reason
        raise DeliveryError(f"no answer: {reason.strerror or type(reason).__name__ if isinstance(reason, OSError) else reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise DeliveryError(f"no answer: {type(error).__name__}") from None  # its message may contain the URL
