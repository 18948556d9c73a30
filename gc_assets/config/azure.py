"""Settings for Azure Blob Storage, under `azure` in `lakes.yaml`.

Secrets are never part of the settings. They are referenced by environment variable or identity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field, model_validator

from gc_assets.config.connections import Prices, StoreSettings
from gc_assets.core.paths import AZURE, Scheme, azure_host
from gc_assets.core.requests import Kind

# USD per million requests for block blobs in the hot tier with LRS in East US. From the price list
# of November 2026.
AZURE_PRICES: Final[Mapping[Kind, float]] = {"LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "PUT": 5.0, "COPY": 5.0, "DELETE": 0.0}

# The Azure command line uses the same environment variable.
CONNECTION_STRING: Final = "AZURE_STORAGE_CONNECTION_STRING"
_ENDPOINT = re.compile(r"(?:^|;)BlobEndpoint=(https?://[^;@\s]+)")
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_CLIENT_ID = r"^[0-9A-Fa-f-]{36}$"


class AzureConfig(StoreSettings):
    """Connection to Azure Blob Storage, with separate identities for reading and changes."""

    SCHEME: ClassVar[Scheme] = AZURE
    KEY: ClassVar[str] = "azure"
    IDENTITY_KEYS: ClassVar[tuple[str, ...]] = ("secret_variable", "client_id", "apply_secret_variable", "apply_client_id")
    LIST_PRICES: ClassVar[Mapping[Kind, float]] = AZURE_PRICES

    account: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]{3,24}$",
        description="Account for addresses without one (`az://container/…`). Default: the account of the storages, if all have the same.",
    )
    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/@?#]+(/[a-z0-9]{3,24})?/?$",
        description="Blob endpoint of the account, for emulators and private endpoints: `http://127.0.0.1:10000/devstoreaccount1`.",
    )
    secret_variable: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="Environment variable with a connection string or a SAS token, for runs and plans. It only needs to read.",
    )
    client_id: str | None = Field(
        default=None, pattern=_CLIENT_ID, description="Client id of the managed or workload identity of runs and plans."
    )
    apply_secret_variable: str | None = Field(
        default=None, pattern=_VARIABLE, description="Environment variable for changing objects. Default: `secret_variable`."
    )
    apply_client_id: str | None = Field(
        default=None, pattern=_CLIENT_ID, description="Client id of the identity for changing objects. Default: `client_id`."
    )
    prices: Prices | None = Field(
        default=None,
        description="USD per million requests of each kind. Default: the prices of Azure; none with `endpoint`.",
    )

    @model_validator(mode="after")
    def _one_identity_per_role(self) -> AzureConfig:
        for prefix in ("", "apply_"):
            if all(getattr(self, f"{prefix}{name}") is not None for name in ("secret_variable", "client_id")):
                raise ValueError(f"{prefix}secret_variable and {prefix}client_id cannot be combined; remove one of them")
        return self

    def server_of_environment(self) -> str | None:
        """Return the endpoint in the connection string, unless it belongs to Azure itself."""
        text = os.environ.get(self.secret_variable or CONNECTION_STRING, "")
        found = _ENDPOINT.search(text)
        if found is None or azure_host(found[1].partition("://")[2].partition("/")[0]) is not None:
            return None
        return found[1].rstrip("/")
