"""Which prefixes the tables of a server claim: their locations."""

from __future__ import annotations

import pyarrow as pa

from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.live_contents import build_claims
from gc_assets.state.side_tables import LOCATIONS, ROOTS

NOWHERE = ROOTS.empty_table()


def places(*tables: tuple[str, list[str | None]]) -> pa.Table:
    """Of tables by uuid one metadata file each, which names these prefixes of storage `w`; null is a place outside."""
    rows: list[dict[str, object]] = []
    for number, (uuid, prefixes) in enumerate(tables):
        container = f"/w/{number}.metadata.json"
        rows.append({"container": container, "address": f"urn:uuid:{uuid}", "kind": Kind.TABLE_UUID})
        for prefix in prefixes:
            storage, address = (None, "s3://far/") if prefix is None else ("w", f"/w/{prefix}")
            rows.append({"container": container, "address": address, "kind": Kind.TABLE_LOCATION, "storage": storage, "key": prefix})
    return pa.Table.from_pylist(rows, schema=LOCATIONS)


def claimed(*tables: tuple[str, list[str | None]]) -> list[tuple[str, str]]:
    rows = build_claims(places(*tables), NOWHERE).to_pylist()
    return [(row["key"], row["location_of"]) for row in rows if row["collect"] and row["storage"]]


def test_a_table_claims_every_location_that_it_ever_had() -> None:
    assert claimed(("A", ["t/"]), ("A", ["t/", "moved/", None])) == [("t/", "urn:uuid:A"), ("moved/", "urn:uuid:A")]


def test_a_place_of_two_tables_is_claimed_by_both() -> None:
    assert claimed(("A", ["t/"]), ("B", ["t/"])) == [("t/", "urn:uuid:A"), ("t/", "urn:uuid:B")]


def test_what_cannot_be_listed_is_shielded() -> None:
    unlisted = pa.Table.from_pylist([{"address": "/w/d/", "storage": "w", "key": "d/"}], schema=ROOTS)
    assert [(row["key"], row["collect"]) for row in build_claims(places(("A", ["t/"])), unlisted).to_pylist()] == [
        ("t/", True),
        ("d/", False),
    ]
