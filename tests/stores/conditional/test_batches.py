"""Batches of rows: only rows whose result is not known are prepared again."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from gc_assets.buckets.protocol import Change, ChangeVerdict, Deletion
from gc_assets.core.phases import ABSENT, DONE
from gc_assets.stores.conditional import batches
from gc_assets.stores.conditional.batches import ATTEMPTS, RowDeletion, Step, delete_prepared
from gc_assets.stores.protocol import PlannedAction, Result

ERROR = OSError(errno.EIO, "the connection was closed")


class ScriptedBucket:
    """Answers the deletes of each key in the given order, and then with `done`."""

    def __init__(self, **answers: list[ChangeVerdict]) -> None:
        self.answers, self.requests = answers, list[list[str]]()

    def delete(self, objects: Sequence[Deletion]) -> list[Change]:
        self.requests += [[item.key for item in objects]] if objects else []
        return [self._answer(item.key) for item in objects]

    def _answer(self, key: str) -> Change:
        verdict: ChangeVerdict = self.answers[key].pop(0) if self.answers.get(key) else "done"
        return Change(verdict, None if verdict == "done" else ERROR)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "pause_before_retry", lambda _: None)


def row(key: str) -> PlannedAction:
    return PlannedAction(key, "quarantine", 1, "e-1-1")


def run(bucket: Any, *keys: str, prepare: Any = None) -> list[Result]:
    def delete(planned: PlannedAction, _: bool) -> Step:
        return RowDeletion(planned, (Deletion(planned.key),))

    return delete_prepared(bucket, [row(key) for key in keys], (), prepare or delete, lambda _, __: Result(DONE))


def test_only_rows_with_unknown_outcome_are_retried() -> None:
    bucket = ScriptedBucket(b=["unknown", "changed"], c=["denied"], d=["failed"])
    results = run(bucket, "a", "b", "c", "d")
    assert [result.verdict for result in results] == ["done", "done", "denied", "failed"]
    assert bucket.requests == [["a", "b", "c", "d"], ["b"], ["b"]]


def test_row_with_a_lost_response_is_retried_as_resumed() -> None:
    seen = list[tuple[str, bool]]()

    def prepare(planned: PlannedAction, resumed: bool) -> Step:
        seen.append((planned.key, resumed))
        return Result(ABSENT, "gone") if resumed else RowDeletion(planned, (Deletion(planned.key),))

    results = run(ScriptedBucket(b=["unknown"]), "a", "b", prepare=prepare)
    assert [result.verdict for result in results] == ["done", "absent"]
    assert sorted(seen) == [("a", False), ("b", False), ("b", True)]


def test_row_with_persistently_unknown_outcome_fails_with_reason() -> None:
    bucket = ScriptedBucket(a=["unknown"] * ATTEMPTS)
    (result,) = run(bucket, "a")
    assert (result.verdict, result.error) == ("failed", "quarantine 'a': the connection was closed")
    assert len(bucket.requests) == ATTEMPTS


def test_refused_older_version_does_not_fail_a_purge() -> None:
    planned = PlannedAction("a", "purge", 1, "e-1-1", "v2", "plan-a")

    def prepare(purged: PlannedAction, _: bool) -> Step:
        return RowDeletion(purged, (Deletion("a", "v2"), Deletion("old", "v1")))

    bucket: Any = ScriptedBucket(old=["denied"])
    (result,) = delete_prepared(bucket, [planned], (), prepare, lambda _, __: Result(DONE))
    assert (result.verdict, result.error) == ("done", "older versions kept under a delete marker: version v1 (the connection was closed)")
