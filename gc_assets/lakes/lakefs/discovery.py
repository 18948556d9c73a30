"""Discover the repositories on a lakeFS server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import urllib3

from gc_assets.core.errors import UsageError
from gc_assets.core.paths import is_in_bucket
from gc_assets.core.urls import storage_address
from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
from gc_assets.lakes.lakefs.client import RepositoryClient, Server

# lakectl, the command line of lakeFS, uses the same names.
_KEY_ID: Final = "LAKECTL_CREDENTIALS_ACCESS_KEY_ID"
_SECRET: Final = "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"  # noqa: S105  (the name of a variable)
_HEALTHY: Final = 204


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield every repository that the user in `LAKECTL_CREDENTIALS_*` may read.

    If a namespace is on the server's own disk (`local://…`), the user has to fill in its location.

    Raises:
        UsageError: If the target is a lakeFS server, but the variables are not set.
    """
    if not target.is_server:
        return
    base = re.sub(r"(/api/v1)?/*$", "", target.address)
    key_id, secret = target.environment.get(_KEY_ID), target.environment.get(_SECRET)
    status, _ = target.get_json(f"{base}/api/v1/healthcheck", urllib3.make_headers(basic_auth=f"{key_id}:{secret}") if key_id else None)
    if status != _HEALTHY:
        return
    if not key_id or not secret:
        raise UsageError(f"{base} is a lakeFS server and requires credentials: set {_KEY_ID} and {_SECRET}")
    for name, namespace in sorted(RepositoryClient(Server(base, key_id, secret), "").namespaces().items()):
        credentials = {"access_key_id": f"${{{_KEY_ID}}}", "secret_access_key": f"${{{_SECRET}}}"}
        entry: dict[str, Any] = {"kind": "lakefs", "endpoint": base, "repository": name, **credentials}
        location = storage_address(namespace)
        if is_in_bucket(location):
            yield DiscoveredLake(name, entry, (location,))
        else:
            hint = "set `location` to the same folder on this machine, and add a storage that contains it"
            yield DiscoveredLake(name, entry, note=f"its files are in {namespace} on the server: {hint}")
