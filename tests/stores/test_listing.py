"""Objects that are looked up by key."""

from __future__ import annotations

import errno
from pathlib import Path
from time import sleep

import pytest

from gc_assets.core.errors import StoreError
from gc_assets.stores.listing import CONCURRENT_REQUESTS, MAX_GROUPED_KEYS, find_objects
from gc_assets.stores.local.store import LocalStore
from gc_assets.stores.store import open_store


@pytest.mark.parametrize("count", [0, 1, 4 * CONCURRENT_REQUESTS + 1, 4 * CONCURRENT_REQUESTS * MAX_GROUPED_KEYS + 1])
def test_found_objects_are_returned_in_key_order(tmp_path: Path, count: int) -> None:
    sizes = [None if number % 3 == 1 else number % 50 for number in range(count)]
    for number, size in enumerate(sizes):
        if size is not None:
            (tmp_path / f"{number}").write_bytes(b"x" * size)
    found = find_objects(open_store(str(tmp_path)), [f"{number}" for number in range(count)])
    assert [None if item is None else item.size_bytes for item in found] == sizes


def test_error_for_failed_lookup_contains_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalStore, key: str) -> None:
        del self
        if key == "1999":
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalStore, "find_object", refuse)
    with pytest.raises(StoreError, match=f"cannot look up {tmp_path}/1999: Permission denied"):
        find_objects(open_store(str(tmp_path)), [f"{number}" for number in range(2000)])


def test_other_keys_are_not_looked_up_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = list[str]()

    def refuse(self: LocalStore, key: str) -> None:
        del self
        looked_up.append(key)
        if key == "0":
            raise PermissionError(errno.EACCES, "Permission denied")
        sleep(0.001)

    monkeypatch.setattr(LocalStore, "find_object", refuse)
    with pytest.raises(StoreError, match="/0: Permission denied"):
        find_objects(open_store(str(tmp_path)), [f"{number}" for number in range(20_000)])
    assert len(looked_up) < CONCURRENT_REQUESTS * MAX_GROUPED_KEYS
