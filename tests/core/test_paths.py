"""Addresses of one object resolve to one key, addresses of different objects never do."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError, StoreError, UsageError
from gc_assets.core.key_resolver import KeyResolver, loosen_spelling
from gc_assets.core.paths import Location, overlapping

STORAGES = [
    ("warehouse", "file:///data/warehouse"),
    ("nested", "/data/warehouse/sub/"),
    ("lake", "s3://bucket/prefix/"),
    ("all", "s3a://other"),
]


@pytest.fixture
def resolver() -> KeyResolver:
    return KeyResolver(STORAGES)


def resolve_all(resolver: KeyResolver, addresses: list[str | None]) -> list[tuple[str, str] | None]:
    names, keys = (column.to_pylist() for column in resolver.resolve(pa.array(addresses, pa.string())))
    assert [name is None for name in names] == [key is None for key in keys]
    return [None if name is None else (name, key) for name, key in zip(names, keys, strict=True)]


SAME_OBJECT = [
    ("file:///data/warehouse/db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    ("file:/data/warehouse/db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    ("file://localhost/data/warehouse/db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    ("FILE://LOCALHOST/data/warehouse/db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    ("/data/warehouse/db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    ("//data/warehouse/db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    ("file:////data//warehouse/./db/t//x.parquet", "warehouse", "db/t/x.parquet"),
    ("/data/warehouse//db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    ("/data/warehouse/./db/t/x.parquet", "warehouse", "db/t/x.parquet"),
    # Percent-encoding is data: both Iceberg engines write names unencoded.
    ("file:///data/warehouse/a%20b/x", "warehouse", "a%20b/x"),
    ("file:///data/warehouse/a b/x", "warehouse", "a b/x"),
    ("file:///data/warehouse/a+b/x?y#z", "warehouse", "a+b/x?y#z"),
    ("file:///data/warehouse/caf\u00e9", "warehouse", "caf\u00e9"),
    ("file:///data/warehouse/cafe\u0301", "warehouse", "cafe\u0301"),
    ("file:///data/warehouse/.hidden/..x/x..", "warehouse", ".hidden/..x/x.."),
    # Directories: claims end in a slash.
    ("file:///data/warehouse/", "warehouse", ""),
    ("/data/warehouse/db/t/", "warehouse", "db/t/"),
    ("/data/warehouse/db/t/.", "warehouse", "db/t/"),
    ("/data/warehouse/db//t//", "warehouse", "db/t/"),
    # The longest root wins, however it is spelled.
    ("/data/warehouse/sub/x", "nested", "x"),
    ("/data/warehouse/./sub//x", "nested", "x"),
    ("file:/data//warehouse/sub/x", "nested", "x"),
    ("/data/warehouse/sub_2/x", "warehouse", "sub_2/x"),
    # On S3 every byte of a key counts.
    ("s3://bucket/prefix/a//b", "lake", "a//b"),
    ("s3a://bucket/prefix/a/./b", "lake", "a/./b"),
    ("s3n://bucket/prefix//a", "lake", "/a"),
    ("S3A://bucket/prefix/a", "lake", "a"),
    ("s3://bucket/prefix/a/", "lake", "a/"),
    ("s3://other//a", "all", "/a"),
    ("s3://other/", "all", ""),
]


@pytest.mark.parametrize("address, storage, key", SAME_OBJECT)
def test_address_resolves_to_storage_and_key(resolver: KeyResolver, address: str, storage: str, key: str) -> None:
    assert resolver.resolve_one(address) == (storage, key)


def test_batch_resolves_to_the_same_keys_as_single_addresses(resolver: KeyResolver) -> None:
    addresses = [address for address, _, _ in SAME_OBJECT]
    mixed = [*addresses, None, "gs://bucket/prefix/a", *addresses[::-1], addresses[0]]
    assert resolve_all(resolver, mixed) == [address and resolver.resolve_one(address) for address in mixed]
    assert resolve_all(resolver, []) == []
    assert resolve_all(resolver, [None, None]) == [None, None]


@pytest.mark.parametrize(
    "address",
    [
        "/data/warehouse_2/x",
        "/data/warehouse",
        "s3://bucket/prefix_2/x",
        "s3://Bucket/prefix/x",
        "s3://bucket/Prefix/x",
        "s3://elsewhere/data/warehouse/x",
        "gs://bucket/prefix/x",
        "abfss://c@account.dfs.core.windows.net/prefix/x",
        "/DATA/warehouse/x",
        "/elsewhere/\0/x",
    ],
)
def test_address_outside_storages_is_external(resolver: KeyResolver, address: str) -> None:
    assert resolver.resolve_one(address) is None
    assert resolve_all(resolver, [address, "/data/warehouse/x"]) == [None, ("warehouse", "x")]


@pytest.mark.parametrize(
    "address, finding",
    [
        ("/data/warehouse/a/../b", r"`\.\.`"),
        ("/data/warehouse/..", r"`\.\.`"),
        ("/elsewhere/../data/warehouse/b", r"`\.\.`"),
        ("s3://bucket/prefix/a/../b", r"`\.\.`"),
        ("db/t/x.parquet", "relative"),
        ("", "relative"),
        ("file:db/t/x.parquet", "absolute path"),
        ("file://data/warehouse/x", "host 'data'"),
        ("s3:/bucket/prefix/x", "bucket"),
        ("s3:///prefix/x", "bucket"),
        ("s3://bucket", "contains a bucket but no key"),
    ],
)
def test_ambiguous_address_is_rejected(resolver: KeyResolver, address: str, finding: str) -> None:
    with pytest.raises(FormatError, match=finding):
        resolver.resolve_one(address)
    with pytest.raises(FormatError, match=finding):
        resolver.resolve(pa.array(["/data/warehouse/x", address, "/data/warehouse/y"]))


def test_error_hides_secret_in_address(resolver: KeyResolver) -> None:
    with pytest.raises(FormatError) as refused:
        resolver.resolve_one("s3n://ID:hush@bucket/prefix/x")
    assert "hush" not in str(refused.value)
    assert "bucket/prefix/x" in str(refused.value)


def test_canonical_address_round_trips(resolver: KeyResolver) -> None:
    assert resolver.address("warehouse", "a b/%20") == "file:///data/warehouse/a b/%20"
    assert resolver.address("lake", "/a//b") == "s3://bucket/prefix//a//b"
    assert resolver.resolve_one(resolver.address("lake", "/a//b")) == ("lake", "/a//b")
    with pytest.raises(UsageError, match=r"unknown storage 'x'.*all, lake, nested, warehouse"):
        resolver.address("x", "a")


def test_sliced_and_chunked_columns_resolve(resolver: KeyResolver) -> None:
    addresses = pa.array(["/x/../y", "/data/warehouse//a", None, "/data/warehouse/b", "/x/../y"])
    names, keys = resolver.resolve(pa.chunked_array([addresses.slice(1, 1), addresses.slice(2, 2)]))
    assert names.to_pylist() == ["warehouse", None, "warehouse"]
    assert keys.to_pylist() == ["a", None, "b"]
    assert resolver.resolve(addresses.slice(1, 3))[1].to_pylist() == ["a", None, "b"]


def test_resolver_pickles(resolver: KeyResolver) -> None:
    copy = pickle.loads(pickle.dumps(resolver))  # noqa: S301  (our own bytes)
    assert copy.resolve_one("/data/warehouse/x") == ("warehouse", "x")


def test_storage_can_be_root_directory() -> None:
    assert resolve_all(KeyResolver([("disk", "file:///")]), ["file:///a/b", "file:/a//b", "/a"]) == [
        ("disk", "a/b"),
        ("disk", "a/b"),
        ("disk", "a"),
    ]


# ---- random spellings, against the file system's and the store's own idea of sameness

SEGMENTS = st.text(st.sampled_from("ab.%2 é/"), min_size=1, max_size=6).filter(lambda text: ".." not in text.split("/"))


@st.composite
def spellings_on_disk(draw: st.DrawFn, key: str) -> str:
    start = draw(st.sampled_from(["file://", "file:", "FILE:", "", "file://localhost", "File://LocalHost"]))
    path = [draw(st.sampled_from(["/", "/./"])) + "data"]
    path += [draw(st.sampled_from(["/", "//", "/./", "///"])) + part for part in ("warehouse", *key.split("/"))]
    return start + "".join(path)


@given(st.data(), SEGMENTS, SEGMENTS)
def test_local_keys_are_equal_if_and_only_if_files_are_equal(data: st.DataObject, one: str, two: str) -> None:
    resolver = KeyResolver([("warehouse", "/data/warehouse")])
    first, second = (data.draw(spellings_on_disk(key)) for key in (one, two))
    places = resolve_all(resolver, [first, second])
    assert places == [resolver.resolve_one(first), resolver.resolve_one(second)]
    # A slash at the end means a directory. `normpath` ignores it, but two keys differ by it.
    seen = [(os.path.normpath(f"/data/warehouse/{key}"), key.endswith(("/", "/.")) or key == ".") for key in (one, two)]
    assert (places[0] == places[1]) == (seen[0] == seen[1])


@given(SEGMENTS, SEGMENTS, st.lists(st.sampled_from(["s3", "s3a", "s3n", "S3", "S3A"]), min_size=2, max_size=2))
def test_s3_keys_are_equal_if_and_only_if_bytes_are_equal(one: str, two: str, schemes: list[str]) -> None:
    resolver = KeyResolver([("lake", "s3://bucket/prefix")])
    places = resolve_all(resolver, [f"{scheme}://bucket/prefix/{key}" for scheme, key in zip(schemes, (one, two), strict=True)])
    assert places == [("lake", one), ("lake", two)]


# ---- symbolic links


def test_address_through_link_is_in_storage(tmp_path: Path) -> None:
    (tmp_path / "real/db").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "elsewhere").mkdir()
    resolver = KeyResolver([("warehouse", str(tmp_path / "real"))])
    assert resolver.resolve_one(f"{tmp_path}/link/db/x") == ("warehouse", "db/x")
    assert resolve_all(resolver, [f"file://{tmp_path}/link/db/gone/x", f"{tmp_path}/elsewhere/x", f"{tmp_path}/link/y"]) == [
        ("warehouse", "db/gone/x"),
        None,
        ("warehouse", "y"),
    ]


def test_storage_location_that_is_link_contains_real_addresses(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    resolver = KeyResolver([("warehouse", str(tmp_path / "link"))])
    assert resolver.resolve_one(f"{tmp_path}/real/x") == resolver.resolve_one(f"{tmp_path}/link/x") == ("warehouse", "x")


def test_unresolvable_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "real").mkdir()
    resolver = KeyResolver([("warehouse", str(tmp_path / "real"))])
    with pytest.raises(StoreError, match=f"{tmp_path}/loop/"):
        resolver.resolve_one(f"{tmp_path}/loop/x")


def test_unresolvable_address_has_problem_instead_of_location(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    resolver = KeyResolver([("warehouse", str(tmp_path))])
    outside = KeyResolver([("warehouse", f"{tmp_path}/real")])
    addresses = ["relative/x", f"file://{tmp_path}/a/../x", "file://nas/x", "s3://b:9000/x", "s3://bucket", ""]
    for address in addresses:
        assert resolver.locate_one(address) is None
        assert repr(address) in (resolver.find_problem(address) or "")
    assert "symbolic links" in (outside.find_problem(f"{tmp_path}/loop/x") or "")
    assert outside.locate_one(f"{tmp_path}/loop/x") is None
    assert resolver.find_problem(f"{tmp_path}/x") is None
    columns = resolver.locate(pa.chunked_array([[*addresses, None], [f"{tmp_path}/x", f"file://{tmp_path}/y"]]))
    assert [column.to_pylist() for column in columns] == [[None] * 7 + ["warehouse"] * 2, [None] * 7 + ["x", "y"]]


# ---- locations


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("file:///data/warehouse/", "file:///data/warehouse/"),
        ("/data/warehouse", "file:///data/warehouse/"),
        ("FILE:/data//./warehouse", "file:///data/warehouse/"),
        ("file://localhost/data/warehouse/.", "file:///data/warehouse/"),
        ("file:///", "file:///"),
        ("S3A://bucket/prefix", "s3://bucket/prefix/"),
        ("s3n://bucket", "s3://bucket/"),
        ("s3://bucket/a b/%20/", "s3://bucket/a b/%20/"),
    ],
)
def test_location_has_canonical_spelling(text: str, canonical: str) -> None:
    assert str(Location.parse(text)) == canonical
    assert Location.parse(canonical) == Location.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data/warehouse",
        "file:",
        "file://",
        "file://host/data",
        "hdfs://bucket/",
        "gs://",
        "/data/../warehouse",
        "s3://",
        "s3://bucket/..",
    ],
)
def test_invalid_location_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=f"storage location {text!r}"):
        Location.parse(text)


def test_repeated_storage_name_is_rejected() -> None:
    with pytest.raises(UsageError, match="a, a"):
        KeyResolver([("a", "/x"), ("a", "/y")])


def test_locations_overlap_by_whole_segments() -> None:
    locations = [
        ("t", "/w/t"),
        ("t_2", "/w/t_2"),
        ("nested", "file:///w//t/nested"),
        ("again", "file:/w/t_2/"),
        ("s3", "s3://w/t"),
        ("s3a", "s3a://w/t/x"),
    ]
    assert overlapping(locations) == [("t", "nested"), ("t_2", "again"), ("s3", "s3a")]


def test_resolved_links_reveal_overlap(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    places = [("real", f"{tmp_path}/real"), ("link", f"{tmp_path}/link")]
    assert overlapping(places) == []
    assert overlapping([(name, str(Location.parse(place).without_links())) for name, place in places]) == [("real", "link")]


# ---- near misses


@pytest.mark.parametrize(
    "one, two",
    [
        ("a%20b/x", "a b/x"),
        ("a%2520b", "a%20b"),
        ("a%2Fb", "a/b"),
        ("a//b", "a/b"),
        ("a/./b", "a/b"),
        ("/a", "a"),
        ("./a", "a"),
        ("cafe\u0301", "caf\u00e9"),
        ("caf%C3%A9", "cafe\u0301"),
        ("%ff%20", "%FF "),
        ("a\\b", "a/b"),
        ("a%5Cb", "a/b"),
        ("a\\.\\b", "a//b"),
        ("\\a", "a"),
    ],
)
def test_spelling_variants_have_equal_normalized_form(one: str, two: str) -> None:
    assert loosen_spelling(pa.array([one, "plain"]))[0] == loosen_spelling(pa.array([two]))[0]


@pytest.mark.parametrize(
    "one, two", [("a b", "a_b"), ("A", "a"), ("a/b", "a/c"), ("a/b", "ab"), ("a.b", "a/b"), ("100%", "100"), ("%zz", "zz"), ("a/", "a")]
)
def test_different_keys_have_different_normalized_forms(one: str, two: str) -> None:
    assert loosen_spelling(pa.array([one]))[0] != loosen_spelling(pa.array([two]))[0]


def test_regular_keys_are_unchanged_by_normalization() -> None:
    keys = pa.array(["db/t/00000-0.parquet", None, "a.b/c", ""])
    assert loosen_spelling(keys).equals(keys)
    assert loosen_spelling(pa.chunked_array([keys, pa.array(["a%20b", None])])).to_pylist() == [*keys.to_pylist(), "a b", None]


@given(st.text(max_size=12), st.integers(0, 3))
def test_normalized_form_ignores_repeated_percent_encoding(key: str, times: int) -> None:
    encoded = key
    for _ in range(times):
        encoded = quote(encoded)
    assert loosen_spelling(pa.array([encoded])).to_pylist() == loosen_spelling(pa.array([key])).to_pylist()


@given(st.lists(st.one_of(st.none(), st.text(st.sampled_from("ab./\\%25cée\u0301"), max_size=8)), max_size=8), st.integers(0, 3))
def test_spelling_normalization_is_idempotent(keys: list[str | None], start: int) -> None:
    column = pa.array(keys, pa.string()).slice(start)
    loosened = loosen_spelling(column)
    assert loosened.to_pylist() == [loosen_spelling(pa.array([key], pa.string()))[0].as_py() for key in column.to_pylist()]
    assert loosen_spelling(loosened).equals(loosened)
