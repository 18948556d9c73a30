"""The runs of an asset are found with one read, and no finished run is ever missing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.state.files import Files
from gc_assets.state.journal import State
from gc_assets.state.summaries import FreezeTime
from tests.depth import in_turn
from tests.state.publisher import DAY, NOW, publish_empty
from tests.state.s3_location import unused_location

pytestmark = in_turn

CHECKOUT = Path(__file__).parents[2]
INDEX = "sales/live_files/_index.json"


class RecordingFiles(Files):
    """Files that record the requested paths."""

    def read(self, path: str) -> bytes:
        REQUESTED.append(path)
        return super().read(path)

    def list(self, path: str, *, recursive: bool = False) -> object:  # type: ignore[override]
        REQUESTED.append(path)
        return super().list(path, recursive=recursive)

    def directories(self, path: str) -> object:  # type: ignore[override]
        REQUESTED.append(path)
        return super().directories(path)


REQUESTED: list[str] = []


@pytest.fixture(params=["disk", "s3"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    REQUESTED.clear()
    if request.param == "disk":
        yield State(RecordingFiles(str(tmp_path)))
    else:
        with unused_location() as (root, settings):
            yield State(RecordingFiles(root, settings))


@pytest.fixture
def on_disk(tmp_path: Path) -> State:
    """A state on disk, for tests that do not depend on the backend."""
    return State.at(str(tmp_path))


def process(state: State, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.state.publisher", state.files.root, *arguments]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)


def exists(state: State, path: str) -> bool:
    return path in {item.name for item in Files.list(state.files, "", recursive=True)}


def run_ids(state: State, asset: str = "live_files") -> list[str]:
    return [run.run_id for run in state.history("sales", asset)]


def test_run_history_needs_one_read(state: State) -> None:
    run_ids_made = [publish_empty(state, day=DAY + timedelta(days=number)) for number in range(8)]
    REQUESTED.clear()
    assert run_ids(state) == run_ids_made
    assert REQUESTED == [INDEX]


def test_unknown_table_has_no_runs(state: State) -> None:
    assert state.history("sales", "live_files") == ()
    assert not exists(state, INDEX)


def test_concurrent_publications_are_all_indexed(state: State) -> None:
    each = 15 if state.files.are_local else 5
    processes = [process(state, str(each)) for _ in range(3)]
    run_ids_made = {line for one in processes for line in one.communicate()[0].split()}
    assert len(run_ids_made) == 3 * each
    assert set(run_ids(state)) == run_ids_made
    assert sorted(number_by_run(state).values()) == list(range(1, 3 * each + 1)), "no two have the same sequence number"
    assert state.find_index_errors() == []


def test_publication_needs_one_read(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is read once. The process already knows that there is no pointer."""
    publish_empty(state)
    read: list[str] = []
    read_version = Files.read_version
    monkeypatch.setattr(Files, "read_version", lambda files, path: read.append(path) or read_version(files, path))
    REQUESTED.clear()
    publish_empty(state, day=DAY + timedelta(days=1))
    assert (read, REQUESTED) == ([INDEX], [])


def test_publication_is_indexed_if_another_writer_was_faster(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[str] = []
    replace = Files.replace

    def with_another(files: Files, path: str, content: bytes) -> None:
        replace(files, path, content)
        if path.endswith("_receipt.json") and not others:
            others.append("")
            others[0] = publish_empty(state)

    monkeypatch.setattr(Files, "replace", with_another)
    last = publish_empty(state)
    assert run_ids(state) == sorted([last, *others])
    assert state.find_index_errors() == []
    found = state.current("sales", "live_files", DAY)
    assert found is not None
    assert found.receipt.run_id == last, "the last to publish is the current one"


def test_sequence_numbers_follow_publication_order_not_time(state: State) -> None:
    ahead = publish_empty(state, day=DAY + timedelta(days=10), at=NOW + timedelta(days=10))
    later = publish_empty(state)
    assert number_by_run(state) == {ahead: 1, later: 2}
    assert number_by_run(state) == {run.receipt.run_id: run.receipt.sequence_number for run in state.runs("sales", "live_files")}
    state.files.delete(INDEX)
    last = publish_empty(state)
    assert number_by_run(state) == {ahead: 1, later: 2, last: 3}, "receipts contain the numbers, so a lost index does not matter"


def number_by_run(state: State) -> dict[str, int]:
    return {run.run_id: run.entry.sequence_number for run in state.history("sales", "live_files")}


def test_outdated_run_index_does_not_block_publication(state: State) -> None:
    """An older release may have published without the index."""
    publish_empty(state, day=DAY + timedelta(days=1))
    before = Files.read(state.files, INDEX)
    publish_empty(state)
    state.files.replace(INDEX, before)
    new = publish_empty(state)
    found = state.current("sales", "live_files", DAY)
    assert found is not None
    assert found.receipt.run_id == new


def test_run_directory_without_receipt_is_skipped(state: State) -> None:
    run_ids_made = publish_empty(state)
    assert process(state, "1", "_receipt.json").wait() == -9
    REQUESTED.clear()
    assert run_ids(state) == [run_ids_made]
    assert [path.rpartition("/")[2] for path in REQUESTED] == ["_index.json", "_receipt.json"]


def test_run_with_receipt_is_found_even_if_not_indexed(state: State) -> None:
    """The table of the run is complete. If a deletion log were missed, its quarantined files would
    be lost.
    """
    publish_empty(state)
    assert process(state, "1", "current.json").wait() == -9
    assert len(run_ids(state)) == 2
    publish_empty(state)
    REQUESTED.clear()
    assert len(run_ids(state)) == 3
    assert REQUESTED == [INDEX]


def test_missing_index_is_rebuilt_once(state: State) -> None:
    run_ids_made = [publish_empty(state), publish_empty(state, day=DAY + timedelta(days=1))]
    before = state.history("sales", "live_files")
    state.files.delete(INDEX)
    assert state.history("sales", "live_files") == before
    REQUESTED.clear()
    assert run_ids(state) == run_ids_made
    assert REQUESTED == [INDEX]


def test_first_run_of_new_release_keeps_older_index_entries(state: State) -> None:
    old = publish_empty(state)
    state.files.delete(INDEX)
    new = publish_empty(state)
    assert run_ids(state) == [old, new]


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_read_only_state_without_index_is_read_from_receipts(state: State, monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    run_ids_made = publish_empty(state)
    state.files.delete(INDEX)

    def refuse(*_: object) -> bool:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(Files, "replace_if", refuse)
    assert run_ids(state) == [run_ids_made]
    assert not exists(state, INDEX)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"index_version": 1, "sha256": "", "runs": []}', b"\xff"])
def test_damaged_run_index_is_reported_and_repaired(on_disk: State, damage: bytes) -> None:
    run_ids_made = [publish_empty(on_disk), publish_empty(on_disk)]
    before = Files.read(on_disk.files, INDEX)
    on_disk.files.replace(INDEX, damage)
    with pytest.raises(StateError, match=r"sales/live_files/_index\.json is damaged.*`gc-assets doctor --repair`"):
        on_disk.history("sales", "live_files")
    with pytest.raises(StateError, match="is damaged"):
        publish_empty(on_disk)
    assert [INDEX in line for line in on_disk.find_index_errors()] == [True]
    assert on_disk.repair() == [INDEX]
    assert run_ids(on_disk) == run_ids_made
    assert Files.read(on_disk.files, INDEX) == before
    assert on_disk.repair() == []


def test_index_that_lacks_run_is_reported_as_damaged(on_disk: State) -> None:
    publish_empty(on_disk)
    publish_empty(on_disk, day=DAY + timedelta(days=1))
    document = json.loads(on_disk.files.read(INDEX))
    document["runs"].pop()
    on_disk.files.replace(INDEX, json.dumps(document).encode())
    with pytest.raises(StateError, match="its checksum does not match"):
        on_disk.history("sales", "live_files")


def test_newer_index_version_is_rejected(on_disk: State) -> None:
    publish_empty(on_disk)
    on_disk.files.replace(INDEX, json.dumps({**json.loads(on_disk.files.read(INDEX)), "index_version": 3}).encode())
    with pytest.raises(StateError, match="has version 3, this release reads up to version 2; upgrade gc-assets"):
        on_disk.history("sales", "live_files")


def test_unindexed_run_is_reported_and_repaired(state: State) -> None:
    publish_empty(state)
    before = Files.read(state.files, INDEX)
    late = publish_empty(state)
    state.files.replace(INDEX, before)
    assert state.find_index_errors() == [f"{state.files.root}/{INDEX} lacks the run sales/live_files/run_date=2026-03-14/{late}"]
    assert state.repair() == [INDEX]
    assert late in run_ids(state)
    assert state.find_index_errors() == []


def test_repair_keeps_run_whose_publication_is_interrupted(state: State) -> None:
    assert process(state, "1", "_receipt.json").wait() == -9
    before = Files.read(state.files, INDEX)
    assert state.repair() == []
    assert Files.read(state.files, INDEX) == before


def test_changed_receipt_is_rejected_by_index(on_disk: State) -> None:
    publish_empty(on_disk)
    (run,) = on_disk.history("sales", "live_files")
    path = f"{run.path}/_receipt.json"
    on_disk.files.replace(path, on_disk.files.read(path).replace(b'"rows": 0', b'"rows": 1'))
    with pytest.raises(StateError, match=r"does not match _index\.json"):
        on_disk.open(run)


def test_pruned_runs_are_removed_from_index(state: State) -> None:
    old, kept = publish_empty(state), publish_empty(state)
    state.prune(0, Clock(NOW + timedelta(days=1)))
    assert run_ids(state) == [kept] != [old]
    assert state.find_index_errors() == []


def test_index_keeps_summary_values(on_disk: State) -> None:
    summary = {
        "kind": "iceberg",
        "as_of": "2026-03-14T00:00:00+00:00",
        "frozen_at": "2026-03-14T09:30:00+00:00",
        "historical": False,
        "rehearsal": True,
        "policy_digest": "p",
        "refs_digest": "r",
        "claims": 1,
        "pinned": 0,
        "notes": [],
        "min_age_seconds": 0,
    }
    publish_empty(on_disk, "lake_refs", **summary)
    (run,) = on_disk.history("sales", "lake_refs")
    assert run.summary(FreezeTime) == FreezeTime(frozen_at=NOW, rehearsal=True)
    assert set(run.entry.summary) == {"frozen_at", "rehearsal"}


def test_latest_table_is_newest_current_table(state: State) -> None:
    publish_empty(state, day=date(2026, 3, 1))
    subprocess.run([sys.executable, "-m", "tests.state.publisher", state.files.root, "1", "current.json"], cwd=CHECKOUT, check=False)
    found = state.latest("sales", "live_files")
    assert found is not None
    assert found.receipt.run_date == date(2026, 3, 1)
