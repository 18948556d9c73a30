"""Names that the file at a full address may have."""

from __future__ import annotations

from gc_assets.lakes.lakefs.addresses import LONGEST_KEY, Roots, possible_names

ROOTS = Roots.of("file:///lake/ml/", ["file:///lake/"])


def test_long_address_has_only_names_that_can_be_keys() -> None:
    """The number of names of an address, and their lengths, would otherwise both grow with its length."""
    names = set(possible_names(ROOTS, f"local:///{'a/' * 20_000}data/x"))
    itself = f"file:///{'a/' * 20_000}data/x"
    assert names >= {itself, "file:///lake/ml/data/x", "file:///lake/data/x", "file:///lake/a/data/x"}
    keys = {name.removeprefix("file:///lake/") for name in names - {itself}}
    assert max(map(len, keys)) == LONGEST_KEY


def test_longest_suffix_that_can_be_a_key_is_tried() -> None:
    end = f"{'b' * (LONGEST_KEY - 2)}/x"
    assert f"file:///lake/{end}" in set(possible_names(ROOTS, f"local:///mount/{end}"))
    assert f"file:///lake/b{end}" not in set(possible_names(ROOTS, f"local:///mount/b{end}"))
