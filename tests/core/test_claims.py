import pyarrow as pa
import pytest

from gc_assets.core.claims import Claims, Owner

SALES, NESTED = Owner("sales", "u1"), Owner("sales", "u2")


def owners(claims: Claims, *keys: str) -> list[str | None]:
    return claims.resolve(pa.array(keys))[1].to_pylist()


def test_the_deepest_claim_owns_a_key() -> None:
    claims = Claims.of([("t/", SALES, True), ("t/nested/", NESTED, True)])
    assert owners(claims, "t/a", "t/nested/a", "t/nested_2/a", "t") == ["u1", "u2", "u1", None]


def test_a_claim_is_no_string_prefix() -> None:
    assert owners(Claims.of([("t/", SALES, True)]), "t_2/a", "tt/a", "t/a") == [None, None, "u1"]


def test_what_must_not_be_collected_is_shielded_inside_another_claim() -> None:
    claims = Claims.of([("t/", SALES, True), ("t/kept/", NESTED, False)])
    assert owners(claims, "t/a", "t/kept/a", "t/kept/deep/er/a") == ["u1", None, None]


def test_a_shield_also_covers_claims_inside_of_it() -> None:
    claims = Claims.of([("kept/", SALES, False), ("kept/inner/", NESTED, True)])
    assert owners(claims, "kept/a", "kept/inner/a") == [None, None]


def test_of_equal_claims_the_one_that_must_not_be_collected_decides() -> None:
    for order in ([("t/", SALES, True), ("t/", NESTED, False)], [("t/", NESTED, False), ("t/", SALES, True)]):
        assert owners(Claims.of(order), "t/a") == [None]


def test_a_whole_storage_can_be_claimed() -> None:
    assert owners(Claims.of([("", SALES, True)]), "a", "b/c") == ["u1", "u1"]


def test_nothing_is_owned_without_a_claim() -> None:
    assert owners(Claims.of([]), "a", "b/c") == [None, None]


def test_a_claim_that_is_no_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="ends in '/'"):
        Claims.of([("t", SALES, True)])
