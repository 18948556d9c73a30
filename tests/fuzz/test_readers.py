"""Readers of foreign bytes end quickly, with rows or with an error that contains the name of the object."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from gc_assets.core.errors import GcError
from tests.depth import example_count, in_turn
from tests.fuzz.mutations import damage
from tests.fuzz.targets import Seed, seeds

pytestmark = in_turn

SECONDS = example_count(2, 20)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seed]:
    return {seed.reader: seed for seed in seeds(tmp_path_factory.mktemp("seeds"))}


def test_damaged_files_are_refused_or_read_in_bounded_time() -> None:
    """`make fuzz` runs for an hour."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seconds", str(SECONDS), "--seed", "11"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-5].replace(",", "")) > 1000


@pytest.mark.parametrize(
    "reader", ["iceberg metadata", "icechunk config.yaml", "icechunk ref", "index of the state", "lakeFS rules", "lakes.yaml"]
)
def test_error_for_deeply_nested_document_contains_the_file(readers: dict[str, Seed], reader: str) -> None:
    with pytest.raises(GcError) as caught:
        readers[reader].read(b"[" * 100_000)
    assert readers[reader].name in str(caught.value)


def test_configuration_key_that_is_not_a_string_is_refused(readers: dict[str, Seed]) -> None:
    with pytest.raises(GcError, match="line 2: a key must be plain text"):
        readers["lakes.yaml"].read(b"state: /s\n[storages]: []\n")


def test_relative_state_location_is_refused_with_the_file_name(readers: dict[str, Seed]) -> None:
    seed = readers["lakes.yaml"]
    with pytest.raises(GcError, match=rf"{seed.name} is not valid:\n  state: 'file:.//"):
        seed.read(seed.raw.replace(b"state: file:///", b"state: file:.//"))


def test_random_damage_is_reproducible() -> None:
    raw = bytes(range(256))
    assert damage(raw, random.Random(3)) == damage(raw, random.Random(3))
    assert len({damage(raw, random.Random(number)) for number in range(50)}) > 40
