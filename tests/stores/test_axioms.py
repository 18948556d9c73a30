"""Each axiom about stores has one id in the protocol model, in the contract and in the probe."""

from __future__ import annotations

from dataclasses import fields

from gc_assets.stores.protocol import AXIOMS, Traits
from tests.model.world import Axioms
from tests.stores import contract
from tests.stores.builders import PROBED_AXIOMS


def test_model_and_contract_tests_use_every_storage_axiom() -> None:
    marks = [mark for test in vars(contract).values() for mark in getattr(test, "pytestmark", []) if mark.name == "axiom"]
    assert {mark.args[0] for mark in marks} == AXIOMS.keys() == set(Axioms._fields)


def test_probe_covers_every_storage_axiom() -> None:
    assert PROBED_AXIOMS.keys() == AXIOMS.keys()
    assert set(PROBED_AXIOMS.values()) <= {field.name for field in fields(Traits)}
