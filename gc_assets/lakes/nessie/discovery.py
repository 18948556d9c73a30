"""Discover Nessie servers, and the locations of tables on their default branch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import SecretStr

from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget, server_name
from gc_assets.lakes.nessie.client import NessieClient

_TOKEN: Final = "NESSIE_TOKEN"  # noqa: S105  (the name of a variable)


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield the server at a target. The address may be the root of the server or of its API."""
    if not target.is_server:
        return
    uri = re.sub(r"(/api/v[0-9]+)?/*$", "/api/v2", target.address, count=1)
    token = target.environment.get(_TOKEN)
    _, answer = target.get_json(f"{uri}/config", {"Authorization": f"Bearer {token}"} if token else None)
    if not isinstance(answer, dict) or "maxSupportedApiVersion" not in answer:
        return
    entry: dict[str, Any] = {"kind": "nessie", "uri": uri} | ({"token": f"${{{_TOKEN}}}"} if token else {})
    name = server_name(target.address, "nessie")
    with NessieClient(name, uri, SecretStr(token) if token else None) as client:
        default = client.get_config().default_branch
        heads = [ref.hash for ref in client.list_references() if ref.name == default]
        metadata = {item.content.metadata_location for head in heads for item in client.list_entries(head)}
    # `<folder of tables>/<table>/metadata/<name>.metadata.json`
    yield DiscoveredLake(name, entry, tuple(sorted({location.rsplit("/", 3)[0] for location in metadata if location is not None})))
