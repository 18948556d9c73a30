"""Notification targets, under `notify` in `lakes.yaml`.

Since URLs and passwords can be secrets, they never appear in error messages, logs or `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from gc_assets.config.values import Model, Name, warn_renamed
from gc_assets.core.notifications import EVENTS, RENAMED_EVENTS, Event


def _secret_error(reason: str) -> ValidationError:
    """Build a validation error that does not quote the invalid value."""
    error = InitErrorDetails(type=PydanticCustomError("secret_value", reason), loc=(), input=None)  # pyright: ignore[reportArgumentType]
    return ValidationError.from_exception_data("secret", [error])


def _secret(value: Any) -> Any:
    if isinstance(value, SecretStr) or (isinstance(value, str) and value):
        return value
    raise _secret_error("expected a string, preferably as ${NAME}")


def _address(value: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(value.get_secret_value())
        is_complete = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise _secret_error("expected a URL, such as https://alerts.example.org/hook") from None
    if not is_complete:
        raise _secret_error("expected a URL with http:// or https://, such as https://alerts.example.org/hook")
    if parts.username is not None or parts.password is not None:
        raise _secret_error("a URL must not contain a user or password; write `headers: {Authorization: ...}`")
    return value


def _printable(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().isprintable() or not value.get_secret_value().isascii():
        raise _secret_error("a header may contain only printable ASCII characters")
    return value


def _headers(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _secret_error("expected a mapping of names and values, such as {Authorization: ${TOKEN}}")
    names = [name for name in cast("Mapping[Any, Any]", value) if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name)]
    if names:
        raise _secret_error("a header name may contain only letters, digits and -")
    return cast("Mapping[str, Any]", value)


def _current_events(value: Any) -> Any:
    """Translate deprecated event names, with a `FutureWarning`."""
    if not isinstance(value, list | tuple | set | frozenset):
        return value
    names = list(cast("Iterable[Any]", value))
    for old, new in RENAMED_EVENTS.items():
        if old in names:
            warn_renamed(old, new)
            names = [new if name == old else name for name in names]
    return names


_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9-]+")
Secret = Annotated[SecretStr, BeforeValidator(_secret)]
Url = Annotated[Secret, AfterValidator(_address)]
Header = Annotated[Secret, AfterValidator(_printable)]
Headers = Annotated[dict[str, Header], BeforeValidator(_headers)]
Mailbox = Annotated[str, Field(pattern=r"^[^\s@<>,;:\"]+@[^\s@<>,;:\"]+$")]


class _Target(Model):
    """Base class for targets of notifications, with the events to which they subscribe."""

    name: Name
    events: Annotated[frozenset[Event], BeforeValidator(_current_events)] = Field(
        default=frozenset(EVENTS), description="The events that it receives. Default: all."
    )


class Webhook(_Target):
    """Server that receives a JSON document by POST."""

    kind: Literal["webhook"]
    url: Url
    headers: Headers = Field(default_factory=dict[str, SecretStr], description="Additional headers, such as Authorization.")


class Slack(_Target):
    """Incoming webhook on Slack or a compatible server."""

    kind: Literal["slack"]
    url: Url


class Email(_Target):
    """Mailboxes that receive mail by SMTP."""

    kind: Literal["email"]
    server: str = Field(min_length=1, pattern=r"^\S+$", description="Host name of the SMTP server.")
    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str | None = None
    password: Secret | None = None
    sender: Mailbox
    to: tuple[Mailbox, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password require each other; write both or neither")
        if self.password is not None and self.security == "none":
            raise ValueError("with `security: none` the password is sent unencrypted; write starttls or tls")
        return self


class Command(_Target):
    """Program that reads a JSON document from standard input."""

    kind: Literal["command"]
    command: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, description="Program and arguments. No shell interprets them."
    )


TARGETS: Final[Mapping[str, type[Webhook | Slack | Email | Command]]] = {
    "webhook": Webhook,
    "slack": Slack,
    "email": Email,
    "command": Command,
}


def _validate_target(value: Any) -> Any:
    """Parse an entry of `notify` with the model of its kind."""
    if isinstance(value, _Target):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping with the keys name and kind")  # noqa: TRY004  (pydantic reports ValueErrors only)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in TARGETS:
        unknown = PydanticCustomError("target_kind", "expected one of {known}", {"known": ", ".join(TARGETS)})
        raise ValidationError.from_exception_data("target", [InitErrorDetails(type=unknown, loc=("kind",), input=kind)])
    return TARGETS[kind].model_validate(value)


Target = Annotated[Webhook | Slack | Email | Command, BeforeValidator(_validate_target)]
