"""Settings of S3 and compatible servers (`s3` in `lakes.yaml`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field, model_validator

from gc_assets.config.connections import StoreSettings
from gc_assets.config.values import check_number
from gc_assets.core.paths import S3, Scheme
from gc_assets.core.requests import Kind

# USD per million requests for S3 Standard in us-east-1 (price list of November 2026).
AWS_PRICES: Final[Mapping[Kind, float]] = {"LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "PUT": 5.0, "COPY": 5.0, "DELETE": 0.0}

_ROLE = r"^arn:[a-z0-9-]+:iam::\d*:role/.+$"


class S3Config(StoreSettings):
    """Connection to an S3 server, with separate roles for reading and changes."""

    SCHEME: ClassVar[Scheme] = S3
    KEY: ClassVar[str] = "s3"

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/@]+/?$", description="The server's address, such as https://s3.example.org. Default: AWS."
    )
    region: str | None = Field(default=None, description="Default: that of the environment or the profile, otherwise us-east-1.")
    path_style: bool | None = Field(
        default=None, description="Whether bucket names are part of the path, not of the host. Default: yes with `endpoint`."
    )
    profile: str | None = Field(default=None, description="A profile of ~/.aws/config. Default: that of the environment.")
    role_arn: str | None = Field(default=None, pattern=_ROLE, description="Role of runs and plans. It only needs to read.")
    apply_profile: str | None = Field(default=None, description="Profile for changing objects. Default: `profile`.")
    apply_role_arn: str | None = Field(default=None, pattern=_ROLE, description="Role for changing objects. Default: `role_arn`.")
    anonymous: bool = Field(default=False, description="Whether to read without credentials. Then nothing can be applied.")
    requester_pays: bool = Field(default=False, description="Whether to pay for requests to buckets of other accounts.")
    max_requests_per_second: Annotated[float, BeforeValidator(check_number)] | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum number of requests a second, for all processes of a stage in total. Default: no limit.",
    )
    prices: Mapping[Kind, Annotated[float, BeforeValidator(check_number), Field(ge=0, allow_inf_nan=False)]] | None = Field(
        default=None,
        description="USD per million requests of each kind. Default: the prices of AWS; none with `endpoint`.",
    )

    @model_validator(mode="after")
    def _one_identity(self) -> S3Config:
        named = [name for name in ("profile", "role_arn", "apply_profile", "apply_role_arn") if getattr(self, name) is not None]
        if self.anonymous and named:
            raise ValueError(f"anonymous means no credentials, but {' and '.join(named)} name some; remove one of them")
        return self

    @property
    def server(self) -> str | None:
        return self.endpoint

    def server_of_environment(self) -> str | None:
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        return next((value for name in names if (value := os.environ.get(name))), None)

    @property
    def is_read_only(self) -> bool:
        return self.anonymous

    @property
    def requests_per_second(self) -> float | None:
        return self.max_requests_per_second

    def usd_per_million(self, kind: Kind) -> float | None:
        """Return the price per million requests, or None if unknown."""
        if self.prices is not None:
            return self.prices.get(kind)
        return AWS_PRICES[kind] if self.endpoint is None else None
