"""The reason of a history edit contained the representation of a Python object.

Seen: "the last snapshot kept by Rule(cutoff=Cutoff(forever=False, keep_last=1, max_age=None, at=None), path='retention.default', ...".
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lakes.icechunk.builder import RepositoryBuilder, numbers, set_value
from tests.lakes.icechunk.icechunk_lakes import lake_at, retention_of

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(days=30)
REPR = re.compile(r"\w\(\w+=|<\w+ object|datetime\.")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> RepositoryBuilder:
    builder = RepositoryBuilder.create(tmp_path_factory.mktemp("reasons") / "repo", START)
    for day in range(1, 5):
        builder.commit("main", START + timedelta(days=day), numbers("values", range(4)) if day == 1 else set_value("values", 0, day))
    return builder


@pytest.mark.parametrize(
    "default, rule",
    [
        (1, "the last snapshot kept by retention.default (newest 1) on branch main"),
        ("27d", "the last snapshot kept by retention.default (27d) on branch main"),
        ({"max_age": "27d", "keep_last": 1}, "the last snapshot kept by retention.default (newest 1 or 27d) on branch main"),
        ("2026-01-04", "the last snapshot kept by retention.default (since 2026-01-04T00:00:00+00:00) on branch main"),
    ],
)
def test_reason_of_an_edit_contains_the_rule(built: RepositoryBuilder, default: Any, rule: str) -> None:
    (edit,) = retention_of(lake_at(built.path, {"default": default}), LATER).expiry.to_pylist()
    assert edit["reason"].startswith(f"seed: {rule}; the snapshots between it")


@pytest.mark.parametrize("settings", [{}, {"semantics": "icechunk-v1"}, {"delete_expired_branches": True}])
@pytest.mark.parametrize("default", ["forever", 2, "1d", "27d"])
def test_messages_contain_no_python_object_representation(built: RepositoryBuilder, default: Any, settings: dict[str, Any]) -> None:
    retention = retention_of(lake_at(built.path, {"default": default}, **settings), LATER)
    texts = [*retention.reachable["reason"].to_pylist(), *retention.expiry["reason"].to_pylist(), *retention.notes]
    assert [text for text in texts if REPR.search(text)] == []


def test_note_on_a_wrong_clock_contains_the_rule(tmp_path: Path) -> None:
    builder = RepositoryBuilder.create(tmp_path / "repo", START + timedelta(days=20))
    builder.commit("main", START, numbers("values", range(2)))
    (note,) = (note for note in retention_of(lake_at(tmp_path / "repo", {"default": "15d"}), LATER).notes if "clock" in note)
    assert "is younger than the cut-off of retention.default (15d) and later ones are older" in note
