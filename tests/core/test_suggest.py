"""A mistyped name is answered with the name that was meant, and another one with nothing."""

from __future__ import annotations

import pytest

from gc_assets.core.suggest import did_you_mean, join_names

LAKES = ("sales", "weather", "Shop")


@pytest.mark.parametrize("given, meant", [("slaes", "sales"), ("wether", "weather"), ("shop", "Shop"), ("SALES", "sales")])
def test_a_slip_of_the_finger_is_understood(given: str, meant: str) -> None:
    assert did_you_mean(given, LAKES) == f"; did you mean {meant}?"


@pytest.mark.parametrize("given", ["", "x", "ledger", "0123456789ab"])
def test_what_is_like_no_name_is_not_guessed_at(given: str) -> None:
    assert did_you_mean(given, LAKES) == ""


def test_a_thousand_names_are_not_all_listed() -> None:
    assert join_names([f"lake{number}" for number in range(20)]).endswith("lake18, lake19")
    assert join_names([f"lake{number}" for number in range(1_020)]).endswith("lake18, lake19 and 1,000 others")
