"""Test guarantees of a store with canary objects (test objects that are removed again).

A test can prove that a store breaks an axiom (a property that gc-assets requires), but not that it
always has the property. `AXIOMS` lists the axioms. `Traits` contains properties that are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from gc_assets.core.clock import MAX_SKEW


class Canaries(Protocol):
    """Canary objects under a prefix that only one test uses."""

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a canary object."""
        ...

    def read(self, name: str) -> tuple[bytes, str]:
        """Return the bytes and the identity (etag) of a canary object.

        Raises:
            FileNotFoundError: If the canary does not exist.
        """
        ...

    def list(self) -> Mapping[str, datetime]:
        """List the canary objects. Maps their names to their modification times."""
        ...


def find_broken_axioms(canaries: Canaries, now: Callable[[], datetime]) -> frozenset[str]:
    """Find axioms that a store breaks when two new objects are written, read and listed.

    Args:
        canaries: Access to the canary objects.
        now: Reads the clock that the store uses for modification times.

    Returns:
        Keys of `AXIOMS`.
    """
    return frozenset(_find_broken(canaries, now))


def _find_broken(canaries: Canaries, now: Callable[[], datetime]) -> Iterator[str]:
    canaries.write("1", b"first")
    listed_first = canaries.list()
    canaries.write("2", b"second")
    listed = canaries.list()
    if (sorted(listed_first), sorted(listed)) != (["1"], ["1", "2"]):
        yield "complete_listing"
    elif listed["2"] < listed["1"] or abs(now() - listed["2"]) > MAX_SKEW:
        yield "store_clock"
    try:
        content, identity = canaries.read("1")
        canaries.write("1", b"third")
        new_content, new_identity = canaries.read("1")
    except FileNotFoundError:
        yield "visible_write"
        return
    if (content, new_content) != (b"first", b"third"):
        yield "visible_write"
    elif identity == new_identity:
        yield "distinct_identity"
