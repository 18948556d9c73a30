"""Credentials of the account in tests. Without imports of the client, which loads slowly."""

from __future__ import annotations

import base64

ACCOUNT = "gcassetstest"
# Two keys of the account. The second one is the identity of an apply.
KEY = base64.b64encode(b"key of the tests, for reading".ljust(32)).decode()
APPLY_KEY = base64.b64encode(b"key of the tests, for changes".ljust(32)).decode()
READ_VARIABLE, APPLY_VARIABLE = "GC_ASSETS_TEST_AZURE_READ", "GC_ASSETS_TEST_AZURE_APPLY"


def connection_string(key: str) -> str:
    """Return a connection string without an endpoint, which `azure.endpoint` gives."""
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key}"


def environment() -> dict[str, str]:
    """Return the environment in which a process finds the credentials of both roles.

    Credentials of this machine are hidden.
    """
    return {
        READ_VARIABLE: connection_string(KEY),
        APPLY_VARIABLE: connection_string(APPLY_KEY),
        "AZURE_STORAGE_CONNECTION_STRING": "",
        "AZURE_STORAGE_SAS_TOKEN": "",
    }
