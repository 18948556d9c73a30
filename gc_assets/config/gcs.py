"""Settings of Google Cloud Storage (`gcs` in `lakes.yaml`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field, model_validator

from gc_assets.config.connections import StoreSettings
from gc_assets.config.values import check_number
from gc_assets.core.paths import GCS, Scheme
from gc_assets.core.requests import Kind

# USD per million requests for Standard storage in a region, flat namespace: class A for lists and
# writes, class B for reads (price list of November 2026).
GOOGLE_PRICES: Final[Mapping[Kind, float]] = {"LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "PUT": 5.0, "COPY": 5.0, "DELETE": 0.0}

_ACCOUNT = r"^[^@\s]+@[^@\s]+\.gserviceaccount\.com$"


class GcsConfig(StoreSettings):
    """Connection to Google Cloud Storage. Credentials come from Application Default Credentials."""

    SCHEME: ClassVar[Scheme] = GCS
    KEY: ClassVar[str] = "gcs"

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/@]+/?$", description="The server's address, for tests and private endpoints. Default: Google."
    )
    service_account: str | None = Field(
        default=None, pattern=_ACCOUNT, description="Service account to impersonate for runs and plans. It only needs to read."
    )
    apply_service_account: str | None = Field(
        default=None, pattern=_ACCOUNT, description="Service account to impersonate for changing objects. Default: `service_account`."
    )
    anonymous: bool = Field(default=False, description="Whether to read without credentials. Then nothing can be applied.")
    user_project: str | None = Field(
        default=None, pattern=r"^[a-z][a-z0-9:.-]{4,}$", description="Project that pays for requests to buckets with requester pays."
    )
    max_requests_per_second: Annotated[float, BeforeValidator(check_number)] | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum number of requests a second, for all processes of a stage in total. Default: no limit.",
    )
    prices: Mapping[Kind, Annotated[float, BeforeValidator(check_number), Field(ge=0, allow_inf_nan=False)]] | None = Field(
        default=None,
        description="USD per million requests of each kind. Default: the prices of Google; none with `endpoint`.",
    )

    @model_validator(mode="after")
    def _one_identity(self) -> GcsConfig:
        named = [name for name in ("service_account", "apply_service_account") if getattr(self, name) is not None]
        if self.anonymous and named:
            raise ValueError(f"anonymous means no credentials, but {' and '.join(named)} name some; remove one of them")
        return self

    @property
    def server(self) -> str | None:
        return self.endpoint

    def server_of_environment(self) -> str | None:
        return os.environ.get("STORAGE_EMULATOR_HOST") or None

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
        return GOOGLE_PRICES[kind] if self.endpoint is None else None
