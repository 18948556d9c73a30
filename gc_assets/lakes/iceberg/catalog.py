"""List, load and commit to tables in a pyiceberg catalog.

Only this module connects to a catalog. It unwraps secrets and redacts them in all messages.
"""

from __future__ import annotations

import re
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

from pydantic import SecretStr
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from pyiceberg.utils.config import Config
from sqlalchemy import Executable, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from gc_assets.core.deadline import READ_SECONDS, run_with_deadline
from gc_assets.core.errors import GcError, LakeUnreadable
from gc_assets.lakes.iceberg.config import SECRET_KEY, secrets_in
from gc_assets.lakes.iceberg.removal import build_local_commit, build_rest_commit
from gc_assets.lakes.iceberg.revalidate import Removal
from gc_assets.lakes.protocol import UnreadableTable

_Result = TypeVar("_Result")
# Arrow errors for denied or timed-out requests, but not for missing keys.
_S3_ERROR = re.compile(r"AWS Error (?!NO_SUCH_KEY|RESOURCE_NOT_FOUND)")
_STORE_HINT = (
    "pyiceberg has its own settings for the store: write s3.endpoint and s3.region into `catalog`, and set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or write s3.access-key-id and s3.secret-access-key into `catalog` as ${NAME}"
)
_REPAIR_HINT = "repair it or drop it from the catalog"
_IO_PROPERTY, _GUARDED_IO = "py-io-impl", "gc_assets.lakes.iceberg.file_io.GuardedFileIO"
_USER_INFO = re.compile(r"://[^/@\s]+@")
_SEPARATORS = re.compile(r"[:\s]+")
# Shorter parts of a secret occur in ordinary words.
_MIN_PART_LENGTH = 4


class CommitRejected(GcError):
    """Catalog rejected a commit because the table changed. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TablePointer:
    """Table name with the current metadata.json address.

    `name` is `namespace.table`, with dots between nested namespaces.
    """

    name: str
    metadata_location: str


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A loaded table to commit to. `handle` is pyiceberg's object."""

    name: str
    metadata_location: str
    table_uuid: str
    handle: Table


def list_tables(
    lake: str, catalog_name: str, properties: Mapping[str, SecretStr | str], read_seconds: float = READ_SECONDS
) -> Iterator[TablePointer | UnreadableTable]:
    """Yield every table of every namespace, including nested ones, ordered by name.

    Views are not included. A table that cannot be read is yielded as `UnreadableTable`, so the list
    is always complete.

    Raises:
        LakeUnreadable: If a namespace cannot be listed. The message names it.
    """
    return CatalogClient(lake, catalog_name, properties, read_seconds).list_pointers()


class CatalogClient:
    """Client for one catalog.

    Threads may share an instance. Each thread has its own pyiceberg client, because these clients
    are not thread-safe.
    """

    def __init__(self, lake: str, catalog_name: str, properties: Mapping[str, SecretStr | str], read_seconds: float = READ_SECONDS) -> None:
        self._lake = lake
        self._read_seconds = read_seconds
        self._catalog_name = catalog_name
        self._properties = properties
        self._clients = threading.local()

    def list_pointers(self) -> Iterator[TablePointer | UnreadableTable]:
        """Yield every table with its metadata address, ordered by name like `list_tables`."""
        try:
            client = self._connect()
        except LakeUnreadable:
            raise
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise self._listing_error(error) from None
        if isinstance(client, SqlCatalog):
            yield from self._list_sql_pointers(client)
            return
        for identifier in self.list_identifiers():
            name = ".".join(identifier)
            try:
                table = self.load(identifier)
                if table is None:
                    raise self.unreadable(f"table {name}", "it was dropped during the listing")
            except LakeUnreadable as error:
                yield UnreadableTable(name, str(error))
                continue
            yield TablePointer(name, table.metadata_location)

    def _list_sql_pointers(self, client: SqlCatalog) -> Iterator[TablePointer | UnreadableTable]:
        """Read table pointers from the catalog database, without opening metadata files.

        It also contains tables without a namespace. Iceberg's JDBC catalog creates such tables, and
        pyiceberg cannot load them.
        """
        query = select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
        query = query.where(IcebergTables.catalog_name == client.name)
        type_filter = client._iceberg_type_filter()  # pyright: ignore[reportPrivateUsage]  # views are in the same table
        try:
            found = self._call("tables", lambda: _fetch_rows(client, query if type_filter is None else query.where(type_filter)))
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise self._listing_error(error) from None
        tables = [(f"{namespace}.{name}" if namespace else name, location) for namespace, name, location in found]
        for name, location in sorted(tables, key=lambda item: item[0]):
            if location:
                yield TablePointer(name, location)
            else:
                yield UnreadableTable(name, str(self.unreadable(f"table {name}", "the catalog has no location of its metadata.json")))

    # Errors are raised `from None`: the traceback of a driver may contain the connection string.
    def list_identifiers(self) -> list[Identifier]:
        """Return the identifiers of all tables, ordered by name.

        Raises:
            LakeUnreadable: If a namespace cannot be listed.
        """
        try:
            client = self._connect()
            return sorted(self._walk_namespaces(client))
        except LakeUnreadable:
            raise
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise self._listing_error(error) from None

    def load(self, identifier: Identifier) -> CatalogTable | None:
        """Load the current table with this name, or return None if it does not exist.

        Raises:
            LakeUnreadable: If the table cannot be loaded.
        """
        name = ".".join(identifier)
        try:
            client = self._connect()
            table = self._call(name, lambda: client.load_table(identifier))
        except LakeUnreadable:
            raise
        except NoSuchIcebergTableError as error:
            raise self.unreadable(f"table {name}", _describe(error)) from None
        except NoSuchTableError:
            return None
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise self.unreadable(f"table {name}", _describe(error)) from None
        if not table.metadata_location:
            raise self.unreadable(f"table {name}", "the catalog has no location of its metadata.json")
        return CatalogTable(name, table.metadata_location, str(table.metadata.table_uuid), table)

    def commit(self, table: CatalogTable, removal: Removal) -> str:
        """Commit a removal and return the address of the new metadata.json.

        Raises:
            CommitRejected: If the table changed since it was read.
            GcError: For any other failure. The commit may have taken effect.
        """
        try:
            client = self._connect()
            updates, requirements = (build_rest_commit if isinstance(client, RestCatalog) else build_local_commit)(removal)
            return self._call(table.name, lambda: client.commit_table(table.handle, requirements, updates)).metadata_location
        except CommitFailedException as error:
            raise CommitRejected(self._redact(str(error))) from None
        except NotImplementedError as error:
            reason = str(error) or f"{type(self._connect()).__name__}.commit_table is not implemented"
            raise GcError(f"pyiceberg cannot commit to this table: {self._redact(reason)}; expire it with an engine that can") from None
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise GcError(f"the catalog did not confirm the commit: {self._redact(_describe(error))}") from None

    def _call(self, what: str, request: Callable[[], _Result]) -> _Result:
        """Call the catalog. A client whose call timed out is not used again."""
        try:
            return run_with_deadline(self._read_seconds, what, request)
        except TimeoutError:
            self._clients.catalog = None
            raise

    def _walk_namespaces(self, catalog: Catalog) -> set[Identifier]:
        found: set[Identifier] = set()
        seen: set[Identifier] = set()
        pending = list(self._call("namespaces", catalog.list_namespaces))
        while pending:
            namespace = pending.pop()
            if namespace in seen:
                continue
            seen.add(namespace)
            name = ".".join(namespace)
            found.update(self._call(name, partial(catalog.list_tables, namespace)))
            pending.extend(self._call(name, partial(catalog.list_namespaces, namespace)))
        return found

    def unreadable(self, what: str, finding: str) -> LakeUnreadable:
        return LakeUnreadable(
            f"lake {self._lake}: {what} could not be read ({self._redact(finding)}); "
            f"{_STORE_HINT if _S3_ERROR.search(finding) else _REPAIR_HINT}, then run again; garbage cannot be determined without it"
        )

    def _listing_error(self, error: Exception) -> LakeUnreadable:
        return self.unreadable(f"the list of tables of catalog {self._catalog_name!r}", _describe(error))

    def _connect(self) -> Catalog:
        client: Catalog | None = getattr(self._clients, "catalog", None)
        if client is None:
            plain = {key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in self._properties.items()}
            self._require_database_file(plain)
            # A database without catalog tables is probably the wrong one.
            is_io_configured = _IO_PROPERTY in (Config().get_catalog_config(self._catalog_name) or {})
            defaults = {} if is_io_configured else {_IO_PROPERTY: _GUARDED_IO}
            settings = {**defaults, **plain, "init_catalog_tables": "false"}
            client = self._call("catalog", lambda: load_catalog(self._catalog_name, **settings))
            # Read from the open catalog: pyiceberg's configuration file or the server may set it.
            mode = client.properties.get("snapshot-loading-mode", "all")
            if mode.lower() != "all":
                raise LakeUnreadable(
                    f"lake {self._lake}: catalog property snapshot-loading-mode={mode} hides snapshots that no ref points to, "
                    "and their files would be planned for deletion; set it to `all` or remove it"
                )
            self._clients.catalog = client
        return client

    def _require_database_file(self, plain: Mapping[str, str]) -> None:
        """Raise `LakeUnreadable` if the catalog's database file does not exist.

        The driver would create it, and without any table all files would be garbage.
        """
        uri = plain.get("uri") or (Config().get_catalog_config(self._catalog_name) or {}).get("uri")
        if not isinstance(uri, str) or not uri.startswith("sqlite"):
            return
        database = make_url(uri).database
        if database and database != ":memory:" and not Path(database.removeprefix("file:").partition("?")[0]).is_file():
            raise LakeUnreadable(
                f"lake {self._lake}: its catalog {database} does not exist; expected the SQL catalog's file. "
                "Mount it, or correct `catalog.uri` in lakes.yaml; gc-assets never creates it"
            )

    def _redact(self, message: str) -> str:
        return textwrap.shorten(redact_secrets(message, self._properties), 400)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _fetch_rows(client: SqlCatalog, query: Executable) -> Sequence[Any]:
    with Session(client.engine) as session:
        return session.execute(query).all()


def redact_secrets(message: str, properties: Mapping[str, SecretStr | str]) -> str:
    """Return the message without secrets.

    Secrets are the values of properties with a secret name, their parts (`id:secret`), and users
    and passwords in URLs.
    """
    plain = {key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in properties.items()}
    secrets = [value for key, value in plain.items() if SECRET_KEY.search(key)]
    secrets += [part for value in secrets for part in _SEPARATORS.split(value) if len(part) >= _MIN_PART_LENGTH]
    secrets += [found for value in plain.values() for found in secrets_in(value)]
    spellings = {spelled for value in secrets if value for spelled in (value, quote(value, safe=""), quote_plus(value))}
    for secret in sorted(spellings, key=len, reverse=True):
        message = message.replace(secret, "***")
    return _USER_INFO.sub("://***@", message)
