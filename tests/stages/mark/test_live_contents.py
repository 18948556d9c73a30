"""Tables of a Nessie server claim their locations, and metadata that gc-assets purged need not exist."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.core.errors import StateError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.content_roots import RootTables
from gc_assets.stages.mark.live_contents import build_claims, find_purged
from gc_assets.state.damage import RESTORE_BACKUP
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.state.side_tables import LOCATIONS, ROOTS
from tests.records import STORAGE, log_row, publish_table, run_context_at

NO_ROOTS = ROOTS.empty_table()


def build_locations(*tables: tuple[str, list[str | None]]) -> pa.Table:
    """Return the locations in one metadata file per table. None is a location in no storage."""
    rows: list[dict[str, object]] = []
    for number, (uuid, prefixes) in enumerate(tables):
        container = f"/w/{number}.metadata.json"
        rows.append({"container": container, "address": f"urn:uuid:{uuid}", "kind": Kind.TABLE_UUID})
        for prefix in prefixes:
            storage, address = (None, "s3://far/") if prefix is None else ("w", f"/w/{prefix}")
            rows.append({"container": container, "address": address, "kind": Kind.TABLE_LOCATION, "storage": storage, "key": prefix})
    return pa.Table.from_pylist(rows, schema=LOCATIONS)


def list_claims(*tables: tuple[str, list[str | None]]) -> list[tuple[str, str]]:
    rows = build_claims(build_locations(*tables), NO_ROOTS).to_pylist()
    return [(row["key"], row["location_of"]) for row in rows if row["collect"] and row["storage"]]


def test_table_claims_all_current_and_former_locations() -> None:
    assert list_claims(("A", ["t/"]), ("A", ["t/", "moved/", None])) == [("t/", "urn:uuid:A"), ("moved/", "urn:uuid:A")]


def test_shared_location_is_claimed_by_both_tables() -> None:
    assert list_claims(("A", ["t/"]), ("B", ["t/"])) == [("t/", "urn:uuid:A"), ("t/", "urn:uuid:B")]


def test_unlistable_location_is_protected() -> None:
    unlisted = pa.Table.from_pylist([{"address": "/w/d/", "storage": "w", "key": "d/"}], schema=ROOTS)
    assert [(row["key"], row["collect"]) for row in build_claims(build_locations(("A", ["t/"])), unlisted).to_pylist()] == [
        ("t/", True),
        ("d/", False),
    ]


def test_purged_metadata_is_found_in_deletion_logs(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    log = publish_table(context, STORAGE, DELETION_LOG, [log_row("a.json", "purge", "p1"), log_row("b.json", "quarantine", "p1")])
    rows = [{"address": f"/w/{key}", "storage": STORAGE, "key": key} for key in ("a.json", "b.json", "c.json")]
    found, roots = pa.Table.from_pylist(rows, schema=ROOTS), RootTables(context.state.files, (), (), (), (), False, contents=())
    failed = pa.table({"address": found.column("address"), "absent": [True, True, True]})
    assert find_purged(roots, {STORAGE: log.paths()}, found, failed).to_pylist() == ["/w/a.json"]

    part = tmp_path / "state" / log.paths()[0]
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(StateError, match=f"{part.name} is damaged .*{RESTORE_BACKUP}"):
        find_purged(roots, {STORAGE: log.paths()}, found, failed)
