"""Every table of a pyiceberg catalog: its name and the metadata.json it stands at now.

The only module of this lake kind that talks to a catalog. Secrets are unwrapped here and never leave in a message.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import SecretStr
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.typedef import Identifier

from gc_assets.core.errors import LakeUnreadable

_SECRET_KEY = re.compile(r"secret|password|token|credential|key", re.IGNORECASE)
_USER_INFO = re.compile(r"://[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class TablePointer:
    """A table as the catalog knows it. `name` is `namespace.table`, nested namespaces dotted."""

    name: str
    metadata_location: str


def list_tables(lake: str, catalog_name: str, properties: Mapping[str, SecretStr | str]) -> Iterator[TablePointer]:
    """Every table of every namespace, nested ones too, ordered by name; views are not tables.

    Raises `LakeUnreadable` naming the namespace or table that could not be read: nothing is ever left out.
    """
    plain = {key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in properties.items()}

    def unreadable(what: str, finding: str) -> LakeUnreadable:
        return LakeUnreadable(
            f"lake {lake}: {what} could not be read ({textwrap.shorten(_redacted(finding, properties), 400)}); "
            "repair it or drop it from the catalog, then run again: without it nothing can be called garbage"
        )

    # The errors are raised `from None`: a driver's traceback may carry the connection string.
    try:
        catalog = load_catalog(catalog_name, **plain)
        identifiers = sorted(_identifiers(catalog))
    except Exception as error:  # noqa: BLE001 - catalogs raise whatever their driver does; it stops the run here
        raise unreadable(f"the list of tables of catalog {catalog_name!r}", f"{type(error).__name__}: {error}") from None
    # Asked of the open catalog: a configuration file of pyiceberg's or the server may have set it too.
    mode = catalog.properties.get("snapshot-loading-mode", "all")
    if mode.lower() != "all":
        raise LakeUnreadable(
            f"lake {lake}: catalog property snapshot-loading-mode={mode} hides snapshots that no ref names, "
            "whose files would look like garbage; set it to `all` or leave it out"
        )
    for identifier in identifiers:
        name = ".".join(identifier)
        try:
            location = catalog.load_table(identifier).metadata_location
        except Exception as error:  # noqa: BLE001 - as above
            raise unreadable(f"table {name}", f"{type(error).__name__}: {error}") from None
        if not location:
            raise unreadable(f"table {name}", "the catalog does not say where its metadata.json is")
        yield TablePointer(name, location)


def _identifiers(catalog: Catalog) -> set[Identifier]:
    found: set[Identifier] = set()
    seen: set[Identifier] = set()
    pending = list(catalog.list_namespaces())
    while pending:
        namespace = pending.pop()
        if namespace in seen:
            continue
        seen.add(namespace)
        found.update(catalog.list_tables(namespace))
        pending.extend(catalog.list_namespaces(namespace))
    return found


def _redacted(message: str, properties: Mapping[str, SecretStr | str]) -> str:
    for key, value in properties.items():
        secret = value.get_secret_value() if isinstance(value, SecretStr) else value if _SECRET_KEY.search(key) else ""
        if secret:
            message = message.replace(secret, "***")
    return _USER_INFO.sub("://***@", message)
