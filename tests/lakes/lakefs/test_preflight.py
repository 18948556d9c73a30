"""`doctor` checks the right to edit by requests for a branch that does not exist."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.findings import OK, WARN
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import Answer, FakeServer
from tests.lakes.lakefs.lakefs_lakes import serve

START = datetime(2026, 1, 1, tzinfo=UTC)
IDLE: Any = {"delete_idle": [{"match": ".*", "after": "30d"}]}


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    return RepositoryBuilder(tmp_path, START)


def refuse(server: FakeServer, monkeypatch: pytest.MonkeyPatch, status: int, *methods: str) -> None:
    """Let the server refuse requests with these methods."""
    answer = server.answer

    def send_refusal(method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        return (status, {"message": "insufficient permissions"}) if method in methods else answer(method, path, query, body)

    monkeypatch.setattr(server, "answer", send_refusal)


def test_nothing_is_checked_if_the_lake_is_never_edited(builder: RepositoryBuilder) -> None:
    with serve(builder.repository) as (lake, _):
        assert lake.probe_edits() is None


def test_right_is_confirmed_without_any_change(builder: RepositoryBuilder) -> None:
    builder.branch("tmp")
    heads = {name: branch.head for name, branch in builder.repository.branches.items()}
    with serve(builder.repository, IDLE) as (lake, _):
        finding = lake.probe_edits()
    assert finding is not None
    assert (finding.verdict, finding.found) == (OK, "the server permits fs:DeleteBranch")
    assert {name: branch.head for name, branch in builder.repository.branches.items()} == heads


def test_commits_are_checked_only_if_rules_delete_paths(builder: RepositoryBuilder, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text("{}")
    with serve(builder.repository, rules=str(rules), lifecycle="commit") as (lake, _):
        finding = lake.probe_edits()
    assert finding is not None
    assert (finding.verdict, finding.found) == (OK, "the server permits fs:DeleteBranch and fs:CreateCommit")
    assert len(builder.repository.commits) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_denied_deletion_is_a_warning_with_the_permission(builder: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with serve(builder.repository, IDLE) as (lake, server):
        refuse(server, monkeypatch, status, "DELETE")
        finding = lake.probe_edits()
    assert finding is not None
    assert finding.verdict == WARN
    assert f"the server denies fs:DeleteBranch on another branch: HTTP {status}: insufficient permissions" in finding.found
    assert "Grant fs:DeleteBranch" in finding.todo


def test_right_is_unknown_if_the_server_fails(builder: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(builder.repository, IDLE) as (lake, server):
        refuse(server, monkeypatch, 500, "DELETE")
        finding = lake.probe_edits()
    assert finding is not None
    assert finding.verdict == WARN
    assert "was not checked" in finding.found
