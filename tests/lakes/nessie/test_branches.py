from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from gc_assets.lakes.nessie.branches import find_protection
from gc_assets.lakes.nessie.lake import NessieLake
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, PROTECTED, ExpiryAction, ExpiryOutcome, as_branch_lake
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.server import Server

NOW = datetime.now(UTC)
RULES = {"delete_idle": [{"match": ".*", "after": "30d"}]}
NAME = "tmp/a-b_1.x"


@pytest.fixture
def builder(nessie: Server, tmp_path: Path) -> NessieBuilder:
    builder = NessieBuilder(nessie.uri, tmp_path)
    builder.on().new("db.t")
    builder.branch(NAME)
    builder.on(NAME).append("db.t")
    return builder


def open_lake(builder: NessieBuilder) -> NessieLake:
    return NessieLake(builder.config(retention=RULES))


def deletion(builder: NessieBuilder, name: str = NAME) -> ExpiryAction:
    return ExpiryAction(DELETE_IDLE_BRANCH, builder.head(name), "idle", "branch", name)


def delete(builder: NessieBuilder, action: ExpiryAction) -> ExpiryOutcome:
    (outcome,) = open_lake(builder).delete_branches([action])
    return outcome


def recreate(builder: NessieBuilder, action: ExpiryAction) -> ExpiryOutcome:
    (outcome,) = open_lake(builder).recreate_branches([action])
    return outcome


def names(builder: NessieBuilder) -> set[str]:
    return {ref.ref_name for ref in open_lake(builder).freeze(NOW).refs}


def test_undo_recreates_deleted_branch_at_its_head(builder: NessieBuilder) -> None:
    action = deletion(builder)
    assert as_branch_lake(open_lake(builder)) is not None
    assert [delete(builder, action).verdict for _ in range(2)] == ["done", "absent"]
    assert names(builder) == {"main"}
    assert [recreate(builder, action).verdict for _ in range(2)] == ["done", "absent"]
    assert builder.head(NAME) == action.snapshot_id


def test_branch_that_moved_after_plan_is_kept(builder: NessieBuilder) -> None:
    action = deletion(builder)
    builder.on(NAME).append("db.t")
    outcome = delete(builder, action)
    assert (outcome.verdict, outcome.error) == ("changed", f"branch {NAME} points at commit {builder.head(NAME)} now")


def test_branch_that_moves_after_the_check_is_kept(builder: NessieBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    action, request = deletion(builder), httpx.Client.request

    def move_first(self: httpx.Client, method: str, *arguments: object, **options: object) -> httpx.Response:
        if method == "DELETE":
            monkeypatch.undo()
            builder.on(NAME).append("db.t")
        return request(self, method, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx.Client, "request", move_first)
    outcome = delete(builder, action)
    assert outcome.verdict == "changed"
    assert (outcome.error or "").startswith(f"branch {NAME} moved during the deletion (status 409")
    assert NAME in names(builder)


def test_default_branch_is_never_deleted(builder: NessieBuilder) -> None:
    (main,) = (ref for ref in open_lake(builder).freeze(NOW).refs if ref.ref_name == "main")
    assert main.properties[PROTECTED] == "it is the default branch of the server"
    outcome = delete(builder, deletion(builder, "main"))
    assert (outcome.verdict, "main" in names(builder)) == ("changed", True)


def test_default_branch_is_protected_without_idle_branch_rules(builder: NessieBuilder) -> None:
    """A rule that is added later on the same date applies to the refs that were already read."""
    reasons = {ref.ref_name: ref.properties.get(PROTECTED) for ref in NessieLake(builder.config()).freeze(NOW).refs}
    assert (reasons["main"], reasons[NAME]) == ("it is the default branch of the server", None)


def test_main_is_protected_if_another_branch_is_the_default() -> None:
    assert find_protection("main", "develop") == "it is the main branch"
    assert find_protection("tmp", "develop") is None


def test_tag_with_name_of_deleted_branch_is_kept(builder: NessieBuilder) -> None:
    action = deletion(builder)
    assert delete(builder, action).verdict == "done"
    builder.tag(NAME)
    assert [delete(builder, action).verdict, recreate(builder, action).verdict] == ["changed", "changed"]
    assert NAME in names(builder)


def test_deletion_with_lost_response_fails_and_next_apply_returns_absent(builder: NessieBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    action, request = deletion(builder), httpx.Client.request

    def lose(self: httpx.Client, method: str, *arguments: object, **options: object) -> httpx.Response:
        answer = request(self, method, *arguments, **options)  # type: ignore[arg-type]
        if method == "DELETE":
            raise httpx.ReadError("lost")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(httpx.Client, "request", lose)
        outcome = delete(builder, action)
    assert outcome.verdict == "failed"
    assert (outcome.error or "").endswith("no answer (ReadError: lost); apply again")
    assert delete(builder, action).verdict == "absent"
