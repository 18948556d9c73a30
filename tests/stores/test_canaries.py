"""Canary files on a real disk, seen through a store that breaks one of its guarantees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.config.models import StorageConfig
from gc_assets.stores.canaries import find_broken_axioms
from gc_assets.stores.local import probe
from gc_assets.stores.local.doctor_checks import examine
from gc_assets.stores.local.probe import LocalCanaries
from gc_assets.stores.protocol import AXIOMS
from tests.stores.builders import PROBED_AXIOMS


class CachedListing(LocalCanaries):
    """Lists only objects that existed some time ago."""

    def list(self) -> Mapping[str, datetime]:
        return {name: modified for name, modified in LocalCanaries.list(self).items() if name != "2"}


class CachedRead(LocalCanaries):
    """Returns the bytes from before a change."""

    def read(self, name: str) -> tuple[bytes, str]:
        return b"first", LocalCanaries.read(self, name)[1]


class DelayedWrite(LocalCanaries):
    """Does not find an object that was just written."""

    def read(self, name: str) -> tuple[bytes, str]:
        raise FileNotFoundError(name)


class IdentityOfKey(LocalCanaries):
    """Derives the identity of an object from its key."""

    def read(self, name: str) -> tuple[bytes, str]:
        return LocalCanaries.read(self, name)[0], name


class SkewedClock(LocalCanaries):
    """Sets modification times with another clock."""

    def list(self) -> Mapping[str, datetime]:
        return {name: modified - timedelta(days=1) for name, modified in LocalCanaries.list(self).items()}


class BackwardClock(LocalCanaries):
    """Has two servers whose clocks differ by one minute."""

    def list(self) -> Mapping[str, datetime]:
        return {name: modified - timedelta(minutes=int(name) - 1) for name, modified in LocalCanaries.list(self).items()}


FAULTS: Mapping[Callable[[str, str], LocalCanaries], str] = {
    CachedListing: "complete_listing",
    CachedRead: "visible_write",
    DelayedWrite: "visible_write",
    IdentityOfKey: "distinct_identity",
    SkewedClock: "store_clock",
    BackwardClock: "store_clock",
}


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("store", FAULTS)
def test_canaries_reveal_each_broken_guarantee(store: Callable[[str, str], LocalCanaries], tmp_path: Path) -> None:
    assert find_broken_axioms(store(str(tmp_path), "canary-"), now) == {FAULTS[store]}


def test_every_guarantee_without_a_trait_of_its_own_is_tested() -> None:
    assert set(FAULTS.values()) == {name for name, trait in PROBED_AXIOMS.items() if trait == "broken_axioms"}


def test_disk_keeps_every_guarantee(tmp_path: Path) -> None:
    assert find_broken_axioms(LocalCanaries(str(tmp_path), "canary-"), now) == frozenset()


def test_doctor_reports_broken_guarantee_and_removes_canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LocalCanaries", IdentityOfKey)
    storage = StorageConfig(name="warehouse", location=f"file://{tmp_path}/", mode="apply")
    failed = [finding for finding in examine(storage, now()) if finding.verdict == "fail"]
    assert [finding.check for finding in failed] == ["traits"]
    assert AXIOMS["distinct_identity"] in failed[0].found
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
