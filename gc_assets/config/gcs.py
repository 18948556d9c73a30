"""Settings for Google Cloud Storage, under `gcs` in `lakes.yaml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from gc_assets.config.connections import Prices, StoreSettings
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
    IDENTITY_KEYS: ClassVar[tuple[str, ...]] = ("service_account", "apply_service_account")
    LIST_PRICES: ClassVar[Mapping[Kind, float]] = GOOGLE_PRICES

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/@]+/?$", description="The server's address, for tests and private endpoints. Default: Google."
    )
    service_account: str | None = Field(
        default=None, pattern=_ACCOUNT, description="Service account to impersonate for runs and plans. It only needs to read."
    )
    apply_service_account: str | None = Field(
        default=None, pattern=_ACCOUNT, description="Service account to impersonate for changing objects. Default: `service_account`."
    )
    user_project: str | None = Field(
        default=None, pattern=r"^[a-z][a-z0-9:.-]{4,}$", description="Project that pays for requests to buckets with requester pays."
    )
    prices: Prices | None = Field(
        default=None,
        description="USD per million requests of each kind. Default: the prices of Google; none with `endpoint`.",
    )

    def server_of_environment(self) -> str | None:
        return os.environ.get("STORAGE_EMULATOR_HOST") or None
