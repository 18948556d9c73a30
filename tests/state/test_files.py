"""Whole files below a root: there or not there, never half."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import pytest
from pyarrow import fs

from gc_assets.core.errors import UsageError
from gc_assets.state.files import Files, FileStat


@pytest.mark.parametrize("root", ["{}", "{}/", "file://{}", "file://{}/", "file:{}"])
def test_a_root_is_one_place_however_it_is_spelled(tmp_path: Path, root: str) -> None:
    files = Files(root.format(tmp_path / "state"))
    files.replace("a/b.json", b"{}")
    assert (tmp_path / "state" / "a" / "b.json").read_bytes() == b"{}"
    assert files.uri("a/b.json") == f"file://{tmp_path}/state/a/b.json"


def test_a_root_on_an_unknown_store_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=r"gs.*file:// and s3a:// are known"):
        Files("gs://bucket/state").read("a")


def test_what_was_put_reads_back_and_replaces_what_was_there(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    for content in (b"first", b"", b"\x00" * 100_000):
        files.replace("a", content)
        assert files.read("a") == content


def test_an_absent_file_is_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Files(str(tmp_path)).read("absent")
    with pytest.raises(FileNotFoundError):
        Files(str(tmp_path / "no such state")).read("absent")


def test_a_listing_gives_names_and_sizes_in_order_without_directories(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    for name in ("t/b", "t/a", "t/_side/c", "t2/d"):
        files.replace(name, name.encode())
    assert files.list("t") == [FileStat("a", 3), FileStat("b", 3)]
    assert files.list("t", recursive=True) == [FileStat("_side/c", 9), FileStat("a", 3), FileStat("b", 3)]
    assert files.directories("") == ["t", "t2"]
    assert files.directories("t") == ["_side"]


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    files = Files(str(tmp_path / "lost"))
    assert files.list("anything") == []
    assert files.directories("") == []


@pytest.mark.parametrize("folder", ["a b", "a%20b", "[a] {b} *", "été"])
def test_a_root_may_have_any_name(tmp_path: Path, folder: str) -> None:
    files = Files(str(tmp_path / folder))
    files.replace("x/y z", b"1")
    assert files.read("x/y z") == b"1"
    assert files.list("x") == [FileStat("y z", 1)]


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


def test_deleting_takes_the_named_file_or_directory_and_nothing_beside_it(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    for name in ("t/a", "t/b", "t_2/a", "t/side/c"):
        files.replace(name, b"")
    files.delete("t/a")
    files.delete_directory("t/side")
    assert files.list("", recursive=True) == [FileStat("t/b", 0), FileStat("t_2/a", 0)]


def test_files_travel_to_executors(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    files.replace("a", b"1")
    assert pickle.loads(pickle.dumps(files)).read("a") == b"1"  # noqa: S301  (our own bytes)


def test_a_file_is_replaced_only_at_the_version_that_was_read(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    assert files.replace_if("a/b", b"first", None)
    assert not files.replace_if("a/b", b"again", None)
    content, version = files.read_version("a/b")
    assert content == b"first"
    assert files.replace_if("a/b", b"second", version)
    assert not files.replace_if("a/b", b"third", version)
    assert files.read("a/b") == b"second"


def test_a_file_that_went_is_not_at_the_version_that_was_read(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    files.replace("a", b"first")
    version = files.read_version("a")[1]
    files.delete("a")
    assert not files.replace_if("a", b"second", version)
    with pytest.raises(FileNotFoundError):
        files.read_version("a")


def test_of_writers_at_one_version_one_succeeds(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
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


def test_a_store_that_cannot_replace_conditionally_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somewhere = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(Files, "_open", lambda _: (somewhere, ""))
    with pytest.raises(UsageError, match="only there can a file be replaced conditionally"):
        Files("s3://bucket/state").replace_if("a", b"", None)
