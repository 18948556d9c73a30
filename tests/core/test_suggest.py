"""A mistyped name gets a suggestion, an unrelated one does not."""

from __future__ import annotations

import pytest

from gc_assets.core.suggest import did_you_mean, join_names

LAKES = ("sales", "weather", "Shop")


@pytest.mark.parametrize("given, meant", [("slaes", "sales"), ("wether", "weather"), ("shop", "Shop"), ("SALES", "sales")])
def test_misspelled_name_is_suggested(given: str, meant: str) -> None:
    assert did_you_mean(given, LAKES) == f"; did you mean {meant}?"


@pytest.mark.parametrize("given", ["", "x", "ledger", "0123456789ab"])
def test_unrelated_name_is_not_suggested(given: str) -> None:
    assert did_you_mean(given, LAKES) == ""


def test_long_list_of_names_is_shortened() -> None:
    assert join_names([f"lake{number}" for number in range(20)]).endswith("lake18, lake19")
    assert join_names([f"lake{number}" for number in range(1_020)]).endswith("lake18, lake19 and 1,000 others")
