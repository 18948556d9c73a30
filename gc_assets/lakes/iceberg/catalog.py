"""List, load and commit to tables in a pyiceberg catalog.

Only this module connects to a catalog. It reads the secrets and removes them from all messages.
"""

from __future__ import annotations

import json
import re
import textwrap
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus
from uuid import UUID

from pydantic import SecretStr
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ValidationException,
)
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from pyiceberg.typedef import Identifier
from pyiceberg.utils.config import Config
from sqlalchemy import ColumnElement, Executable, Select, String, column, false, inspect, not_, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from gc_assets.core.deadline import READ_SECONDS, run_with_deadline
from gc_assets.core.errors import GcError, LakeUnreadable
from gc_assets.core.secret_names import SECRET_NAME
from gc_assets.lakes.iceberg.config import secrets_in
from gc_assets.lakes.iceberg.raw_pointers import RawPointer, read_raw_pointer, read_view_location
from gc_assets.lakes.iceberg.refusals import is_refusal
from gc_assets.lakes.iceberg.removal import (
    BranchCreation,
    Pruning,
    build_creation_commit,
    build_local_commit,
    build_pruning_commit,
    build_rest_commit,
)
from gc_assets.lakes.iceberg.revalidate import Removal
from gc_assets.lakes.iceberg.sqlite_catalog import open_sqlite_catalog
from gc_assets.lakes.iceberg.unread_locations import default_locations
from gc_assets.lakes.protocol import UnreadableTable

_Result = TypeVar("_Result")
# Arrow's errors for denied requests and timeouts, but not for missing keys.
_S3_ERROR = re.compile(r"AWS Error (?!NO_SUCH_KEY|RESOURCE_NOT_FOUND)")
_STORE_HINT = (
    "pyiceberg has its own settings for the store: write s3.endpoint and s3.region into `catalog`, and set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or write s3.access-key-id and s3.secret-access-key into `catalog` as ${NAME}"
)
_REPAIR_HINT = "repair it or drop it from the catalog"
_IO_PROPERTY, _GUARDED_IO = "py-io-impl", "gc_assets.lakes.iceberg.file_io.GuardedFileIO"
_USER_INFO = re.compile(r"://[^/@\s]+@")
_SEPARATORS = re.compile(r"[:\s]+")
# Writing the rows of a large lake takes less time than this.
_WRITE_SECONDS: Final = 1800.0
# Shorter parts of a secret could occur in ordinary words, so they are not redacted.
_MIN_PART_LENGTH = 4
UNPARSABLE = "pyiceberg cannot parse the metadata of this table; expire it with an engine that can"
# pyiceberg raises these errors because of the table and not because of the catalog. For example, it
# truncates a path at `#` and `?`, so that the file is not found.
_CANNOT_LOAD = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    NotImplementedError,
)
# SQL catalogs with schema version v1 have this column. It contains TABLE or VIEW. Rows that were
# created under schema version v0 are tables and contain NULL.
_TYPE_COLUMN: Final = "iceberg_type"


class CommitRejected(GcError):
    """Raised if the catalog rejected a commit because the table has changed. Nothing was written."""


class CommitDenied(GcError):
    """Raised if the catalog or store refused a commit permanently.

    Nothing was written, and a retry would fail too.
    """


class CatalogTimedOut(LakeUnreadable):
    """Raised if the catalog did not respond in time. Another request may take as long."""


class NotLoadable(LakeUnreadable):
    """Raised if pyiceberg cannot load a table although the catalog responds.

    A retry would fail too.
    """


class NotIceberg(LakeUnreadable):
    """Raised if a table name belongs to a table or view of another format."""


class InvalidRequest(NotLoadable):
    """Raised if the catalog rejects a table name as invalid, so that no such table can exist."""


@dataclass(frozen=True, slots=True)
class TablePointer:
    """A table's name and the address of its current metadata.json.

    `name` is `namespace.table`, with dots between nested namespaces. `can_commit` is False if
    pyiceberg cannot parse the metadata, for example because of an unknown type.
    """

    name: str
    metadata_location: str
    can_commit: bool = True


@dataclass(frozen=True, slots=True)
class ViewPointer:
    """A view's name and the address of its current metadata.json."""

    name: str
    metadata_location: str


@dataclass(frozen=True, slots=True)
class UnlistedViews:
    """A namespace whose views cannot be listed, or a view whose metadata address is unreadable."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table loaded from the catalog, to which changes can be committed.

    `handle` is pyiceberg's table object. If pyiceberg cannot parse the metadata, it is None, and
    `table_uuid` may be None too.
    """

    name: str
    metadata_location: str
    table_uuid: str | None
    handle: Table | None


def list_tables(
    lake: str, catalog_name: str, properties: Mapping[str, SecretStr | str], read_seconds: float = READ_SECONDS
) -> Iterator[TablePointer | UnreadableTable]:
    """Yield all tables of a catalog, including those in nested namespaces, ordered by name.

    Views are left out. A table that cannot be read is yielded as `UnreadableTable`, so that the
    list is always complete.

    Raises:
        LakeUnreadable: If a namespace cannot be listed. The message contains its name.
    """
    return CatalogClient(lake, catalog_name, properties, read_seconds).list_pointers()


class CatalogClient:
    """Client for one Iceberg catalog.

    Threads may share an instance. Each thread gets its own pyiceberg client, because these are not
    thread-safe.
    """

    def __init__(self, lake: str, catalog_name: str, properties: Mapping[str, SecretStr | str], read_seconds: float = READ_SECONDS) -> None:
        self._lake = lake
        self._read_seconds = read_seconds
        self._catalog_name = catalog_name
        self._properties = properties
        self._clients = threading.local()
        self._namespaces: set[Identifier] | None = None
        self._nested: dict[str, list[Identifier]] | None = None
        self._namespace_locations: dict[str, str | None] = {}

    def list_pointers(self) -> Iterator[TablePointer | UnreadableTable]:
        """Yield all tables with the addresses of their metadata.json, as `list_tables` does."""
        with self._name_listing_errors():
            client = self._connect()
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
            yield TablePointer(name, table.metadata_location, can_commit=table.handle is not None)

    def list_views(self) -> Iterator[ViewPointer | UnlistedViews]:
        """Yield all views with the addresses of their metadata.json.

        pyiceberg cannot list the views of some kinds of catalogs, such as Hive and Glue. In this
        case, nothing is yielded.

        Raises:
            LakeUnreadable: If the namespaces cannot be listed.
        """
        with self._name_listing_errors():
            client = self._connect()
            namespaces = () if isinstance(client, SqlCatalog) else sorted(self._namespaces or self._list_namespaces(client))
        if isinstance(client, SqlCatalog):
            yield from self._list_sql_views(client)
        try:
            for namespace in namespaces:
                yield from self._list_namespace_views(client, namespace)
        except TimeoutError as error:  # Any further request may take as long.
            yield UnlistedViews("", self._redact(_describe(error)))

    def _list_sql_views(self, client: SqlCatalog) -> Iterator[ViewPointer | UnlistedViews]:
        try:
            is_table = self._call("views", lambda: _table_filter(client))
            if is_table is None:
                return
            found = self._call("views", lambda: _fetch_rows(client, _select_pointers(client).where(not_(is_table))))
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            yield UnlistedViews("", self._redact(_describe(error)))
            return
        for name, location in _name_rows(found):
            if isinstance(location, str) and location:
                yield ViewPointer(name, location)
            else:
                yield UnlistedViews(name, "its metadata.json location is missing from the catalog")

    def _list_namespace_views(self, client: Catalog, namespace: Identifier) -> Iterator[ViewPointer | UnlistedViews]:
        name = ".".join(namespace)
        try:
            identifiers = sorted(self._call(name, partial(client.list_views, namespace)))
        except NotImplementedError:
            return
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            yield UnlistedViews(name, self._redact(_describe(error)))
            return
        for identifier in identifiers:
            view = ".".join(identifier)
            try:
                location = self._call(view, partial(read_view_location, client, identifier))
            except TimeoutError:
                raise
            except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
                yield UnlistedViews(view, self._redact(_describe(error)))
                continue
            yield ViewPointer(view, location)

    def _list_sql_pointers(self, client: SqlCatalog) -> Iterator[TablePointer | UnreadableTable]:
        """Read table pointers from the catalog's database, without opening metadata files.

        Unlike pyiceberg's own list, this includes tables without a namespace. Iceberg's JDBC
        catalog can create them, but pyiceberg cannot load them.
        """
        query = _select_pointers(client)
        with self._name_listing_errors():
            type_filter = self._call("tables", lambda: _table_filter(client))  # The database table also contains views.
            found = self._call("tables", lambda: _fetch_rows(client, query if type_filter is None else query.where(type_filter)))
        for name, location in _name_rows(found):
            if isinstance(location, str) and location:
                yield TablePointer(name, location)
            else:
                yield UnreadableTable(name, str(self.unreadable(f"table {name}", "its metadata.json location is missing from the catalog")))

    def check_access(self) -> None:
        """Send one small request to verify that the catalog responds.

        Raises:
            LakeUnreadable: If the catalog does not respond.
        """
        with self._name_listing_errors():
            client = self._connect()
            if isinstance(client, SqlCatalog):
                self._call("tables", lambda: _fetch_rows(client, _select_pointers(client).limit(1)))
            else:
                self._call("namespaces", client.list_namespaces)

    def list_identifiers(self) -> list[Identifier]:
        """List the identifiers of all tables, ordered by name.

        Raises:
            LakeUnreadable: If a namespace cannot be listed.
        """
        with self._name_listing_errors():
            found = sorted(self._walk_namespaces(self._connect()))
        nested: dict[str, list[Identifier]] = {}
        for identifier in found:
            if (name := ".".join(identifier)).count(".") > 1:
                nested.setdefault(name, []).append(identifier)
        self._nested = nested
        return found

    def find_identifiers(self, name: str) -> list[Identifier]:
        """Find the identifiers of tables with this dotted name in the newest list of tables.

        Several tables can have the same name, because the parts of an identifier may contain dots.

        Raises:
            LakeUnreadable: If the tables have to be listed first, and a namespace cannot be listed.
        """
        if name.count(".") < 2:
            return [tuple(name.split("."))]
        if self._nested is None:
            self.list_identifiers()
        return (self._nested or {}).get(name, [])

    def load(self, identifier: Identifier) -> CatalogTable | None:
        """Load the table with this identifier. Returns None if the table does not exist.

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
            raise NotIceberg(str(self.unreadable(f"table {name}", _describe(error)))) from None
        except NoSuchTableError:
            return None
        except BadRequestError as error:
            raise InvalidRequest(str(self.unreadable(f"table {name}", _describe(error)))) from None
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            found = None if isinstance(error, RESTError | TimeoutError) else self._find_metadata(identifier)
            if found is None:
                reason = self.unreadable(f"table {name}", _describe(error))
                if isinstance(error, TimeoutError):
                    raise CatalogTimedOut(str(reason)) from None
                raise (NotLoadable(str(reason)) if _is_unloadable(error) else reason) from None
            return CatalogTable(name, found.metadata_location, found.table_uuid, None)
        if not table.metadata_location:
            raise self.unreadable(f"table {name}", "its metadata.json location is missing from the catalog")
        return CatalogTable(name, table.metadata_location, str(table.metadata.table_uuid), table)

    def hides_namespace(self, namespace: Identifier) -> bool:
        """Return True if a namespace exists although the catalog does not list it.

        Raises:
            LakeUnreadable: If the catalog does not respond.
        """
        name = ".".join(namespace)
        try:
            client = self._connect()
            if isinstance(client, SqlCatalog):
                return False
            self._call(name, lambda: client.load_namespace_properties(namespace))
            return namespace not in self._call(name, lambda: client.list_namespaces(namespace[:-1]))
        except LakeUnreadable:
            raise
        except (NoSuchNamespaceError, BadRequestError, NotImplementedError):
            return False
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            reason = self.unreadable(f"namespace {name}", _describe(error))
            raise (CatalogTimedOut(str(reason)) if isinstance(error, TimeoutError) else reason) from None

    def find_other_names(self) -> list[str]:
        """Find the names of other catalogs with tables in the same database. Never raises.

        Only SQL catalogs share databases. For other catalogs, the result is empty.
        """
        try:
            client = self._connect()
            if not isinstance(client, SqlCatalog):
                return []
            names = self._call("names", lambda: _fetch_rows(client, select(IcebergTables.catalog_name).distinct()))
        except Exception:  # noqa: BLE001 - a catalog raises any error of its driver
            return []
        return sorted(str(name) for (name,) in names if name != client.name)

    def find_default_locations(self, name: str) -> tuple[str, ...]:
        """Return the locations that the catalog may choose for a new table of this name.

        Never raises.
        """
        namespace, _, table = name.rpartition(".")
        found = default_locations(self._find_warehouse(), name)
        location = self._find_namespace_location(namespace)
        return found if location is None else (*found, f"{location.rstrip('/')}/{table}/")

    def _find_warehouse(self) -> str | None:
        try:
            return self._connect().properties.get("warehouse")
        except Exception:  # noqa: BLE001 - a catalog raises any error of its driver
            return None

    def _find_namespace_location(self, namespace: str) -> str | None:
        """Read a namespace's location only once, because a failing catalog may be slow."""
        if namespace not in self._namespace_locations:
            location = None
            try:
                client = self._connect()
                location = self._call(namespace, lambda: client.load_namespace_properties(namespace)).get("location")
            except Exception:  # noqa: BLE001 - a catalog raises any error of its driver
                location = None
            self._namespace_locations[namespace] = location if isinstance(location, str) else None
        return self._namespace_locations[namespace]

    def _find_metadata(self, identifier: Identifier) -> RawPointer | None:
        """Read only the address of a table's metadata, because pyiceberg cannot parse it."""
        try:
            client = self._connect()
            return self._call(".".join(identifier), lambda: read_raw_pointer(client, identifier))
        except Exception:  # noqa: BLE001 - the caller reports pyiceberg's error
            return None

    def commit(self, table: CatalogTable, removal: Removal | Pruning | BranchCreation) -> str:
        """Commit a change to a table, and return the address of the new metadata.json.

        Raises:
            CommitRejected: If the table has changed since it was loaded.
            CommitDenied: If the catalog or store refuses the commit permanently.
            GcError: If the commit fails for any other reason. It may have taken effect anyway.
        """
        if table.handle is None:
            raise CommitDenied(UNPARSABLE)
        try:
            client, handle = self._connect(), table.handle
            is_rest = isinstance(client, RestCatalog)
            if isinstance(removal, Pruning):
                updates, requirements = build_pruning_commit(removal, is_rest=is_rest)
            elif isinstance(removal, BranchCreation):
                updates, requirements = build_creation_commit(removal)
            else:
                updates, requirements = (build_rest_commit if is_rest else build_local_commit)(removal)
            return self._call(table.name, lambda: client.commit_table(handle, requirements, updates)).metadata_location
        except CommitFailedException as error:
            raise CommitRejected(self._redact(str(error))) from None
        except NotImplementedError as error:
            reason = str(error) or f"{type(self._connect()).__name__}.commit_table is not implemented"
            raise CommitDenied(
                f"pyiceberg cannot commit to this table: {self._redact(reason)}; expire its snapshots with an engine that can"
            ) from None
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            if is_refusal(error):
                raise CommitDenied(f"the catalog or store refused the commit: {self._redact(_describe(error))}") from None
            raise GcError(f"the catalog did not confirm the commit: {self._redact(_describe(error))}") from None

    def write(self, subject: str, request: Callable[[Catalog], _Result]) -> _Result:
        """Change one of gc-assets' own tables with pyiceberg.

        Raises:
            CommitRejected: If another program changed the table at the same time.
            GcError: If the change fails for any other reason. It may have taken effect anyway.
        """
        try:
            client = self._connect()
            return run_with_deadline(max(self._read_seconds, _WRITE_SECONDS), subject, lambda: request(client))
        except GcError:
            raise
        except (CommitFailedException, ValidationException) as error:
            raise CommitRejected(self._redact(str(error))) from None
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise GcError(f"table {subject} cannot be written: {self._redact(_describe(error))}") from None

    def request(self, subject: str, request: Callable[[Catalog], _Result]) -> _Result:
        """Send a request that pyiceberg does not support.

        Args:
            subject: Name of the requested object, for error messages.
            request: Sends the request with the given pyiceberg client.

        Raises:
            TimeoutError: If the catalog does not respond in time.
            GcError: If the request fails for any other reason. The message contains no secrets.
        """
        try:
            client = self._connect()
            return self._call(subject, lambda: request(client))
        except (GcError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise GcError(self._redact(_describe(error))) from None

    def set_property(self, name: str, table_uuid: str, key: str, value: str) -> None:
        """Set a property of a table, unless it already has the given value.

        Raises:
            GcError: If the property cannot be set, or the name now belongs to another table.
        """

        def request(client: Catalog) -> None:
            handle = client.load_table(name)
            if str(handle.metadata.table_uuid) != table_uuid:
                raise GcError(f"table {name} was replaced: it now has the uuid {handle.metadata.table_uuid}, expected {table_uuid}")
            if handle.properties.get(key) != value:
                update = SetPropertiesUpdate(updates={key: value})
                client.commit_table(handle, (AssertTableUUID(uuid=UUID(table_uuid)),), (update,))

        self.write(name, request)

    def probe_commit(self, unused: UUID) -> str:
        """Request a commit without effect, to find out whether the catalog permits commits.

        Args:
            unused: A table UUID that no table has. REST catalogs must reject a commit that requires
                it.

        Returns:
            A description of the result.

        Raises:
            CommitRejected: If the catalog rejects the requirement, which shows that it permits
                commits.
            CommitDenied: If it does not permit commits or ignores requirements.
            LakeUnreadable: If it does not respond, or this kind of catalog cannot be probed.
        """
        try:
            client = self._connect()
            if isinstance(client, RestCatalog):
                return self._probe_rest_commit(client, unused)
            if isinstance(client, SqlCatalog):
                self._call("probe", lambda: _update_no_row(client))
                return "the catalog's database permits updates"
        except (LakeUnreadable, CommitDenied):
            raise
        except CommitFailedException as error:
            raise CommitRejected(self._redact(str(error))) from None
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            if is_refusal(error):
                raise CommitDenied(self._redact(_describe(error))) from None
            raise self.unreadable("the right to commit", _describe(error)) from None
        raise LakeUnreadable(f"the right to commit cannot be checked, because a test would change the catalog ({type(client).__name__})")

    def _probe_rest_commit(self, client: RestCatalog, unused: UUID) -> str:
        loaded = (self.load(identifier) for identifier in self.list_identifiers())
        handle = next((table.handle for table in loaded if table is not None and table.handle is not None), None)
        if handle is None:
            return "the catalog has no table to probe"
        self._call("probe", lambda: client.commit_table(handle, (AssertTableUUID(uuid=unused),), ()))
        raise CommitDenied("the catalog accepted a commit whose requirement was not met, so an edit could overwrite a writer's commit")

    def _call(self, what: str, request: Callable[[], _Result]) -> _Result:
        """Send a request with this thread's client. A client that timed out is not used again."""
        try:
            return run_with_deadline(self._read_seconds, what, request)
        except TimeoutError:
            self._clients.catalog = None
            raise

    def _walk_namespaces(self, catalog: Catalog) -> set[Identifier]:
        found: set[Identifier] = set()
        self._namespaces = self._list_namespaces(catalog)
        for namespace in self._namespaces:
            found.update(self._call(".".join(namespace), partial(catalog.list_tables, namespace)))
        return found

    def _list_namespaces(self, catalog: Catalog) -> set[Identifier]:
        """List all namespaces, including nested ones."""
        found: set[Identifier] = set()
        pending = list(self._call("namespaces", catalog.list_namespaces))
        while pending:
            namespace = pending.pop()
            if namespace not in found:
                found.add(namespace)
                pending.extend(self._call(".".join(namespace), partial(catalog.list_namespaces, namespace)))
        return found

    def unreadable(self, what: str, finding: str) -> LakeUnreadable:
        return LakeUnreadable(
            f"lake {self._lake}: {what} could not be read ({self._redact(finding)}); "
            f"{_STORE_HINT if _S3_ERROR.search(finding) else _REPAIR_HINT}, then run again, because garbage cannot be determined without it"
        )

    @contextmanager
    def _name_listing_errors(self) -> Generator[None]:
        """Raise any error as `LakeUnreadable`. A driver's traceback may contain secrets."""
        try:
            yield
        except LakeUnreadable:
            raise
        except Exception as error:  # noqa: BLE001 - a catalog raises any error of its driver
            raise self.unreadable(f"the list of tables of catalog {self._catalog_name!r}", _describe(error)) from None

    def _connect(self) -> Catalog:
        client: Catalog | None = getattr(self._clients, "catalog", None)
        if client is None:
            name = self._catalog_name
            plain = {key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in self._properties.items()}
            self._require_database_file(plain)
            # If catalog tables are missing in the database, it is probably the wrong database.
            is_io_configured = _IO_PROPERTY in (Config().get_catalog_config(name) or {})
            defaults = {} if is_io_configured else {_IO_PROPERTY: _GUARDED_IO}
            settings = {**defaults, **plain, "init_catalog_tables": "false"}
            client = self._call("catalog", lambda: open_sqlite_catalog(name, settings) or load_catalog(name, **settings))
            # pyiceberg's configuration file or the server may set this property, so it is read from
            # the open catalog.
            mode = client.properties.get("snapshot-loading-mode", "all")
            if mode.lower() != "all":
                raise LakeUnreadable(
                    f"lake {self._lake}: catalog property snapshot-loading-mode={mode} hides snapshots that no ref points to, "
                    "and their files would be planned for deletion; set it to `all` or remove it"
                )
            self._clients.catalog = client
        return client

    def _require_database_file(self, plain: Mapping[str, str]) -> None:
        """Raise `LakeUnreadable` if the file of the catalog's database does not exist.

        The driver would create an empty database. It has no tables, so all files would be garbage.
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


def _is_unloadable(error: Exception) -> bool:
    is_garbled = isinstance(error, json.JSONDecodeError)  # For example, a proxy's error page.
    return not is_garbled and (isinstance(error, _CANNOT_LOAD) or is_refusal(error))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _select_pointers(client: SqlCatalog) -> Select[str, str, str | None]:
    query = select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
    return query.where(IcebergTables.catalog_name == client.name)


def _table_filter(client: SqlCatalog) -> ColumnElement[bool] | None:
    """Return the SQL condition that excludes views, or None if the database has no views."""
    inspector = inspect(client.engine)
    if not inspector.has_table(IcebergTables.__tablename__):
        return None  # The query itself will report the missing table.
    if _TYPE_COLUMN not in {item["name"] for item in inspector.get_columns(IcebergTables.__tablename__)}:
        return None
    # pyiceberg has no such column before version 0.12.
    kind: ColumnElement[str | None] = column(_TYPE_COLUMN, String())
    return (kind == "TABLE") | kind.is_(None)


def _name_rows(rows: Sequence[Any]) -> list[tuple[str, Any]]:
    """Convert rows of `_select_pointers` to table names and metadata addresses, ordered by name."""
    named = ((".".join(str(part) for part in (namespace, name) if part), location) for namespace, name, location in rows)
    return sorted(named, key=lambda item: item[0])


def _update_no_row(client: SqlCatalog) -> None:
    unchanged = {"metadata_location": IcebergTables.metadata_location}
    with Session(client.engine) as session:
        session.execute(update(IcebergTables).where(false()).values(unchanged))
        session.rollback()


def _fetch_rows(client: SqlCatalog, query: Executable) -> Sequence[Any]:
    with Session(client.engine) as session:
        return session.execute(query).all()


def redact_secrets(message: str, properties: Mapping[str, SecretStr | str]) -> str:
    """Remove secrets from a message.

    Secrets are property values whose key suggests a secret, the parts of such values (`id:secret`),
    and users and passwords in URLs.
    """
    plain = {key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in properties.items()}
    secrets = [value for key, value in plain.items() if SECRET_NAME.search(key)]
    secrets += [part for value in secrets for part in _SEPARATORS.split(value) if len(part) >= _MIN_PART_LENGTH]
    secrets += [found for value in plain.values() for found in secrets_in(value)]
    spellings = {spelled for value in secrets if value for spelled in (value, quote(value, safe=""), quote_plus(value))}
    for secret in sorted(spellings, key=len, reverse=True):
        message = message.replace(secret, "***")
    return _USER_INFO.sub("://***@", message)
