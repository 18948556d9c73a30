"""The tables of a pyiceberg catalog: their names, the metadata.json each stands at now, and commits
to them.

The only module of this lake kind that talks to a catalog. Secrets are unwrapped here and never
stand in a message.
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

from gc_assets.core.deadline import READ_SECONDS, within
from gc_assets.core.errors import GcError, LakeUnreadable
from gc_assets.lakes.iceberg.config import SECRET_KEY, secrets_in
from gc_assets.lakes.iceberg.removal import applied_by_server, applied_here
from gc_assets.lakes.iceberg.revalidate import Removal
from gc_assets.lakes.protocol import Unread

_Answer = TypeVar("_Answer")
# What Arrow says of a store that refused or did not answer. Of a key that is missing it says
# something else.
_OF_S3 = re.compile(r"AWS Error (?!NO_SUCH_KEY|RESOURCE_NOT_FOUND)")
_STORE_REFUSED = (
    "pyiceberg asks the store with an endpoint and keys of its own: write s3.endpoint and s3.region into `catalog`, and set "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write s3.access-key-id and s3.secret-access-key there as ${NAME}"
)
_BROKEN = "repair it or drop it from the catalog"
_IO, _GUARDED = "py-io-impl", "gc_assets.lakes.iceberg.file_io.GuardedFileIO"
_USER_INFO = re.compile(r"://[^/@\s]+@")
_BETWEEN_PARTS = re.compile(r"[:\s]+")
# Shorter parts stand in many words.
_SHORTEST_PART = 4


class CommitRejected(GcError):
    """The catalog says that a table is no longer as it was read; nothing of the commit took effect."""


@dataclass(frozen=True, slots=True)
class TablePointer:
    """A table as the catalog knows it. `name` is `namespace.table`, nested namespaces dotted."""

    name: str
    metadata_location: str


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as loaded, to commit to. `handle` is pyiceberg's own."""

    name: str
    metadata_location: str
    table_uuid: str
    handle: Table


def list_tables(
    lake: str, catalog_name: str, properties: Mapping[str, SecretStr | str], read_seconds: float = READ_SECONDS
) -> Iterator[TablePointer | Unread]:
    """Returns every table of every namespace, nested ones too, ordered by name. Views are not
    tables.

    Nothing is ever left out: a table that could not be read is named with why. Raises
    `LakeUnreadable` naming the namespace that could not be listed.
    """
    return Tables(lake, catalog_name, properties, read_seconds).pointers()


class Tables:
    """The tables of one catalog. Threads may share it: each has a client of its own, because
    pyiceberg's clients are not made for sharing.
    """

    def __init__(self, lake: str, catalog_name: str, properties: Mapping[str, SecretStr | str], read_seconds: float = READ_SECONDS) -> None:
        self._lake = lake
        self._read_seconds = read_seconds
        self._catalog_name = catalog_name
        self._properties = properties
        self._clients = threading.local()

    def pointers(self) -> Iterator[TablePointer | Unread]:
        """Yields every table with its metadata's address, ordered by name. As `list_tables` says."""
        try:
            client = self._client()
        except LakeUnreadable:
            raise
        except Exception as error:  # noqa: BLE001 - catalogs raise whatever their driver does
            raise self._unlisted(error) from None
        if isinstance(client, SqlCatalog):
            yield from self._of_database(client)
            return
        for identifier in self.identifiers():
            name = ".".join(identifier)
            try:
                table = self.load(identifier)
                if table is None:
                    raise self.unreadable(f"table {name}", "it was dropped while the catalog was read")
            except LakeUnreadable as error:
                yield Unread(name, str(error))
                continue
            yield TablePointer(name, table.metadata_location)

    def _of_database(self, client: SqlCatalog) -> Iterator[TablePointer | Unread]:
        """Asks the catalog's own table, which needs no metadata file, and which knows tables outside
        every namespace too (Iceberg's JDBC catalog makes them, pyiceberg loads none).
        """
        wanted = select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
        wanted = wanted.where(IcebergTables.catalog_name == client.name)
        of_tables = client._iceberg_type_filter()  # pyright: ignore[reportPrivateUsage]  # views stand in the same table
        try:
            found = self._asked("tables", lambda: _rows(client, wanted if of_tables is None else wanted.where(of_tables)))
        except Exception as error:  # noqa: BLE001 - catalogs raise whatever their driver does
            raise self._unlisted(error) from None
        named = [(f"{namespace}.{name}" if namespace else name, location) for namespace, name, location in found]
        for name, location in sorted(named, key=lambda item: item[0]):
            if location:
                yield TablePointer(name, location)
            else:
                yield Unread(name, str(self.unreadable(f"table {name}", "the catalog does not say where its metadata.json is")))

    # Errors are raised `from None`: a driver's traceback may carry the connection string.
    def identifiers(self) -> list[Identifier]:
        """Returns every table, ordered by name. Raises `LakeUnreadable`."""
        try:
            client = self._client()
            return sorted(self._identifiers(client))
        except LakeUnreadable:
            raise
        except Exception as error:  # noqa: BLE001 - catalogs raise whatever their driver does; it stops the run here
            raise self._unlisted(error) from None

    def load(self, identifier: Identifier) -> CatalogTable | None:
        """Returns the table as the catalog has it now, or null where there is none of that name.
        Raises `LakeUnreadable` naming it.
        """
        name = ".".join(identifier)
        try:
            client = self._client()
            table = self._asked(name, lambda: client.load_table(identifier))
        except LakeUnreadable:
            raise
        except NoSuchIcebergTableError as error:
            raise self.unreadable(f"table {name}", _named(error)) from None
        except NoSuchTableError:
            return None
        except Exception as error:  # noqa: BLE001 - as above
            raise self.unreadable(f"table {name}", _named(error)) from None
        if not table.metadata_location:
            raise self.unreadable(f"table {name}", "the catalog does not say where its metadata.json is")
        return CatalogTable(name, table.metadata_location, str(table.metadata.table_uuid), table)

    def commit(self, table: CatalogTable, removal: Removal) -> str:
        """Makes the removal's one commit, and returns the address of the metadata.json that it
        wrote.

        Raises `CommitRejected` where the catalog says that the table is no longer as it was read,
        and `GcError` for all else. After a `GcError` the commit may have taken effect nevertheless.
        """
        try:
            client = self._client()
            updates, requirements = (applied_by_server if isinstance(client, RestCatalog) else applied_here)(removal)
            return self._asked(table.name, lambda: client.commit_table(table.handle, requirements, updates)).metadata_location
        except CommitFailedException as error:
            raise CommitRejected(self._redacted(str(error))) from None
        except NotImplementedError as error:
            why = str(error) or f"{type(self._client()).__name__}.commit_table is not implemented"
            raise GcError(f"pyiceberg cannot commit to this table: {self._redacted(why)}; expire it with an engine that can") from None
        except Exception as error:  # noqa: BLE001 - as above
            raise GcError(f"the catalog did not confirm the commit: {self._redacted(_named(error))}") from None

    def _asked(self, what: str, ask: Callable[[], _Answer]) -> _Answer:
        """Asks the catalog. After a call that hung nobody uses its client again."""
        try:
            return within(self._read_seconds, what, ask)
        except TimeoutError:
            self._clients.catalog = None
            raise

    def _identifiers(self, catalog: Catalog) -> set[Identifier]:
        found: set[Identifier] = set()
        seen: set[Identifier] = set()
        pending = list(self._asked("namespaces", catalog.list_namespaces))
        while pending:
            namespace = pending.pop()
            if namespace in seen:
                continue
            seen.add(namespace)
            name = ".".join(namespace)
            found.update(self._asked(name, partial(catalog.list_tables, namespace)))
            pending.extend(self._asked(name, partial(catalog.list_namespaces, namespace)))
        return found

    def unreadable(self, what: str, finding: str) -> LakeUnreadable:
        return LakeUnreadable(
            f"lake {self._lake}: {what} could not be read ({self._redacted(finding)}); "
            f"{_STORE_REFUSED if _OF_S3.search(finding) else _BROKEN}, then run again: without it nothing can be called garbage"
        )

    def _unlisted(self, error: Exception) -> LakeUnreadable:
        return self.unreadable(f"the list of tables of catalog {self._catalog_name!r}", _named(error))

    def _client(self) -> Catalog:
        client: Catalog | None = getattr(self._clients, "catalog", None)
        if client is None:
            plain = {key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in self._properties.items()}
            self._require_database(plain)
            # A database without the catalog's tables is another one than was meant.
            chosen = _IO in (Config().get_catalog_config(self._catalog_name) or {})
            ours = {} if chosen else {_IO: _GUARDED}
            asked = {**ours, **plain, "init_catalog_tables": "false"}
            client = self._asked("catalog", lambda: load_catalog(self._catalog_name, **asked))
            # Asked of the open catalog: a configuration file of pyiceberg's or the server may have
            # set it too.
            mode = client.properties.get("snapshot-loading-mode", "all")
            if mode.lower() != "all":
                raise LakeUnreadable(
                    f"lake {self._lake}: catalog property snapshot-loading-mode={mode} hides snapshots that no ref names, "
                    "whose files would look like garbage; set it to `all` or leave it out"
                )
            self._clients.catalog = client
        return client

    def _require_database(self, plain: Mapping[str, str]) -> None:
        """Raises `LakeUnreadable` where the catalog is a file that is not there. The driver would
        create it, and a catalog without tables makes garbage of all files.
        """
        uri = plain.get("uri") or (Config().get_catalog_config(self._catalog_name) or {}).get("uri")
        if not isinstance(uri, str) or not uri.startswith("sqlite"):
            return
        database = make_url(uri).database
        if database and database != ":memory:" and not Path(database.removeprefix("file:").partition("?")[0]).is_file():
            raise LakeUnreadable(
                f"lake {self._lake}: its catalog {database} does not exist; expected the SQL catalog's file. "
                "Mount it, or mend `catalog.uri` in lakes.yaml; it is never created here"
            )

    def _redacted(self, message: str) -> str:
        return textwrap.shorten(_redacted(message, self._properties), 400)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _rows(client: SqlCatalog, wanted: Executable) -> Sequence[Any]:
    with Session(client.engine) as session:
        return session.execute(wanted).all()


def _redacted(message: str, properties: Mapping[str, SecretStr | str]) -> str:
    """Returns the message without the values of properties whose name says that they are secret,
    whole and in parts (`id:secret`), and without what addresses carry of users and passwords.
    """
    plain = {key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in properties.items()}
    secrets = [value for key, value in plain.items() if SECRET_KEY.search(key)]
    secrets += [part for value in secrets for part in _BETWEEN_PARTS.split(value) if len(part) >= _SHORTEST_PART]
    secrets += [found for value in plain.values() for found in secrets_in(value)]
    spellings = {spelled for value in secrets if value for spelled in (value, quote(value, safe=""), quote_plus(value))}
    for secret in sorted(spellings, key=len, reverse=True):
        message = message.replace(secret, "***")
    return _USER_INFO.sub("://***@", message)
