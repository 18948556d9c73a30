"""Settings for S3 and compatible servers, under `s3` in `lakes.yaml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from gc_assets.config.connections import Prices, StoreSettings
from gc_assets.core.paths import S3, Scheme
from gc_assets.core.requests import Kind

# USD per million requests for S3 Standard in us-east-1 (price list of November 2026).
AWS_PRICES: Final[Mapping[Kind, float]] = {"LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "PUT": 5.0, "COPY": 5.0, "DELETE": 0.0}

_ROLE = r"^arn:[a-z0-9-]+:iam::\d*:role/.+$"


class S3Config(StoreSettings):
    """Connection to an S3 server, with separate roles for reading and changes."""

    SCHEME: ClassVar[Scheme] = S3
    KEY: ClassVar[str] = "s3"
    IDENTITY_KEYS: ClassVar[tuple[str, ...]] = ("profile", "role_arn", "apply_profile", "apply_role_arn")
    LIST_PRICES: ClassVar[Mapping[Kind, float]] = AWS_PRICES

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/@]+/?$", description="The server's address, such as https://s3.example.org. Default: AWS."
    )
    region: str | None = Field(default=None, description="Default: from the environment or the profile, otherwise us-east-1.")
    path_style: bool | None = Field(
        default=None, description="Whether bucket names are part of the path, not of the host. Default: yes with `endpoint`."
    )
    profile: str | None = Field(default=None, description="A profile of ~/.aws/config. Default: from the environment.")
    role_arn: str | None = Field(default=None, pattern=_ROLE, description="Role of runs and plans. It only needs to read.")
    apply_profile: str | None = Field(default=None, description="Profile for changing objects. Default: `profile`.")
    apply_role_arn: str | None = Field(default=None, pattern=_ROLE, description="Role for changing objects. Default: `role_arn`.")
    requester_pays: bool = Field(default=False, description="Whether to pay for requests to buckets of other accounts.")
    prices: Prices | None = Field(
        default=None,
        description="USD per million requests of each kind. Default: the prices of AWS; none with `endpoint`.",
    )

    def server_of_environment(self) -> str | None:
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        return next((value for name in names if (value := os.environ.get(name))), None)
