"""Recorded repositories of library 2.0 and 2.3: live files and garbage. No library runs, so these tests need no icechunk 2.x."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gc_assets.lakes.file_kinds import Kind
from tests.depth import in_turn
from tests.lakes.icechunk.v2.expiries import AS_OF, lake_of
from tests.lakes.icechunk.v2.marking import mark
from tests.lakes.icechunk.v2.recordings import NAMES, Recording, unpack_recording

pytestmark = in_turn

OLD = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=NAMES)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Recording:
    return unpack_recording(request.param, tmp_path, OLD)


def needed_snapshots(recording: Recording) -> set[str]:
    """Return those that refs reach, or all listed ones if the repository is read-only."""
    if recording.verdict["garbage"] is None:
        return set(recording.verdict["snapshots"])
    return {entry[0] for line in recording.verdict["ancestry"].values() for entry in line}


def test_garbage_matches_icechunk_gc(recording: Recording):
    """A dry run of the library counts the logs that only removed snapshots need as live."""
    garbage = [path.parent.name for path in mark(lake_of(recording.path), AS_OF).garbage]
    expected = recording.verdict["garbage"]
    if expected is None:  # read-only
        assert garbage == []
        return
    for folder in ("snapshots", "manifests", "chunks"):
        assert garbage.count(folder) == expected[folder], folder
    assert garbage.count("transactions") >= expected["transaction_logs"]


def test_live_manifests_match_icechunk(recording: Recording):
    live = mark(lake_of(recording.path), AS_OF).live
    snapshots = recording.verdict["snapshots"]
    expected = {manifest[0] for snapshot in needed_snapshots(recording) for manifest in snapshots[snapshot]["manifests"]}
    assert {address.rpartition("/")[2] for address in live.get(Kind.CHUNK_MANIFEST, set())} == expected


def test_virtual_locations_that_icechunk_reports_are_live(recording: Recording):
    """Other spellings of an address are live too. A key with `..`, as read by 2.3, is never a candidate (`hidden_path`)."""
    live = mark(lake_of(recording.path), AS_OF).live
    snapshots = recording.verdict["snapshots"]
    expected = {location for snapshot in needed_snapshots(recording) for location in snapshots[snapshot]["virtual_locations"]}
    expected = {location.replace("/x/..", "") for location in expected}
    found = live.get(Kind.VIRTUAL_CHUNK, set()) | live.get(Kind.POSSIBLE_OBJECT, set())
    assert expected <= found
    assert bool(expected) == bool(found)
