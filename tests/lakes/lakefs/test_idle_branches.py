from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.lakefs.lake import LakeFsLake
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, PROTECTED, ExpiryAction, ExpiryOutcome, as_branch_lake
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import serve

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES: Any = {"delete_idle": [{"match": ".*", "after": "30d"}]}
TMP = "tmp/a b"


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    builder = RepositoryBuilder(tmp_path, START)
    builder.branch(TMP)
    builder.commit(TMP, data_1=b"x")
    return builder


@pytest.fixture
def served(builder: RepositoryBuilder) -> Iterator[tuple[LakeFsLake, FakeServer]]:
    with serve(builder.repository, RULES) as found:
        yield found


@pytest.fixture
def lake(served: tuple[LakeFsLake, FakeServer]) -> LakeFsLake:
    return served[0]


def deletion(builder: RepositoryBuilder, name: str = TMP) -> ExpiryAction:
    return ExpiryAction(DELETE_IDLE_BRANCH, builder.repository.branches[name].head, "idle", "branch", name)


def delete(lake: LakeFsLake, action: ExpiryAction) -> ExpiryOutcome:
    (outcome,) = lake.delete_branches([action])
    return outcome


def recreate(lake: LakeFsLake, action: ExpiryAction) -> ExpiryOutcome:
    (outcome,) = lake.recreate_branches([action])
    return outcome


def protections(lake: LakeFsLake) -> dict[str, str | None]:
    return {ref.ref_name: ref.properties.get(PROTECTED) for ref in lake.freeze(START).refs}


def test_undo_recreates_deleted_branch_at_its_head(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action = deletion(builder)
    assert as_branch_lake(lake) is not None
    assert [delete(lake, action).verdict for _ in range(2)] == ["done", "absent"]
    assert builder.repository.branches.keys() == {"main"}
    assert [recreate(lake, action).verdict for _ in range(2)] == ["done", "absent"]
    assert builder.repository.branches[TMP].head == action.snapshot_id


def test_path_that_is_not_utf8_is_no_uncommitted_change(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    builder.stage(TMP, b"caf\xe9".decode(errors="surrogateescape"))
    assert protections(lake)[TMP] == "it has uncommitted changes"
    builder.commit(TMP)
    assert protections(lake)[TMP] is None


def test_branch_that_moved_after_plan_is_kept(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action = deletion(builder)
    head = builder.commit(TMP, data_2=b"y")
    outcome = delete(lake, action)
    assert (outcome.verdict, outcome.error) == ("changed", f"branch {TMP} points at commit {head} now")
    assert TMP in builder.repository.branches


@pytest.mark.parametrize("change", ["object", "identical object", "deletion"])
def test_branch_with_uncommitted_changes_is_kept(builder: RepositoryBuilder, lake: LakeFsLake, change: str) -> None:
    action = deletion(builder)
    if change == "deletion":
        builder.delete(TMP, "data/1")
    else:
        builder.stage(TMP, "data/2")
    if change == "identical object":
        builder.repository.branches[TMP].staged["data/2"].is_change = False  # type: ignore[union-attr]
        assert protections(lake)[TMP] == "it has uncommitted changes"
        return
    assert protections(lake)[TMP] == "it has uncommitted changes"
    outcome = delete(lake, action)
    assert (outcome.verdict, outcome.error) == ("changed", f"branch {TMP} is kept: it has uncommitted changes")
    assert TMP in builder.repository.branches


@pytest.mark.parametrize("pattern, protects", [("tmp/*", True), ("t*", True), ("release*", False), ("{rel,x}*", True)])
def test_branch_with_protection_rule_is_kept(builder: RepositoryBuilder, lake: LakeFsLake, pattern: str, *, protects: bool) -> None:
    builder.repository.protected.append(pattern)
    assert protections(lake)[TMP] == (f"the branch protection rule {pattern!r} protects it" if protects else None)
    assert delete(lake, deletion(builder)).verdict == ("changed" if protects else "done")


def test_default_and_hidden_branches_are_protected(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    builder.branch("system", hidden=True)
    assert protections(lake) == {"main": "it is the default branch of the repository", "system": "it is hidden", TMP: None}
    assert [delete(lake, deletion(builder, name)).verdict for name in ("main", "system")] == ["changed", "changed"]
    assert builder.repository.branches.keys() == {"main", "system", TMP}


def test_unreadable_protection_rules_protect_all_branches(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer]) -> None:
    lake, server = served
    server.fault = lambda method, path, query: (403, {"message": "no"}) if path.endswith("/branch_protection") else None
    assert (protections(lake)[TMP] or "").startswith("its protection cannot be read: lakeFS repository ml-data")
    assert delete(lake, deletion(builder)).verdict == "changed"
    assert TMP in builder.repository.branches


def test_denied_deletion_keeps_the_branch(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer]) -> None:
    lake, server = served
    server.fault = lambda method, path, query: (403, {"message": "no"}) if method == "DELETE" else None
    outcome = delete(lake, deletion(builder))
    assert (outcome.verdict, TMP in builder.repository.branches) == ("denied", True)
    assert (outcome.error or "").startswith(
        f"branch {TMP} cannot be deleted: HTTP 403: no; grant `fs:DeleteBranch` to the collector's user"
    )


def test_branch_deletion_with_lost_response_is_not_repeated(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer]) -> None:
    lake, server = served
    action = deletion(builder)

    def lose(method: str, path: str, query: object) -> tuple[int, Any] | None:
        if method != "DELETE":
            return None
        builder.drop(TMP)
        builder.branch(TMP)  # a user creates it again before a repetition
        return 0, None

    server.fault = lose
    outcome = delete(lake, action)
    assert (outcome.verdict, TMP in builder.repository.branches) == ("failed", True)
    assert len([request for request in server.requests if request[0] == "DELETE"]) == 1


def test_undo_refuses_lost_commit_and_branch_name_in_use(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    action = deletion(builder)
    assert delete(lake, action).verdict == "done"
    lost = recreate(lake, ExpiryAction(DELETE_IDLE_BRANCH, "gone", "idle", "branch", TMP))
    assert (lost.verdict, lost.error) == (
        "failed",
        f"branch {TMP} cannot be created at commit gone: HTTP 404: source reference 'gone': not found",
    )
    builder.branch(TMP)
    outcome = recreate(lake, action)
    assert outcome.verdict == "changed"
    assert (outcome.error or "").startswith(f"the name is in use: branch {TMP} points at commit first now")


@pytest.mark.parametrize("rules", [{}, {"delete_idle": [{"match": "x", "after": "30d"}]}], ids=["no rule", "other rule"])
def test_branch_without_idle_rule_at_freeze_is_protected(builder: RepositoryBuilder, rules: Any) -> None:
    """A rule that is added later on the same date applies to the refs that were already read."""
    with serve(builder.repository, rules) as (lake, _):
        reason = "no rule of delete_idle matched it when the refs were frozen"
        assert protections(lake) == {"main": reason, TMP: reason}


def test_freeze_requests_no_branch_details_without_rules(builder: RepositoryBuilder) -> None:
    with serve(builder.repository) as (lake, server):
        lake.freeze(START)
        assert not [path for _, path, _ in server.requests if "protection" in path or "diff" in path]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_proxy_404_does_not_count_as_deleted_branch(builder: RepositoryBuilder, served: tuple[LakeFsLake, FakeServer], method: str) -> None:
    lake, server = served
    action = deletion(builder)
    server.fault = lambda sent, path, query: (404, "<html>no upstream</html>") if sent == method and "/branches/" in path else None
    assert (delete(lake, action).verdict, TMP in builder.repository.branches) == ("failed", True)


def test_main_is_protected_if_another_branch_is_the_default(builder: RepositoryBuilder, lake: LakeFsLake) -> None:
    builder.repository.default_branch = TMP
    assert protections(lake) == {"main": "it is the main branch", TMP: "it is the default branch of the repository"}
    assert delete(lake, deletion(builder, "main")).verdict == "changed"
