"""Files under a root are complete or missing, never partial."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import fs

from gc_assets.core.errors import StateError, UsageError
from gc_assets.state.backend import ABSENT, FileStat, VersionedContent
from gc_assets.state.files import Files
from tests.state.s3_location import unused_location


@pytest.fixture(params=["disk", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    if request.param == "disk":
        yield Files(str(tmp_path / "state"))
    else:
        with unused_location() as (root, settings):
            yield Files(root, settings)


@pytest.mark.parametrize("root", ["{}", "{}/", "file://{}", "file://{}/", "file:{}"])
def test_root_spellings_are_equivalent(tmp_path: Path, root: str) -> None:
    files = Files(root.format(tmp_path / "state"))
    files.replace("a/b.json", b"{}")
    assert (tmp_path / "state" / "a" / "b.json").read_bytes() == b"{}"
    assert files.uri("a/b.json") == f"file://{tmp_path}/state/a/b.json"


def test_unknown_scheme_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"oss.*expected file:// or s3://"):
        Files("oss://bucket/state").read("a")


def test_replace_and_read_round_trip(files: Files) -> None:
    for content in (b"first", b"", b"\x00" * 100_000):
        files.replace("a", content)
        assert files.read("a") == content


def test_missing_file_raises(files: Files) -> None:
    for ask in (files.read, files.read_version, files.size, files.modified_at):
        for path in ("absent", "no such directory/absent"):
            with pytest.raises(FileNotFoundError):
                ask(path)
    with pytest.raises(FileNotFoundError):
        files.sizes(["absent"])


def test_listing_is_sorted_and_has_sizes(files: Files) -> None:
    for name in ("t/b", "t/a", "t/_side/c", "t2/d"):
        files.replace(name, name.encode())
    assert files.list("t") == [FileStat("a", 3), FileStat("b", 3)]
    assert files.list("t", recursive=True) == [FileStat("_side/c", 9), FileStat("a", 3), FileStat("b", 3)]
    assert files.directories("") == ["t", "t2"]
    assert files.directories("t") == ["_side"]
    assert files.sizes(["t2/d", "t/_side/c", "t/a"]) == [4, 9, 3]
    assert files.size("t/_side/c") == 9


def test_missing_directory_is_empty(files: Files) -> None:
    assert files.list("anything") == []
    assert files.directories("") == []


@pytest.mark.parametrize("folder", ["a b", "a%20b", "[a] {b} *", "été"])
def test_root_may_have_any_name(tmp_path: Path, folder: str) -> None:
    files = Files(str(tmp_path / folder))
    files.replace("x/y z", b"1")
    assert files.read("x/y z") == b"1"
    assert files.list("x") == [FileStat("y z", 1)]


def test_listing_follows_links(tmp_path: Path) -> None:
    """Arrow is the reference: it follows links and skips dangling ones."""
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


def test_listing_rejects_undecodable_name(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    with pytest.raises(StateError, match=r"state contains the name b.\\xff.json., which gc-assets does not write"):
        Files(str(tmp_path / "state")).list("")


def test_listing_skips_link_cycles(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("up", "and_up"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert [item.name for item in Files(str(tmp_path)).list("", recursive=True)] == ["file"]


def test_file_in_place_of_directory_raises(tmp_path: Path) -> None:
    files = Files(str(tmp_path / "state"))
    files.replace("a", b"")
    with pytest.raises(NotADirectoryError):
        files.list("a")
    assert list(files.list("a/b")) == []


def test_concurrent_reader_sees_complete_files(tmp_path: Path) -> None:
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


def test_failed_write_leaves_old_content(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    files.replace("t/old", b"old")
    with pytest.raises(OSError):  # noqa: PT011  (the name is longer than any file system takes; its words differ)
        files.replace("t/" + "x" * 300, b"new")
    with pytest.raises(OSError):  # noqa: PT011  (a directory stands where the file should go)
        files.replace("t", b"new")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["t", "old"]


def test_new_directories_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a sync of the parent directory, a power failure could lose the log of an apply."""
    synced: list[str] = []
    fsync = os.fsync

    def record_fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_fsync)
    Files(str(tmp_path)).replace("apply/plan/log.json", b"{}")
    directories = [str(path) for path in (tmp_path, tmp_path / "apply", tmp_path / "apply" / "plan")]
    assert [path for path in directories if path not in synced] == []


def test_verification_marks_are_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next apply makes its own verification mark. All other files are synced before a write
    returns.
    """
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


def test_delete_removes_only_given_path(files: Files) -> None:
    for name in ("t/a", "t/b", "t_2/a", "t/side/c"):
        files.replace(name, b"")
    files.delete("t/a")
    files.delete_directory("t/side")
    assert files.list("", recursive=True) == [FileStat("t/b", 0), FileStat("t_2/a", 0)]


def test_pickled_files_can_be_used(files: Files) -> None:
    files.replace("a", b"1")
    assert pickle.loads(pickle.dumps(files)).read("a") == b"1"  # noqa: S301  (our own bytes)


def test_replace_if_requires_current_version(files: Files) -> None:
    assert files.replace_if("a/b", b"first", None)
    assert not files.replace_if("a/b", b"again", None)
    content, version = files.read_version("a/b")
    assert content == b"first"
    assert files.replace_if("a/b", b"second", version)
    assert not files.replace_if("a/b", b"third", version)
    assert files.read("a/b") == b"second"


def test_replace_if_fails_for_deleted_file(files: Files) -> None:
    files.replace("a", b"first")
    version = files.read_version("a")[1]
    files.delete("a")
    assert not files.replace_if("a", b"second", version)
    with pytest.raises(FileNotFoundError):
        files.read_version("a")


def test_lock_that_another_process_keeps_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user who could read the state used to be able to stop every command, by keeping a lock."""
    monkeypatch.setattr("gc_assets.core.file_locks.LOCK_SECONDS", 0.05)
    files, lock = Files(str(tmp_path)), tmp_path / ".a.lock"
    lock.touch(0o644)  # as an older release made it
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StateError, match=r"/\.a\.lock: it has been locked by another process.*fuser"):
            files.replace_if("a", b"{}", None)
    assert lock.stat().st_mode & 0o777 == 0o600
    assert files.replace_if("a", b"{}", None) is not None


def test_only_one_of_concurrent_writers_succeeds(files: Files) -> None:
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


def test_read_contents_keep_order_of_paths(files: Files) -> None:
    names = [f"t/{number}" for number in (3, 1, 2, 0, 5, 4)]
    for name in names:
        files.replace(name, name.encode())
    assert [content.decode() for content in files.contents(names)] == names
    assert list(files.contents([])) == []
    with pytest.raises(FileNotFoundError):
        list(files.contents([*names, "t/absent"]))


def test_root_cannot_be_deleted(files: Files) -> None:
    files.replace("a", b"1")
    for nothing in ("", "/"):
        with pytest.raises(ValueError, match="root of the state"):
            files.delete_directory(nothing)
    assert files.read("a") == b"1"


def test_modified_at_is_time_of_write(files: Files) -> None:
    files.replace("a", b"")
    assert abs(files.modified_at("a") - datetime.now(UTC)) < timedelta(minutes=1)


def test_file_names_may_contain_any_characters(files: Files) -> None:
    names = sorted(["a b+c", "a%2Fb", "été", "e\u0301", "[a]{b}*?", "q=1&r", "tab\there"])
    for name in names:
        files.replace(f"t/{name}", name.encode())
    assert [item.name for item in files.list("t")] == names
    assert [content.decode() for content in files.contents([f"t/{name}" for name in names])] == names
    files.delete("t/a%2Fb")
    files.delete_directory("t")
    assert files.list("", recursive=True) == []


def test_change_is_retried_if_another_writer_was_faster(files: Files) -> None:
    def add(number: int) -> None:
        for _ in range(5):
            files.change("a", lambda before: (before or b"") + str(number).encode())

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(files.read("a").decode()) == sorted("0123" * 5)


def test_change_with_known_content_needs_no_read(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "read_version", lambda *_: pytest.fail("it was read again"))
    seen = files.change("a", lambda _: b"first", ABSENT)
    assert files.change("a", lambda before: (before or b"") + b" second", seen).content == b"first second"
    assert files.read("a") == b"first second"


def test_change_rereads_outdated_known_content(files: Files) -> None:
    seen = files.change("a", lambda _: b"1")
    files.replace("a", b"2")
    assert files.change("a", lambda before: (before or b"") + b"+", seen) == VersionedContent(*files.read_version("a"))
    assert files.read("a") == b"2+"
    files.change("a", lambda before: (before or b"") + b"+", ABSENT)
    assert files.read("a") == b"2++"
    files.delete("a")
    files.change("a", lambda before: (before or b"") + b"new", seen)
    assert files.read("a") == b"new"


def test_known_content_is_verified_even_if_unchanged(files: Files) -> None:
    seen = files.change("a", lambda _: b"wanted")
    files.replace("a", b"other")
    files.change("a", lambda _: b"wanted", seen)
    assert files.read("a") == b"wanted"


def test_condition_check_passes_on_local_files(files: Files) -> None:
    assert "one of several writers" in files.check_conditions()
    assert files.list("", recursive=True) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("write", ["replace", "replace_if", "change"])
def test_full_disk_error_reports_state_and_keeps_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, number: int
) -> None:
    files, root = Files(str(tmp_path / "state")), tmp_path / "state"
    files.replace("a/b.json", b"old")
    arguments = {"replace": [b"new"], "replace_if": [b"new", files.read_version("a/b.json")[1]], "change": [lambda _: b"new"]}

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StateError, match=f"Cannot write file://{root}/a/b.json: ") as error:
        getattr(files, write)("a/b.json", *arguments[write])
    assert f"The disk of the state {root} is full." in str(error.value)
    assert files.read("a/b.json") == b"old"
    assert [path.name for path in (root / "a").iterdir() if path.suffix == ".tmp"] == []


def test_other_write_errors_are_raised_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(FileExistsError):
        Files(str(tmp_path)).replace("a/b.json", b"")


def test_free_space_is_read_from_disk(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "not" / "yet"):
        free = Files(str(root)).free_bytes()
        assert free is not None
        assert 0 < free <= shutil.disk_usage(tmp_path).free * 2
    with unused_location() as (location, settings):
        assert Files(location, settings).free_bytes() is None
