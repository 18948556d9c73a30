"""Which prefixes the tables of a server claim: their locations, but never what is others' too."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.lakes.protocol import Kind
from gc_assets.stages.mark.content_roots import ROOTS
from gc_assets.stages.mark.shown_contents import claims_made, too_wide
from gc_assets.state.schemas import PLACES

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
    return pa.Table.from_pylist(rows, schema=PLACES)


def claimed(*tables: tuple[str, list[str | None]]) -> tuple[list[str], list[str]]:
    rows, wide = claims_made(places(*tables), NOWHERE)
    return [row["key"] for row in rows.to_pylist() if row["collect"] and row["storage"]], wide


def test_a_table_claims_every_location_that_it_ever_had() -> None:
    assert claimed(("A", ["t/"]), ("A", ["t/", "moved/", None])) == (["t/", "moved/"], [])


def test_a_table_whose_location_is_a_storage_claims_the_folders_that_iceberg_writes_to() -> None:
    assert claimed(("A", [""])) == (["data/", "metadata/"], ["/w/"])


def test_a_table_whose_location_holds_another_table_claims_the_folders_that_iceberg_writes_to() -> None:
    assert claimed(("A", ["db/"]), ("B", ["db/t/"])) == (["db/data/", "db/metadata/", "db/t/"], ["/w/db/"])


def test_a_table_may_hold_a_place_of_its_own_and_share_one_with_another() -> None:
    assert claimed(("A", ["t/", "t/data/"])) == (["t/", "t/data/"], [])
    assert claimed(("A", ["t/"]), ("B", ["t/"])) == (["t/"], [])


def test_a_name_that_begins_alike_is_another_place() -> None:
    assert claimed(("A", ["t/"]), ("B", ["t2/"]), ("C", ["t/x/"])) == (["t/data/", "t/metadata/", "t2/", "t/x/"], ["/w/t/"])


def test_what_cannot_be_listed_is_shielded() -> None:
    unlisted = pa.Table.from_pylist([{"address": "/w/d/", "storage": "w", "key": "d/"}], schema=ROOTS)
    assert [(row["key"], row["collect"]) for row in claims_made(places(("A", ["t/"])), unlisted)[0].to_pylist()] == [
        ("t/", True),
        ("d/", False),
    ]


PREFIXES = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts))


@given(st.lists(st.tuples(st.sampled_from([None, "v", "w"]), PREFIXES, st.sampled_from("TUV")), max_size=8))
def test_too_wide_is_what_is_empty_or_holds_the_prefix_of_another_table(locations: list[tuple[str | None, str, str]]) -> None:
    inside = [location for location in locations if location[0] is not None]
    owners = {(storage, prefix): {table for s, p, table in inside if (s, p) == (storage, prefix)} for storage, prefix, _ in inside}
    expected = {
        (storage, prefix)
        for storage, prefix in owners
        if not prefix
        or any(s == storage and p != prefix and p.startswith(prefix) and table not in owners[storage, prefix] for s, p, table in inside)
    }
    assert too_wide(locations) == expected
