"""Find refs of a Nessie server that an Iceberg lake does not read.

Such a lake uses the Iceberg REST catalog of the Nessie server, which shows a single ref.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog

from gc_assets.core.errors import GcError
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.iceberg.raw_pointers import get_json

_IS_NESSIE: Final = "nessie.is-nessie-catalog"
_API: Final = "nessie.core-base-uri"
_REMEDY: Final = "configure the server as a lake of kind nessie instead"


def describe_nessie(overrides: Mapping[str, Any]) -> str:
    """Describe a REST catalog that shows one branch of a Nessie server. Return "" for others.

    Args:
        overrides: The `overrides` in the catalog's response to `/v1/config`.
    """
    if overrides.get(_IS_NESSIE) != "true":
        return ""
    server = str(overrides.get(_API, "the address of the server")).removesuffix("/").removesuffix("/api")
    return f"it is a Nessie server, and this catalog shows only one branch. Configure {server} instead of the catalog to read all branches"


def find_unread_refs(catalog: CatalogClient) -> str | None:
    """Return the reason to keep all tables of the catalog, or None.

    A REST catalog of Nessie shows only one ref. Commits on other branches and tags of the server
    may need files that the tables' metadata on this ref does not reference.
    """
    try:
        return catalog.request("refs", _find)
    except (GcError, TimeoutError) as error:
        return f"the refs of the catalog cannot be listed: {error}; if it is a Nessie server, {_REMEDY}"


def _find(client: Catalog) -> str | None:
    if not isinstance(client, RestCatalog) or client.properties.get(_IS_NESSIE) != "true":
        return None
    answer = get_json(client, f"{client.properties[_API].rstrip('/')}/v2/trees", {})
    found = answer["references"]
    if len(found) == 1 and not answer.get("hasMore"):
        return None
    names = ", ".join(str(item["name"]) for item in found[:3])
    return f"the catalog is a Nessie server with several refs ({names}{', ...' if len(found) > 3 else ''}); {_REMEDY}"
