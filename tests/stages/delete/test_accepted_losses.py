"""An override of `live_listed` accepts the files that its plan reported, and no others."""

from __future__ import annotations

import pytest

from gc_assets.core.claims import Owner
from gc_assets.stages.delete.missing_files import Loss

LAKE, TABLE, OTHER = Owner("shop", None), Owner("shop", "t"), Owner("shop", "u")
SMALL = Loss(2, frozenset({"a", "b"}), frozenset({TABLE}))
LARGE = Loss(300, frozenset({"a", "b"}), frozenset({TABLE}))


@pytest.mark.parametrize("accepted", [SMALL, LARGE])
def test_accepted_loss_includes_itself(accepted: Loss) -> None:
    assert accepted.includes(accepted)


def test_loss_without_a_file_that_expired_is_accepted() -> None:
    assert SMALL.includes(Loss(1, frozenset({"b"}), SMALL.owners))
    assert LARGE.includes(Loss(299, frozenset({"b", "c"}), LARGE.owners)), "other samples, because the first key expired"


def test_further_lost_file_is_not_accepted() -> None:
    assert not SMALL.includes(Loss(2, frozenset({"a", "c"}), SMALL.owners))
    assert not SMALL.includes(Loss(3, frozenset({"a", "b", "c"}), SMALL.owners))
    assert not LARGE.includes(Loss(301, LARGE.samples, LARGE.owners))
    assert not LARGE.includes(Loss(300, frozenset({"a", "c"}), LARGE.owners))


def test_loss_of_another_table_is_not_accepted() -> None:
    assert not SMALL.includes(Loss(1, frozenset({"a"}), frozenset({OTHER})))


def test_loss_of_a_lake_includes_those_of_its_tables() -> None:
    of_lake = Loss(2, frozenset({"a", "b"}), frozenset({LAKE}))
    assert of_lake.includes(SMALL)
    assert not SMALL.includes(of_lake)
