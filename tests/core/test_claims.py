import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.claims import Claims, Owner, PrefixClaim, find_wide_prefixes, narrow_claims

SALES, NESTED = Owner("sales", "u1"), Owner("sales", "u2")


def owners(claims: Claims, *keys: str) -> list[str | None]:
    return claims.resolve(pa.array(keys))[1].to_pylist()


def test_deepest_claim_owns_key() -> None:
    claims = Claims.of([PrefixClaim("t/", SALES), PrefixClaim("t/nested/", NESTED)])
    assert owners(claims, "t/a", "t/nested/a", "t/nested_2/a", "t") == ["u1", "u2", "u1", None]


def test_claim_matches_whole_path_segments() -> None:
    assert owners(Claims.of([PrefixClaim("t/", SALES)]), "t_2/a", "tt/a", "t/a") == [None, None, "u1"]


def test_uncollected_prefix_inside_claim_is_protected() -> None:
    claims = Claims.of([PrefixClaim("t/", SALES), PrefixClaim("t/kept/", NESTED, collect=False)])
    assert owners(claims, "t/a", "t/kept/a", "t/kept/deep/er/a") == ["u1", None, None]


def test_protected_prefix_includes_inner_claims() -> None:
    claims = Claims.of([PrefixClaim("kept/", SALES, collect=False), PrefixClaim("kept/inner/", NESTED)])
    assert owners(claims, "kept/a", "kept/inner/a") == [None, None]


def test_uncollected_claim_has_priority_over_equal_claim() -> None:
    for order in (
        [PrefixClaim("t/", SALES), PrefixClaim("t/", NESTED, collect=False)],
        [PrefixClaim("t/", NESTED, collect=False), PrefixClaim("t/", SALES)],
    ):
        assert owners(Claims.of(order), "t/a") == [None]


def test_claim_by_name_owns_only_matching_files_directly_in_prefix() -> None:
    claims = Claims.of([PrefixClaim("", NESTED), PrefixClaim("m/", SALES, names="[0-9a-f]{4}")])
    keys = ["m/00ff", "m/00fff", "m/00f", "m/00FF", "m/x/00ff", "00ff", "n/00ff", "m/00ff\n"]
    assert owners(claims, *keys) == ["u1", None, None, None, None, "u2", "u2", None]
    found = [claims.owner_of(key) for key in keys]
    assert [None if owner is None else owner.table_uuid for owner in found] == owners(claims, *keys)
    assert claims.is_by_name(pa.array(keys)).to_pylist() == [True] * 4 + [False] * 3 + [True]


def test_claim_by_name_can_be_protected() -> None:
    claims = [PrefixClaim("m/", SALES, names="[0-9a-f]{4}"), PrefixClaim("m/", SALES, collect=False)]
    assert owners(Claims.of(claims), "m/00ff") == [None]


def test_whole_storage_can_be_claimed() -> None:
    assert owners(Claims.of([PrefixClaim("", SALES)]), "a", "b/c") == ["u1", "u1"]


def test_unclaimed_key_has_no_owner() -> None:
    assert owners(Claims.of([]), "a", "b/c") == [None, None]


def test_claim_without_trailing_slash_is_rejected() -> None:
    with pytest.raises(ValueError, match="must end in '/'"):
        Claims.of([PrefixClaim("t", SALES)])


def test_protected_key_has_no_owner() -> None:
    claims = Claims.of([PrefixClaim("", SALES)], ["catalog.db", "t/lakes.yaml"])
    assert owners(claims, "catalog.db", "t/lakes.yaml", "t/a") == [None, None, "u1"]
    assert [claims.owner_of(key) for key in ("catalog.db", "t/lakes.yaml", "t/a")] == [None, None, SALES]


def reach(*claims: PrefixClaim) -> tuple[list[str], list[str]]:
    own, wide = narrow_claims(claims)
    return sorted(claim.prefix for claim in own), [claim.prefix for claim in wide]


def table_claim(prefix: str, table: str, lake: str = "sales") -> PrefixClaim:
    return PrefixClaim(prefix, Owner(lake, table), table=table)


def test_table_at_storage_root_claims_iceberg_folders() -> None:
    assert reach(table_claim("", "A")) == (["data/", "metadata/"], [""])


def test_table_containing_other_table_claims_iceberg_folders() -> None:
    assert reach(table_claim("db/", "A"), table_claim("db/t/", "B")) == (["db/data/", "db/metadata/", "db/t/"], ["db/"])
    assert reach(table_claim("t/", "A"), table_claim("t2/", "B"), table_claim("t/x/", "C")) == (
        ["t/data/", "t/metadata/", "t/x/", "t2/"],
        ["t/"],
    )


def test_table_containing_claim_of_other_lake_is_narrowed() -> None:
    chunks = PrefixClaim("db/weather/chunks/", Owner("weather", None))
    assert reach(table_claim("db/", "A"), chunks) == (["db/data/", "db/metadata/", "db/weather/chunks/"], ["db/"])


def test_table_may_have_separate_and_shared_locations() -> None:
    assert reach(table_claim("t/", "A"), table_claim("t/data/", "A")) == (["t/", "t/data/"], [])
    assert reach(table_claim("t/", "A"), table_claim("t/", "B", "other")) == (["t/", "t/"], [])
    assert reach(table_claim("t/", "A"), table_claim("t/x/", "A", "other catalog")) == (["t/", "t/x/"], [])


def test_lake_claims_and_protected_prefixes_are_not_narrowed() -> None:
    assert reach(PrefixClaim("", Owner("shop", None)), table_claim("t/", "A")) == (["", "t/"], [])
    assert reach(PrefixClaim("", Owner("sales", "A"), collect=False, table="A")) == ([""], [])


PREFIXES = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts))


@given(st.lists(st.tuples(PREFIXES, st.sampled_from("TUV")), max_size=8))
def test_prefix_is_wide_if_it_is_the_root_or_contains_other_tables(locations: list[tuple[str, str]]) -> None:
    owners = {prefix: {table for other, table in locations if other == prefix} for prefix, _ in locations}
    expected = {
        prefix
        for prefix in owners
        if not prefix or any(other != prefix and other.startswith(prefix) and table not in owners[prefix] for other, table in locations)
    }
    assert find_wide_prefixes(locations) == expected


@given(st.lists(PREFIXES, max_size=4), st.lists(st.tuples(PREFIXES, st.sampled_from("xy")).map("".join), max_size=3))
def test_keys_under_protected_prefixes_have_no_owner(prefixes: list[str], names: list[str]) -> None:
    keys = pa.array(["x", "a/x", "a/xy", "a/a/x", "a/b/y", "b/x", "ab/x"])
    owners = Claims.of_shields([*prefixes, *names]).resolve(keys)[0].to_pylist()
    is_shielded = [key in names or key.startswith(tuple(prefixes)) for key in keys.to_pylist()]
    assert [owner is None for owner in owners] == is_shielded
