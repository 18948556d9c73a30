"""The runs of an asset are found by one read, and none that has finished is ever missing."""

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
from tests.state.publisher import DAY, NOW, publish_empty
from tests.state.s3_place import place

CHECKOUT = Path(__file__).parents[2]
INDEX = "sales/live_files/_index.json"


class Counted(Files):
    """Files that note what they are asked for."""

    def read(self, path: str) -> bytes:
        ASKED.append(path)
        return super().read(path)

    def list(self, path: str, *, recursive: bool = False) -> object:  # type: ignore[override]
        ASKED.append(path)
        return super().list(path, recursive=recursive)

    def directories(self, path: str) -> object:  # type: ignore[override]
        ASKED.append(path)
        return super().directories(path)


ASKED: list[str] = []


@pytest.fixture(params=["disk", "s3"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    ASKED.clear()
    if request.param == "disk":
        yield State(Counted(str(tmp_path)))
    else:
        with place() as (root, settings):
            yield State(Counted(root, settings))


@pytest.fixture
def on_disk(tmp_path: Path) -> State:
    """For what an object store can make no difference to."""
    return State.at(str(tmp_path))


def process(state: State, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.state.publisher", state.files.root, *arguments]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)


def exists(state: State, path: str) -> bool:
    return path in {item.name for item in Files.list(state.files, "", recursive=True)}


def run_ids(state: State, asset: str = "live_files") -> list[str]:
    return [run.run_id for run in state.history("sales", asset)]


def test_all_runs_are_found_by_one_read(state: State) -> None:
    made = [publish_empty(state, day=DAY + timedelta(days=number)) for number in range(8)]
    ASKED.clear()
    assert run_ids(state) == made
    assert ASKED == [INDEX]


def test_an_asset_that_never_ran_has_no_runs(state: State) -> None:
    assert state.history("sales", "live_files") == ()
    assert not exists(state, INDEX)


def test_runs_published_by_processes_at_once_are_all_in_the_index(state: State) -> None:
    each = 15 if state.files.are_local else 5
    processes = [process(state, str(each)) for _ in range(3)]
    made = {line for one in processes for line in one.communicate()[0].split()}
    assert len(made) == 3 * each
    assert set(run_ids(state)) == made
    assert state.find_index_errors() == []


def test_a_night_publishes_a_table_by_one_read(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is read once. That no pointer is there yet, and what the index is by then, the process knows."""
    publish_empty(state)
    read: list[str] = []
    read_version = Files.read_version
    monkeypatch.setattr(Files, "read_version", lambda files, path: read.append(path) or read_version(files, path))
    ASKED.clear()
    publish_empty(state, day=DAY + timedelta(days=1))
    assert (read, ASKED) == ([INDEX], [])


def test_a_run_published_while_another_publishes_is_in_the_index_too(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_index_that_lacks_the_current_run_holds_no_newer_one_up(state: State) -> None:
    """An older release may have published without it."""
    publish_empty(state, day=DAY + timedelta(days=1))
    before = Files.read(state.files, INDEX)
    publish_empty(state)
    state.files.replace(INDEX, before)
    new = publish_empty(state)
    found = state.current("sales", "live_files", DAY)
    assert found is not None
    assert found.receipt.run_id == new


def test_a_run_that_died_before_its_receipt_is_passed_over_without_a_listing(state: State) -> None:
    made = publish_empty(state)
    assert process(state, "1", "_receipt.json").wait() == -9
    ASKED.clear()
    assert run_ids(state) == [made]
    assert [path.rpartition("/")[2] for path in ASKED] == ["_index.json", "_receipt.json"]


def test_a_run_that_died_after_its_receipt_is_found(state: State) -> None:
    """Its table is whole: a log that nobody found would let its files be forgotten."""
    publish_empty(state)
    assert process(state, "1", "current.json").wait() == -9
    assert len(run_ids(state)) == 2
    publish_empty(state)
    ASKED.clear()
    assert len(run_ids(state)) == 3
    assert ASKED == [INDEX]


def test_a_state_without_an_index_is_indexed_from_its_receipts_once(state: State) -> None:
    made = [publish_empty(state), publish_empty(state, day=DAY + timedelta(days=1))]
    before = state.history("sales", "live_files")
    state.files.delete(INDEX)
    assert state.history("sales", "live_files") == before
    ASKED.clear()
    assert run_ids(state) == made
    assert ASKED == [INDEX]


def test_the_first_run_of_a_new_release_enters_the_index_beside_those_of_the_old_one(state: State) -> None:
    old = publish_empty(state)
    state.files.delete(INDEX)
    new = publish_empty(state)
    assert run_ids(state) == [old, new]


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_state_that_may_only_be_read_is_read_from_its_receipts(state: State, monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    made = publish_empty(state)
    state.files.delete(INDEX)

    def refused(*_: object) -> bool:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(Files, "replace_if", refused)
    assert run_ids(state) == [made]
    assert not exists(state, INDEX)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"index_version": 1, "sha256": "", "runs": []}', b"\xff"])
def test_a_damaged_index_stops_by_name_and_is_repaired_from_the_receipts(on_disk: State, damage: bytes) -> None:
    made = [publish_empty(on_disk), publish_empty(on_disk)]
    before = Files.read(on_disk.files, INDEX)
    on_disk.files.replace(INDEX, damage)
    with pytest.raises(StateError, match=r"sales/live_files/_index\.json is damaged.*`gc-assets doctor --repair`"):
        on_disk.history("sales", "live_files")
    with pytest.raises(StateError, match="is damaged"):
        publish_empty(on_disk)
    assert [INDEX in line for line in on_disk.find_index_errors()] == [True]
    assert on_disk.repair() == [INDEX]
    assert run_ids(on_disk) == made
    assert Files.read(on_disk.files, INDEX) == before
    assert on_disk.repair() == []


def test_an_index_that_lost_a_run_is_damaged(on_disk: State) -> None:
    publish_empty(on_disk)
    publish_empty(on_disk, day=DAY + timedelta(days=1))
    document = json.loads(on_disk.files.read(INDEX))
    document["runs"].pop()
    on_disk.files.replace(INDEX, json.dumps(document).encode())
    with pytest.raises(StateError, match="its sum does not agree"):
        on_disk.history("sales", "live_files")


def test_an_index_of_a_newer_release_is_not_guessed_at(on_disk: State) -> None:
    publish_empty(on_disk)
    on_disk.files.replace(INDEX, json.dumps({**json.loads(on_disk.files.read(INDEX)), "index_version": 2}).encode())
    with pytest.raises(StateError, match="has version 2, this release reads version 1; upgrade gc-assets"):
        on_disk.history("sales", "live_files")


def test_a_run_that_an_older_release_added_since_is_reported_and_repaired(state: State) -> None:
    publish_empty(state)
    before = Files.read(state.files, INDEX)
    late = publish_empty(state)
    state.files.replace(INDEX, before)
    assert state.find_index_errors() == [f"{state.files.root}/{INDEX} lacks the run sales/live_files/run_date=2026-03-14/{late}"]
    assert state.repair() == [INDEX]
    assert late in run_ids(state)
    assert state.find_index_errors() == []


def test_a_repair_keeps_a_run_that_is_about_to_publish(state: State) -> None:
    assert process(state, "1", "_receipt.json").wait() == -9
    before = Files.read(state.files, INDEX)
    assert state.repair() == []
    assert Files.read(state.files, INDEX) == before


def test_a_receipt_other_than_the_one_that_was_indexed_is_not_opened(on_disk: State) -> None:
    publish_empty(on_disk)
    (run,) = on_disk.history("sales", "live_files")
    path = f"{run.path}/_receipt.json"
    on_disk.files.replace(path, on_disk.files.read(path).replace(b'"rows": 0', b'"rows": 1'))
    with pytest.raises(StateError, match=r"is not the receipt that _index\.json names"):
        on_disk.open(run)


def test_pruned_runs_leave_the_index(state: State) -> None:
    old, kept = publish_empty(state), publish_empty(state)
    state.prune(0, Clock(NOW + timedelta(days=1)))
    assert run_ids(state) == [kept] != [old]
    assert state.find_index_errors() == []


def test_the_index_tells_what_a_headline_is_made_of(on_disk: State) -> None:
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


def test_the_newest_table_is_the_newest_that_became_current(state: State) -> None:
    publish_empty(state, day=date(2026, 3, 1))
    subprocess.run([sys.executable, "-m", "tests.state.publisher", state.files.root, "1", "current.json"], cwd=CHECKOUT, check=False)
    found = state.latest("sales", "live_files")
    assert found is not None
    assert found.receipt.run_date == date(2026, 3, 1)
