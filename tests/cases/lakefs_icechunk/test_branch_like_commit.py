"""A branch whose name is the beginning of a commit id was refused, although lakeFS lists the branch.

Source: lakeFS 1.84 and `pkg/graveler/ref/resolve_ref.go`. Since bda47d713 (December 2022, lakeFS #4743) the order is: complete commit
id, branch, tag, beginning of a commit id. Names such as `e`, `cafe` and `123` are common.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.protocol import FrozenRefs
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.lakefs_lakes import serve

NOW = datetime.now(UTC).replace(microsecond=0)
COMMIT = "822b72fe" + "0" * 56


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    builder = RepositoryBuilder(tmp_path, NOW)
    builder.repository.branches["main"].head = builder.record(COMMIT, ["first"], {"a": builder.upload()})
    return builder


def staged_paths(refs: FrozenRefs) -> set[str | None]:
    return {item.path for item in refs.uncommitted}


@pytest.mark.parametrize("name", ["8", "822b72fe", "822B72FE", COMMIT[:63]])
def test_staged_objects_of_branch_named_like_a_commit_are_found(builder: RepositoryBuilder, name: str) -> None:
    builder.branch(name)
    builder.stage(name, "b")
    with serve(builder.repository) as (lake, _):
        assert "b" in staged_paths(lake.freeze(NOW))


def test_branch_named_like_a_commit_is_read_without_staged_objects(builder: RepositoryBuilder) -> None:
    """Branch and commit have equal listings, so only the staging area shows that the server found the branch."""
    builder.branch("822b")
    with serve(builder.repository) as (lake, _):
        assert "822b" in {ref.ref_name for ref in lake.freeze(NOW).refs}


@pytest.mark.parametrize("name, prefix_wins", [("822b72fe", True), (COMMIT, False)])
def test_branch_that_the_server_does_not_list_is_refused(builder: RepositoryBuilder, name: str, *, prefix_wins: bool) -> None:
    builder.branch(name)
    builder.stage(name, "b")
    builder.repository.prefix_wins = prefix_wins
    with serve(builder.repository) as (lake, _), pytest.raises(LakeUnreadable, match="rename the branch"):
        lake.freeze(NOW)


def test_listing_that_differs_from_the_commit_is_accepted_as_branch_listing(builder: RepositoryBuilder) -> None:
    """A proxy may refuse the modifier `$`."""
    builder.branch("822b")
    builder.stage("822b", "b")
    with serve(builder.repository) as (lake, server):
        server.fault = lambda method, path, query: (400, {"message": "invalid reference"}) if "$" in path or "%24" in path else None
        assert "b" in staged_paths(lake.freeze(NOW))
