import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.claims import Claim, Claims, Owner, find_wide_prefixes, narrow_claims

SALES, NESTED = Owner("sales", "u1"), Owner("sales", "u2")


def owners(claims: Claims, *keys: str) -> list[str | None]:
    return claims.resolve(pa.array(keys))[1].to_pylist()


def test_the_deepest_claim_owns_a_key() -> None:
    claims = Claims.of([Claim("t/", SALES), Claim("t/nested/", NESTED)])
    assert owners(claims, "t/a", "t/nested/a", "t/nested_2/a", "t") == ["u1", "u2", "u1", None]


def test_a_claim_is_no_string_prefix() -> None:
    assert owners(Claims.of([Claim("t/", SALES)]), "t_2/a", "tt/a", "t/a") == [None, None, "u1"]


def test_what_must_not_be_collected_is_shielded_inside_another_claim() -> None:
    claims = Claims.of([Claim("t/", SALES), Claim("t/kept/", NESTED, collect=False)])
    assert owners(claims, "t/a", "t/kept/a", "t/kept/deep/er/a") == ["u1", None, None]


def test_a_shield_also_covers_claims_inside_of_it() -> None:
    claims = Claims.of([Claim("kept/", SALES, collect=False), Claim("kept/inner/", NESTED)])
    assert owners(claims, "kept/a", "kept/inner/a") == [None, None]


def test_of_equal_claims_the_one_that_must_not_be_collected_decides() -> None:
    for order in ([Claim("t/", SALES), Claim("t/", NESTED, collect=False)], [Claim("t/", NESTED, collect=False), Claim("t/", SALES)]):
        assert owners(Claims.of(order), "t/a") == [None]


def test_a_whole_storage_can_be_claimed() -> None:
    assert owners(Claims.of([Claim("", SALES)]), "a", "b/c") == ["u1", "u1"]


def test_nothing_is_owned_without_a_claim() -> None:
    assert owners(Claims.of([]), "a", "b/c") == [None, None]


def test_a_claim_that_is_no_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="must end in '/'"):
        Claims.of([Claim("t", SALES)])


def test_a_shielded_key_is_nobodys_whatever_is_claimed_around_it() -> None:
    claims = Claims.of([Claim("", SALES)], ["catalog.db", "t/lakes.yaml"])
    assert owners(claims, "catalog.db", "t/lakes.yaml", "t/a") == [None, None, "u1"]
    assert [claims.owner_of(key) for key in ("catalog.db", "t/lakes.yaml", "t/a")] == [None, None, SALES]


def reach(*claims: Claim) -> tuple[list[str], list[str]]:
    own, wide = narrow_claims(claims)
    return sorted(claim.prefix for claim in own), [claim.prefix for claim in wide]


def located(prefix: str, table: str, lake: str = "sales") -> Claim:
    return Claim(prefix, Owner(lake, table), table=table)


def test_a_table_whose_location_is_a_storage_claims_the_folders_that_iceberg_writes_to() -> None:
    assert reach(located("", "A")) == (["data/", "metadata/"], [""])


def test_a_table_whose_location_holds_another_table_claims_the_folders_that_iceberg_writes_to() -> None:
    assert reach(located("db/", "A"), located("db/t/", "B")) == (["db/data/", "db/metadata/", "db/t/"], ["db/"])
    assert reach(located("t/", "A"), located("t2/", "B"), located("t/x/", "C")) == (["t/data/", "t/metadata/", "t/x/", "t2/"], ["t/"])


def test_a_table_of_one_lake_whose_location_holds_what_another_lake_claims_is_too_wide() -> None:
    chunks = Claim("db/weather/chunks/", Owner("weather", None))
    assert reach(located("db/", "A"), chunks) == (["db/data/", "db/metadata/", "db/weather/chunks/"], ["db/"])


def test_a_table_may_hold_a_place_of_its_own_and_share_one_with_another() -> None:
    assert reach(located("t/", "A"), located("t/data/", "A")) == (["t/", "t/data/"], [])
    assert reach(located("t/", "A"), located("t/", "B", "other")) == (["t/", "t/"], [])
    assert reach(located("t/", "A"), located("t/x/", "A", "other catalog")) == (["t/", "t/x/"], [])


def test_what_a_lake_claims_outright_is_claimed_whole_and_a_shield_stays_whole() -> None:
    assert reach(Claim("", Owner("shop", None)), located("t/", "A")) == (["", "t/"], [])
    assert reach(Claim("", Owner("sales", "A"), collect=False, table="A")) == ([""], [])


PREFIXES = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts))


@given(st.lists(st.tuples(PREFIXES, st.sampled_from("TUV")), max_size=8))
def test_too_wide_is_what_is_empty_or_holds_the_prefix_of_another_table(locations: list[tuple[str, str]]) -> None:
    owners = {prefix: {table for other, table in locations if other == prefix} for prefix, _ in locations}
    expected = {
        prefix
        for prefix in owners
        if not prefix or any(other != prefix and other.startswith(prefix) and table not in owners[prefix] for other, table in locations)
    }
    assert find_wide_prefixes(locations) == expected
