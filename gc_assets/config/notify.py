"""Who is told of what happens (`notify` of lakes.yaml), one model for each kind of target.

A URL or password may be a secret, so neither stands in an error, a log line or a `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from gc_assets.config.values import Model, Name
from gc_assets.core.notifications import EVENTS, Event


def _refused(why: str) -> ValidationError:
    """Returns an error that does not repeat the value."""
    error = InitErrorDetails(type=PydanticCustomError("secret_value", why), loc=(), input=None)  # pyright: ignore[reportArgumentType]
    return ValidationError.from_exception_data("secret", [error])


def _secret(value: Any) -> Any:
    if isinstance(value, SecretStr) or (isinstance(value, str) and value):
        return value
    raise _refused("write a text, best as ${NAME}")


def _address(value: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(value.get_secret_value())
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise _refused("write a URL, such as https://alerts.example.org/hook") from None
    if not whole:
        raise _refused("write a URL with http:// or https://, such as https://alerts.example.org/hook")
    if parts.username is not None or parts.password is not None:
        raise _refused("a URL with a name or password is not sent; write `headers: {Authorization: ...}`")
    return value


def _printable(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().isprintable() or not value.get_secret_value().isascii():
        raise _refused("a header holds printable ASCII only")
    return value


def _headers(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _refused("write a mapping of names and values, such as {Authorization: ${TOKEN}}")
    names = [name for name in cast("Mapping[Any, Any]", value) if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name)]
    if names:
        raise _refused("the name of a header holds letters, digits and - only")
    return cast("Mapping[str, Any]", value)


_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9-]+")
Secret = Annotated[SecretStr, BeforeValidator(_secret)]
Url = Annotated[Secret, AfterValidator(_address)]
Header = Annotated[Secret, AfterValidator(_printable)]
Headers = Annotated[dict[str, Header], BeforeValidator(_headers)]
Mailbox = Annotated[str, Field(pattern=r"^[^\s@<>,;:\"]+@[^\s@<>,;:\"]+$")]


class _Target(Model):
    """Who is told, and of which events."""

    name: Name
    events: frozenset[Event] = Field(default=frozenset(EVENTS), description="Of which events it is told; all unless some are named.")


class Webhook(_Target):
    """A server that is sent a JSON document by POST."""

    kind: Literal["webhook"]
    url: Url
    headers: Headers = Field(default_factory=dict[str, SecretStr], description="Sent along, such as Authorization.")


class Slack(_Target):
    """An incoming webhook of Slack, or of a server that speaks like it."""

    kind: Literal["slack"]
    url: Url


class Email(_Target):
    """Mailboxes that are sent a mail by SMTP."""

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
            raise ValueError("username and password go together; write both or none")
        if self.password is not None and self.security == "none":
            raise ValueError("with `security: none` the password could be read on the way; write starttls or tls")
        return self


class Command(_Target):
    """A program that is given a JSON document on its standard input."""

    kind: Literal["command"]
    command: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, description="Program and arguments; no shell reads them."
    )


TARGETS: Final[Mapping[str, type[Webhook | Slack | Email | Command]]] = {
    "webhook": Webhook,
    "slack": Slack,
    "email": Email,
    "command": Command,
}


def _of_its_kind(value: Any) -> Any:
    """Reads an entry of `notify` by the model of its kind."""
    if isinstance(value, _Target):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("write a mapping with the keys name and kind")  # noqa: TRY004  (pydantic reports ValueErrors only)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in TARGETS:
        unknown = PydanticCustomError("target_kind", "there are {known}", {"known": ", ".join(TARGETS)})
        raise ValidationError.from_exception_data("target", [InitErrorDetails(type=unknown, loc=("kind",), input=kind)])
    return TARGETS[kind].model_validate(value)


Target = Annotated[Webhook | Slack | Email | Command, BeforeValidator(_of_its_kind)]
