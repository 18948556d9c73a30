"""The faulty store injects the enabled faults reproducibly, and otherwise equals the real store."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from gc_assets.config.connections import DEFAULT_CONNECTIONS
from gc_assets.core.errors import StoreError
from gc_assets.stores.local.kind import LOCAL
from gc_assets.stores.protocol import Store
from tests.stores.builders import PLAN, plan, trash, write
from tests.stores.faulty_store import MAX_SKEW, Fault, Faults, with_faults

NOW = datetime.now(UTC)


def open_with_fault(root: Path, fault: Fault, *about: object) -> Store:
    """Return a store with this fault for these arguments."""
    faults = next(candidate for number in count() if (candidate := Faults("s", number, frozenset({fault}), NOW)).has(fault, *about))
    return with_faults(LOCAL, lambda: faults).open(f"file://{root}/", DEFAULT_CONNECTIONS)


def keys(store: Store) -> list[str]:
    return [key for task in store.plan_listing(1) for listed in task.run(1000) for key in listed.objects.column("key").to_pylist()]


def test_store_without_faults_equals_the_real_store(tmp_path: Path) -> None:
    write(tmp_path, "a")
    store = with_faults(LOCAL, lambda: Faults("s", 0, frozenset(), NOW)).open(f"file://{tmp_path}/", DEFAULT_CONNECTIONS)
    assert keys(store) == keys(LOCAL.open(f"file://{tmp_path}/", DEFAULT_CONNECTIONS)) == ["a"]
    assert keys(pickle.loads(pickle.dumps(store))) == ["a"]  # noqa: S301  (bytes made on this line)


def test_only_recent_objects_are_listed_late(tmp_path: Path) -> None:
    write(tmp_path, "old")
    write(tmp_path, "new", mtime_ns=int(NOW.timestamp() * 1e9))
    assert keys(open_with_fault(tmp_path, "late", "new")) == ["old"]


def test_object_or_page_is_listed_twice(tmp_path: Path) -> None:
    write(tmp_path, "a")
    assert keys(open_with_fault(tmp_path, "twice", "a")) == ["a", "a"]
    assert keys(open_with_fault(tmp_path, "page again", 0)) == ["a", "a"]


def test_response_is_lost_after_the_action(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    first, second = plan(tmp_path, "a"), plan(tmp_path, "b")
    (lost,) = open_with_fault(tmp_path, "key lost", first.action_key).quarantine("trash", PLAN).act([first])
    assert (lost.verdict, trash(tmp_path, "a").exists()) == ("failed", True)
    with pytest.raises(StoreError, match="injected fault"):
        open_with_fault(tmp_path, "act lost", [second.action_key]).quarantine("trash", PLAN).act([second])
    assert trash(tmp_path, "b").exists()


def test_failed_key_is_not_changed(tmp_path: Path) -> None:
    write(tmp_path, "a")
    row = plan(tmp_path, "a")
    (failed,) = open_with_fault(tmp_path, "key fails", row.action_key).quarantine("trash", PLAN).act([row])
    assert (failed.verdict, (tmp_path / "a").exists()) == ("failed", True)


def test_clock_skew_stays_within_the_allowed_limit(tmp_path: Path) -> None:
    skews = {Faults(str(seed), 0, frozenset({"skew"}), NOW).skew for seed in range(100)}
    assert max(map(abs, skews)) <= MAX_SKEW
    assert min(skews) < timedelta() < max(skews)
