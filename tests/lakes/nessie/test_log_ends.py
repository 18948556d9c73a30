"""Detect the end of a log: a commit without a parent, or with a parent that the server reports as missing."""

from __future__ import annotations

from typing import Any

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.nessie.commits import read_commits
from gc_assets.lakes.nessie.operations import OPERATIONS
from gc_assets.lakes.nessie.retention import LOG_ENDS
from gc_assets.lakes.protocol import Commit
from tests.lakes.nessie.scripted_server import Answer, serve_answers

NO_ANCESTOR = "00"
LOG = ["05", "04", "03", "02", "01"]
ABSENT: Answer = (404, {"errorCode": "REFERENCE_NOT_FOUND", "message": "no such commit"})


def content(version: str) -> dict[str, Any]:
    return {"type": "ICEBERG_TABLE", "id": "t", "metadataLocation": f"/lake/t/metadata/{version}.metadata.json", "snapshotId": 1}


def entry(commit: str) -> dict[str, Any]:
    parent = LOG[LOG.index(commit) + 1] if commit != LOG[-1] else NO_ANCESTOR
    put = {"type": "PUT", "key": {"elements": ["t"]}, "content": content(commit)}
    return {"commitMeta": {"hash": commit, "commitTime": "2026-01-01T00:00:00Z"}, "parentCommitHash": parent, "operations": [put]}


def read_server(visible: int, absent: Answer | None = None) -> list[Commit]:
    """Read the log of a server that has only the first `visible` commits.

    Its pages have two commits and announce no further page. For other commits it returns `absent`.
    """

    def answer(path: str, parameters: dict[str, str]) -> Answer:
        at = LOG.index(path.split("/")[1].removeprefix("@"))
        if at >= visible:
            return absent or ABSENT
        if path.endswith("/entries"):
            other = {"name": {"elements": ["u"]}, "type": "ICEBERG_TABLE", "content": {**content("old"), "id": "u"}}
            return 200, {"hasMore": False, "entries": [{"name": {"elements": ["t"]}, "type": "", "content": content(LOG[at])}, other]}
        return 200, {"hasMore": False, "logEntries": [entry(commit) for commit in LOG[at : min(at + 2, visible)]]}

    with serve_answers(answer) as (client, _):
        return list(read_commits("shop", client, LOG[:1], NO_ANCESTOR))


def test_log_in_short_pages_is_read_to_root_commit() -> None:
    commits = read_server(len(LOG))
    assert [commit.commit_id for commit in commits] == LOG
    assert not any(LOG_ENDS in commit.summary for commit in commits)


@pytest.mark.parametrize("visible", [1, 2, 3, 4])
def test_branch_content_replaces_truncated_log(visible: int) -> None:
    commits = read_server(visible)
    assert [commit.commit_id for commit in commits] == LOG[:visible]
    assert [LOG_ENDS in commit.summary for commit in commits] == [False] * (visible - 1) + [True]
    assert commits[-1].summary[OPERATIONS].count("\n") == 1
    assert {root.address.rpartition("/")[2] for root in commits[-1].content_roots} == {
        f"{LOG[visible - 1]}.metadata.json",
        "old.metadata.json",
    }


@pytest.mark.parametrize(
    "absent", [(404, {"message": "nothing here"}), (404, b"<html>"), (403, {"message": "no"}), (404, {"errorCode": "CONTENT_NOT_FOUND"})]
)
def test_other_error_at_end_of_log_stops_run(absent: Answer) -> None:
    with pytest.raises(LakeUnreadable, match=r"trees/@03/history: status 40[34]"):
        read_server(2, absent)
