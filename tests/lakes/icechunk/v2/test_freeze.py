"""Refs, commits and pinned files of repositories of spec version 2, compared with the library's report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.icechunk.lake import IcechunkLake
from tests.lakes.icechunk.support import commits_of, lake_at
from tests.lakes.icechunk.v2.recordings import NAMES, Recording, unpack_recording

AS_OF = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.fixture(params=NAMES)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Recording:
    return unpack_recording(request.param, tmp_path, AS_OF - timedelta(days=100))


def test_refs_equal_those_of_the_library(recording: Recording):
    refs = lake_at(recording.path).freeze(AS_OF).refs
    repo = recording.verdict["repo"]
    assert {ref.ref_name: ref.head_commit_id for ref in refs if ref.ref_type == "branch"} == repo["branches"]
    assert {ref.ref_name: ref.head_commit_id for ref in refs if ref.ref_type == "tag"} == repo["tags"]
