"""Tables of a Nessie server claim their locations."""

from __future__ import annotations

import pyarrow as pa

from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.live_contents import build_claims
from gc_assets.state.side_tables import LOCATIONS, ROOTS

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
