"""Whole files below a root: there or not there, never half."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import fs

from gc_assets.core.errors import StateError, UsageError
from gc_assets.state.backend import ABSENT, FileStat, VersionedContent
from gc_assets.state.files import Files
from tests.state.s3_place import place


@pytest.fixture(params=["disk", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    if request.param == "disk":
        yield Files(str(tmp_path / "state"))
    else:
        with place() as (root, settings):
            yield Files(root, settings)


@pytest.mark.parametrize("root", ["{}", "{}/", "file://{}", "file://{}/", "file:{}"])
def test_a_root_is_one_place_however_it_is_spelled(tmp_path: Path, root: str) -> None:
    files = Files(root.format(tmp_path / "state"))
    files.replace("a/b.json", b"{}")
    assert (tmp_path / "state" / "a" / "b.json").read_bytes() == b"{}"
    assert files.uri("a/b.json") == f"file://{tmp_path}/state/a/b.json"


def test_a_root_on_an_unknown_store_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=r"gs.*file:// and s3:// are known"):
        Files("gs://bucket/state").read("a")


def test_what_was_put_reads_back_and_replaces_what_was_there(files: Files) -> None:
    for content in (b"first", b"", b"\x00" * 100_000):
        files.replace("a", content)
        assert files.read("a") == content


def test_an_absent_file_is_not_an_empty_one(files: Files) -> None:
    for ask in (files.read, files.read_version, files.size, files.modified_at):
        for path in ("absent", "no such directory/absent"):
            with pytest.raises(FileNotFoundError):
                ask(path)
    with pytest.raises(FileNotFoundError):
        files.sizes(["absent"])


def test_a_listing_gives_names_and_sizes_in_order_without_directories(files: Files) -> None:
    for name in ("t/b", "t/a", "t/_side/c", "t2/d"):
        files.replace(name, name.encode())
    assert files.list("t") == [FileStat("a", 3), FileStat("b", 3)]
    assert files.list("t", recursive=True) == [FileStat("_side/c", 9), FileStat("a", 3), FileStat("b", 3)]
    assert files.directories("") == ["t", "t2"]
    assert files.directories("t") == ["_side"]
    assert files.sizes(["t2/d", "t/_side/c", "t/a"]) == [4, 9, 3]
    assert files.size("t/_side/c") == 9


def test_a_directory_that_is_not_there_is_empty(files: Files) -> None:
    assert files.list("anything") == []
    assert files.directories("") == []


@pytest.mark.parametrize("folder", ["a b", "a%20b", "[a] {b} *", "été"])
def test_a_root_may_have_any_name(tmp_path: Path, folder: str) -> None:
    files = Files(str(tmp_path / folder))
    files.replace("x/y z", b"1")
    assert files.read("x/y z") == b"1"
    assert files.list("x") == [FileStat("y z", 1)]


def test_a_disk_is_listed_through_its_links_as_arrow_lists_it(tmp_path: Path) -> None:
    """Arrow is asked too: it follows links, and passes over those that lead nowhere."""
    root = tmp_path / "state"
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty").mkdir()
    (tmp_path / "beside").mkdir()
    for name, content in {"one": b"1", "a/two": b"22", "a/b/three": b"333", "../beside/four": b"4444"}.items():
        (root / name).write_bytes(content)
    for link, target in {"file": "a/two", "directory": "../beside", "nowhere": "none", "through_a_file": "one/none"}.items():
        (root / link).symlink_to(target)
    os.mkfifo(root / "pipe")
    disk, files = fs.LocalFileSystem(), Files(str(root))
    for recursive in (False, True):
        infos = disk.get_file_info(fs.FileSelector(str(root), recursive=recursive))
        of_arrow = sorted((os.path.relpath(info.path, root), info.size) for info in infos if info.type == fs.FileType.File)
        assert [(item.name, item.size_bytes) for item in files.list("", recursive=recursive)] == of_arrow
    assert [item.name for item in files.list("", recursive=True)] == ["a/b/three", "a/two", "directory/four", "file", "one"]
    assert list(files.directories("")) == ["a", "directory", "empty"]


def test_a_listing_stops_at_a_name_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    with pytest.raises(StateError, match=r"state holds the name b'\\xff.json', which no run of gc-assets wrote"):
        Files(str(tmp_path / "state")).list("")


def test_links_to_themselves_and_upwards_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("up", "and_up"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert [item.name for item in Files(str(tmp_path)).list("", recursive=True)] == ["file"]


def test_what_stands_where_a_directory_is_expected_is_no_empty_directory(tmp_path: Path) -> None:
    files = Files(str(tmp_path / "state"))
    files.replace("a", b"")
    with pytest.raises(NotADirectoryError):
        files.list("a")
    assert list(files.list("a/b")) == []


def test_a_reader_beside_many_writers_sees_whole_files_only(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    contents = [bytes([number]) * 200_000 for number in range(4)]
    files.replace("pointer", contents[0])
    done = threading.Event()

    def write() -> None:
        for _ in range(10):
            for content in contents:
                files.replace("pointer", content)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = {files.read("pointer")}
    while not done.is_set():
        seen.add(files.read("pointer"))
    writer.join()
    assert seen <= set(contents)


def test_a_write_that_fails_leaves_the_old_content_and_no_scraps(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    files.replace("t/old", b"old")
    with pytest.raises(OSError):  # noqa: PT011  (the name is longer than any file system takes; its words differ)
        files.replace("t/" + "x" * 300, b"new")
    with pytest.raises(OSError):  # noqa: PT011  (a directory stands where the file should go)
        files.replace("t", b"new")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["t", "old"]


def test_a_file_in_new_directories_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory's name lies in its parent: unless that is on the disk too, the log of an apply can vanish with the power."""
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    Files(str(tmp_path)).replace("apply/plan/log.json", b"{}")
    directories = [str(path) for path in (tmp_path, tmp_path / "apply", tmp_path / "apply" / "plan")]
    assert [path for path in directories if path not in synced] == []


def test_what_only_its_writer_reads_need_not_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fresh mark of an apply: the next apply makes its own. All else is on the disk before a write returns."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    files = Files(str(tmp_path))
    files.replace("_recheck/plan-1/sales/lake_refs/part", b"1")
    assert files.replace_if("_recheck/plan-1/sales/lake_refs/current.json", b"{}", None)
    assert (files.read("_recheck/plan-1/sales/lake_refs/part"), synced) == (b"1", [])
    for path in ("sales/_recheck/part", "_rechecked", "_recheck-2/part"):
        files.replace(path, b"1")
        assert synced, path
        synced.clear()


def test_deleting_takes_the_named_file_or_directory_and_nothing_beside_it(files: Files) -> None:
    for name in ("t/a", "t/b", "t_2/a", "t/side/c"):
        files.replace(name, b"")
    files.delete("t/a")
    files.delete_directory("t/side")
    assert files.list("", recursive=True) == [FileStat("t/b", 0), FileStat("t_2/a", 0)]


def test_files_travel_to_executors(files: Files) -> None:
    files.replace("a", b"1")
    assert pickle.loads(pickle.dumps(files)).read("a") == b"1"  # noqa: S301  (our own bytes)


def test_a_file_is_replaced_only_at_the_version_that_was_read(files: Files) -> None:
    assert files.replace_if("a/b", b"first", None)
    assert not files.replace_if("a/b", b"again", None)
    content, version = files.read_version("a/b")
    assert content == b"first"
    assert files.replace_if("a/b", b"second", version)
    assert not files.replace_if("a/b", b"third", version)
    assert files.read("a/b") == b"second"


def test_a_file_that_went_is_not_at_the_version_that_was_read(files: Files) -> None:
    files.replace("a", b"first")
    version = files.read_version("a")[1]
    files.delete("a")
    assert not files.replace_if("a", b"second", version)
    with pytest.raises(FileNotFoundError):
        files.read_version("a")


def test_of_writers_at_one_version_one_succeeds(files: Files) -> None:
    files.replace("a", b"")
    version, won = files.read_version("a")[1], list[int]()

    def write(number: int) -> None:
        if files.replace_if("a", str(number).encode(), version):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number).encode() for number in won] == [files.read("a")]


def test_many_files_are_read_in_the_order_in_which_they_are_asked_for(files: Files) -> None:
    names = [f"t/{number}" for number in (3, 1, 2, 0, 5, 4)]
    for name in names:
        files.replace(name, name.encode())
    assert [content.decode() for content in files.contents(names)] == names
    assert list(files.contents([])) == []
    with pytest.raises(FileNotFoundError):
        list(files.contents([*names, "t/absent"]))


def test_the_whole_state_is_no_directory_to_delete(files: Files) -> None:
    files.replace("a", b"1")
    for nothing in ("", "/"):
        with pytest.raises(ValueError, match="whole state"):
            files.delete_directory(nothing)
    assert files.read("a") == b"1"


def test_a_file_tells_when_it_was_written(files: Files) -> None:
    files.replace("a", b"")
    assert abs(files.modified_at("a") - datetime.now(UTC)) < timedelta(minutes=1)


def test_names_with_any_characters_are_kept_as_they_are(files: Files) -> None:
    names = sorted(["a b+c", "a%2Fb", "été", "e\u0301", "[a]{b}*?", "q=1&r", "tab\there"])
    for name in names:
        files.replace(f"t/{name}", name.encode())
    assert [item.name for item in files.list("t")] == names
    assert [content.decode() for content in files.contents([f"t/{name}" for name in names])] == names
    files.delete("t/a%2Fb")
    files.delete_directory("t")
    assert files.list("", recursive=True) == []


def test_a_change_is_made_again_on_what_another_process_wrote(files: Files) -> None:
    def add(number: int) -> None:
        for _ in range(5):
            files.change("a", lambda before: (before or b"") + str(number).encode())

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(files.read("a").decode()) == sorted("0123" * 5)


def test_who_saw_what_stands_there_changes_it_without_reading_it_again(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "read_version", lambda *_: pytest.fail("it was read again"))
    seen = files.change("a", lambda _: b"first", ABSENT)
    assert files.change("a", lambda before: (before or b"") + b" second", seen).content == b"first second"
    assert files.read("a") == b"first second"


def test_what_was_seen_and_is_there_no_more_is_read_again(files: Files) -> None:
    seen = files.change("a", lambda _: b"1")
    files.replace("a", b"2")
    assert files.change("a", lambda before: (before or b"") + b"+", seen) == VersionedContent(*files.read_version("a"))
    assert files.read("a") == b"2+"
    files.change("a", lambda before: (before or b"") + b"+", ABSENT)
    assert files.read("a") == b"2++"
    files.delete("a")
    files.change("a", lambda before: (before or b"") + b"new", seen)
    assert files.read("a") == b"new"


def test_what_was_seen_is_no_proof_that_nothing_is_to_be_done(files: Files) -> None:
    seen = files.change("a", lambda _: b"wanted")
    files.replace("a", b"other")
    files.change("a", lambda _: b"wanted", seen)
    assert files.read("a") == b"wanted"


def test_a_place_proves_that_one_of_several_writers_succeeds(files: Files) -> None:
    assert "one of several writers" in files.check_conditions()
    assert files.list("", recursive=True) == []
