"""Read table policies from a catalog, through the REST APIs of Polaris and Lakekeeper.

If a table's policy cannot be read, its files are protected.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog

from gc_assets.core.errors import FormatError, GcError
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.iceberg.catalog_policy import CatalogPolicy
from gc_assets.lakes.iceberg.policy_answers import LAKEKEEPER_EXPIRY, LAKEKEEPER_ORPHANS, parse_lakekeeper, parse_polaris
from gc_assets.lakes.iceberg.raw_pointers import get_json, require_rest

_POLARIS_ENDPOINT: Final = "polaris/v1/{prefix}/applicable-policies"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_SEPARATOR: Final = "\x1f"
_MAX_PAGES: Final = 1000

_Read = Callable[[str, Mapping[str, str]], CatalogPolicy]


class PolicyReader:
    """Reads the table policies of one catalog. Threads may share an instance.

    Args:
        catalog: Client of the catalog.
        has_default: True if lakes.yaml sets a limit for tables without a policy. If False, the
            whole history of these tables is kept.
        rereads: True to read Lakekeeper's task queues again for every table, False to read them
            once.
    """

    def __init__(self, catalog: CatalogClient, *, has_default: bool, rereads: bool = False) -> None:
        self._catalog = catalog
        self._has_default = has_default
        self._rereads = rereads
        self._lock = threading.Lock()
        self._read: _Read | None = None
        self._failure: str | None = None

    def read(self, name: str, properties: Mapping[str, str]) -> CatalogPolicy:
        """Return the policy of the table with this name. Errors of the catalog are not raised."""
        try:
            with self._lock:
                read = self._read = self._read or self._connect()
            return read(name, properties).with_default(has_default=self._has_default)
        except FormatError as error:
            return CatalogPolicy(protect=f"{error}; correct it in the catalog, or set retention.source to table")
        except (GcError, TimeoutError) as error:
            if isinstance(error, TimeoutError):  # Any further request may take as long.
                self._failure, self._read = str(error), None
            return CatalogPolicy(protect=f"its policy in the catalog cannot be read: {error}")

    def _connect(self) -> _Read:
        """Find out which policy API the server has. An error is reused for all later tables."""
        if self._failure is not None:
            raise GcError(self._failure)
        try:
            return self._catalog.request("policies", self._find_api)
        except (GcError, TimeoutError) as error:
            self._failure = str(error)
            raise

    def _find_api(self, client: Catalog) -> _Read:
        rest = require_rest(client)
        properties = rest.properties
        place = {"warehouse": properties["warehouse"]} if properties.get("warehouse") else {}
        endpoints = get_json(rest, rest.url("config", prefixed=False), place).get("endpoints")
        if isinstance(endpoints, list) and any(str(item).replace(" /", " ") == f"GET {_POLARIS_ENDPOINT}" for item in endpoints):
            return self._read_polaris
        if self._rereads:
            return self._read_lakekeeper
        queues = _read_queues(client)
        return lambda name, properties: parse_lakekeeper(*queues, properties)  # noqa: ARG005 - all tables have the same queues

    def _read_lakekeeper(self, name: str, properties: Mapping[str, str]) -> CatalogPolicy:
        return parse_lakekeeper(*self._catalog.request(f"policies of {name}", _read_queues), properties)

    def _read_polaris(self, name: str, properties: Mapping[str, str]) -> CatalogPolicy:
        found = self._catalog.find_identifiers(name)
        if not found:
            raise GcError("the catalog no longer lists the table")
        if len(found) > 1:
            raise GcError(
                f"the catalog has {len(found)} tables with this name, because dots separate the levels of a namespace and are also part "
                "of names; rename all but one of them, or set retention.source to table"
            )
        *namespace, table = found[0]
        query = {"namespace": _SEPARATOR.join(namespace), "target-name": table}
        return parse_polaris(list(self._catalog.request(f"policies of {name}", partial(_list_polaris, query=query))), properties)


def find_recoverable(catalog: CatalogClient, uuids: Collection[str]) -> dict[str, str]:
    """Find soft-deleted tables that Lakekeeper can restore. Maps their UUIDs to the reasons.

    Raises:
        TimeoutError: If Lakekeeper does not respond in time.
        GcError: If it refuses to list soft-deleted tables, or the response is invalid.
    """
    until = {item["id"].lower(): item.get("expiration-date") for item in catalog.request("deleted tables", _list_deleted)}
    return {uuid: f"Lakekeeper can restore it until {until[uuid]}" for uuid in uuids if uuid in until}


def _find_management_api(rest: RestCatalog) -> str | None:
    """Return the warehouse's address in the management API, or None if it is not Lakekeeper."""
    root, warehouse = str(rest.uri).rstrip("/"), find_warehouse(rest.properties)
    if warehouse is None or not urlsplit(root).path.endswith("/catalog"):
        return None
    return f"{root.removesuffix('/catalog')}/management/v1/warehouse/{warehouse}"


def _read_queues(client: Catalog) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read Lakekeeper's queues for expiring snapshots and for removing orphan files."""
    rest = require_rest(client)
    base = _find_management_api(rest)
    if base is None:
        raise GcError(
            "the server has neither the policy API of Polaris (its ENABLE_POLICY_STORE) nor the management API of Lakekeeper; "
            "set retention.source to table"
        )
    expiry, orphans = (_read_queue(rest, f"{base}/task-queue/{name}/config") for name in (LAKEKEEPER_EXPIRY, LAKEKEEPER_ORPHANS))
    return expiry, orphans


def _read_queue(rest: RestCatalog, url: str) -> dict[str, Any]:
    config = get_json(rest, url, {}).get("queue-config")
    if not isinstance(config, dict):
        raise GcError("the response from Lakekeeper does not contain a queue-config")
    return cast("dict[str, Any]", config)


def _list_polaris(client: Catalog, query: Mapping[str, str]) -> list[Any]:
    rest = require_rest(client)
    prefix = rest.properties.get("prefix", "")
    url = f"{str(rest.uri).rstrip('/')}/{_POLARIS_ENDPOINT.format(prefix=prefix)}"
    return list(_list_pages(lambda page: get_json(rest, url, {**query, **page}), "applicable-policies"))


def _list_deleted(client: Catalog) -> list[dict[str, Any]]:
    base = _find_management_api(client) if isinstance(client, RestCatalog) else None
    if base is None:
        return []
    found = list(_list_pages(lambda page: get_json(require_rest(client), f"{base}/deleted-tabulars", page), "tabulars"))
    if not all(isinstance(item, dict) and isinstance(item.get("id"), str) for item in found):
        raise FormatError("the list tabulars has an item without an id")
    return found


def _list_pages(read: Callable[[dict[str, str]], dict[str, Any]], key: str) -> Iterator[Any]:
    page: dict[str, str] = {}
    for _ in range(_MAX_PAGES):
        answer = read(page)
        items = answer.get(key)
        if not isinstance(items, list):
            raise FormatError(f"the response does not contain the list {key}")
        yield from items
        token = answer.get("next-page-token")
        if not token:
            return
        page = {"pageToken": str(token)}
    raise FormatError(f"the list {key} has more than {_MAX_PAGES:,} pages")


def find_warehouse(properties: Mapping[str, Any]) -> str | None:
    """Return a Lakekeeper warehouse's id, which is part of the catalog's path prefix."""
    found = _UUID.search(str(properties.get("prefix", "")))
    return found[0] if found else None
