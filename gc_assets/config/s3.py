"""How places on S3, and on servers that speak its API, are reached (`s3:` in `lakes.yaml`).

No secret is ever written here. Credentials come from the environment, from a profile, from the
machine or from a role, wherever the process runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from gc_assets.config.values import Model, number
from gc_assets.core.deadline import READ_SECONDS
from gc_assets.core.paths import Location, bucket_and_key
from gc_assets.core.requests import Kind

# USD for a million requests: S3 Standard in us-east-1, from the price list of November 2026.
AWS_PRICES: Final[Mapping[Kind, float]] = {"LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "PUT": 5.0, "COPY": 5.0, "DELETE": 0.0}

_ROLE = r"^arn:[a-z0-9-]+:iam::\d*:role/.+$"


class S3Config(Model):
    """The connection to one S3 server, for two roles: one that reads and one that changes."""

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/@]+/?$", description="The server's address, such as https://s3.example.org. Default: AWS."
    )
    region: str | None = Field(default=None, description="Default: the environment's or the profile's, else us-east-1.")
    path_style: bool | None = Field(default=None, description="Bucket names in the path and not in the host. Default: yes with `endpoint`.")
    profile: str | None = Field(default=None, description="A profile of ~/.aws/config. Default: the environment's.")
    role_arn: str | None = Field(default=None, pattern=_ROLE, description="A role that nights and plans assume. It needs to read only.")
    apply_profile: str | None = Field(default=None, description="The profile that changes objects. Default: `profile`.")
    apply_role_arn: str | None = Field(default=None, pattern=_ROLE, description="The role that changes objects. Default: `role_arn`.")
    anonymous: bool = Field(default=False, description="Read without credentials. Nothing can be applied then.")
    requester_pays: bool = Field(default=False, description="Agree to pay for requests to other people's buckets.")
    max_requests_per_second: Annotated[float, BeforeValidator(number)] | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Most requests a second of all processes of a stage together. Default: no limit.",
    )
    prices: Mapping[Kind, Annotated[float, BeforeValidator(number), Field(ge=0, allow_inf_nan=False)]] | None = Field(
        default=None,
        description="USD for a million requests of each kind. Default: those of AWS, and none with `endpoint`.",
    )

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @model_validator(mode="after")
    def _one_identity(self) -> S3Config:
        named = [name for name in ("profile", "role_arn", "apply_profile", "apply_role_arn") if getattr(self, name) is not None]
        if self.anonymous and named:
            raise ValueError(f"anonymous asks without credentials, and {' and '.join(named)} name some; keep one of them")
        return self

    def usd_per_million(self, kind: Kind) -> float | None:
        """Returns the price of a million requests of a kind, or null where none is known."""
        if self.prices is not None:
            return self.prices.get(kind)
        return AWS_PRICES[kind] if self.endpoint is None else None

    def over(self, other: S3Config) -> S3Config:
        """Returns these settings, and those of `other` where these say nothing."""
        said: Mapping[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        return S3Config.model_validate({**{name: getattr(other, name) for name in other.model_fields_set}, **said})


@dataclass(frozen=True, slots=True)
class Places:
    """How every address is reached. Pickles, and holds no secret.

    `s3` are the settings of each location on S3 that has its own. Every other address is reached by
    `default`. No read of an object is waited for longer than `read_seconds`.
    """

    s3: tuple[tuple[Location, S3Config], ...] = ()
    default: S3Config = field(default_factory=S3Config)
    read_seconds: float = READ_SECONDS

    def s3_of(self, address: str) -> S3Config:
        """Returns the settings of the innermost place that holds the address."""
        place = "/".join(bucket_and_key(address))
        holding = [(len(location.root), settings) for location, settings in self.s3 if place.startswith(location.root)]
        return max(holding, key=lambda item: item[0])[1] if holding else self.default


EVERYWHERE: Final = Places()
