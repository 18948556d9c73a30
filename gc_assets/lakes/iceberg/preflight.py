"""Check whether history edits of tables would succeed, before they are planned.

The checks do not change anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.findings import CHECK_AGAIN, FAIL, HISTORY_EDITS, OK, WARN, Finding
from gc_assets.lakes.iceberg.catalog import UNPARSABLE, CatalogClient, CommitDenied, CommitRejected
from gc_assets.lakes.iceberg.expire import CONCURRENT_TABLES


def find_unloadable(catalog: CatalogClient, tables: Mapping[str, str]) -> dict[str, str]:
    """Find tables that pyiceberg cannot load, and therefore cannot commit to.

    `tables` maps table UUIDs to names. Tables that no longer have the given name are left out. The
    result maps table UUIDs to reasons.
    """

    def check(table_uuid: str, name: str) -> str | None:
        try:
            table = catalog.load(tuple(name.split(".")))
        except LakeUnreadable as error:
            return f"pyiceberg, which makes the commits, cannot load it: {error}"
        if table is None:
            return None
        if table.handle is None:
            return UNPARSABLE
        return None if table.table_uuid == table_uuid else f"pyiceberg loads another table under its name, with uuid {table.table_uuid}"

    with ThreadPoolExecutor(CONCURRENT_TABLES) as workers:
        found = dict(zip(tables, workers.map(check, tables, tables.values()), strict=True))
    return {key: f"{reason}. Its history is kept" for key, reason in found.items() if reason is not None}


def probe_commits(lake: str, catalog: CatalogClient) -> Finding:
    """Check that the catalog permits commits, by sending one that cannot take effect.

    Over REST, the commit has no updates and requires a random table UUID, so it must be rejected.
    In an SQL catalog, an UPDATE that does not match any row is rolled back.
    """
    try:
        way = catalog.probe_commit(uuid.uuid4())
    except CommitRejected:
        return Finding(lake, HISTORY_EDITS, OK, "the catalog permits commits")
    except CommitDenied as error:
        todo = "Grant the right to commit, or keep the history (`retention`): until then no edit is planned after the first denial."
        return Finding(lake, HISTORY_EDITS, FAIL, f"the catalog permits reads, but no commits: {error}", todo)
    except LakeUnreadable as error:
        return Finding(lake, HISTORY_EDITS, WARN, f"the right to commit was not checked: {error}", CHECK_AGAIN)
    return Finding(lake, HISTORY_EDITS, OK, way)
