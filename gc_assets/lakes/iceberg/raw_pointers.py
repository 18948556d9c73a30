"""Read the metadata address of a table or view without parsing the metadata.

pyiceberg parses the whole metadata when it loads a table, and fails if it finds an unknown type or
default value. This module only reads the address of the metadata file, because `metadata.py` parses
the file. It relies on private methods and attributes of pyiceberg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Endpoints, IdentifierKind, RestCatalog
from pyiceberg.exceptions import NoSuchPropertyException
from pyiceberg.typedef import Identifier

from gc_assets.core.errors import GcError
from gc_assets.core.untrusted_input import normalize_uuid, parse_json

_LOCATION, _REST_LOCATION = "metadata_location", "metadata-location"


@dataclass(frozen=True, slots=True)
class RawPointer:
    """Address of a table's metadata.

    The table UUID is set if the catalog's response contains it.
    """

    metadata_location: str
    table_uuid: str | None = None


def read_raw_pointer(client: Catalog, identifier: Identifier) -> RawPointer | None:
    """Read the address of a table's metadata. Returns None for unsupported kinds of catalogs.

    Every error of the catalog is raised unchanged.
    """
    if isinstance(client, RestCatalog):
        answer = _get(client, Endpoints.load_table, identifier, IdentifierKind.TABLE)
        metadata = answer.get("metadata")
        uuid = metadata.get("table-uuid") if isinstance(metadata, dict) else None
        return RawPointer(_require_location(answer, _REST_LOCATION), normalize_uuid(uuid) if isinstance(uuid, str) else None)
    parameters = _read_parameters(client, identifier)
    return None if parameters is None else RawPointer(_require_location(parameters, _LOCATION))


def read_view_location(client: Catalog, identifier: Identifier) -> str:
    """Read the address of a view's metadata. Every error of the catalog is raised unchanged."""
    if not isinstance(client, RestCatalog):
        raise NotImplementedError(f"pyiceberg cannot read views of a {type(client).__name__}")
    return _require_location(_get(client, Endpoints.load_view, identifier, IdentifierKind.VIEW), _REST_LOCATION)


def _get(client: RestCatalog, endpoint: str, identifier: Identifier, kind: IdentifierKind) -> dict[str, Any]:
    path = client._split_identifier_for_path(identifier, kind)  # pyright: ignore[reportPrivateUsage]
    return get_json(client, client.url(endpoint, prefixed=True, **path), {})


def require_rest(client: Catalog) -> RestCatalog:
    """Return the client of a REST catalog. Raises `GcError` for other catalogs."""
    if isinstance(client, RestCatalog):
        return client
    raise GcError(f"a {type(client).__name__} has no policies; set retention.source to table")


def get_json(client: RestCatalog, url: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Send a GET request with the client's credentials, and parse the JSON object in the response.

    Every error of the catalog is raised unchanged.
    """
    response = client._session.get(url, params=query)  # pyright: ignore[reportPrivateUsage]
    response.raise_for_status()
    answer = parse_json(response.content)
    if not isinstance(answer, dict):
        raise ValueError(f"the answer must be a JSON object, found {type(answer).__name__}")  # noqa: TRY004  (a wrong value, no wrong call)
    return cast("dict[str, Any]", answer)


def _read_parameters(client: Catalog, identifier: Identifier) -> dict[str, Any] | None:
    """Read a table's parameters from Hive or Glue, whose modules are optional dependencies."""
    database, name = ".".join(identifier[:-1]), identifier[-1]
    if hasattr(client, "_get_hive_table"):
        with client._client as connection:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
            return client._get_hive_table(connection, database, name).parameters  # pyright: ignore
    if hasattr(client, "_get_glue_table"):
        return client._get_glue_table(database_name=database, table_name=name)["Parameters"]  # pyright: ignore
    return None


def _require_location(values: dict[str, Any], key: str) -> str:
    location = values.get(key)
    if not isinstance(location, str) or not location:
        raise NoSuchPropertyException(f"its metadata.json location is missing from the catalog ({key})")
    return location
