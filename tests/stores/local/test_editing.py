"""Conditional changes of single objects on a local disk. No writer's object is ever lost."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gc_assets.core.errors import ObjectChanged, StoreError
from gc_assets.stores.local import editing
from gc_assets.stores.local.editing import EditableLocalObjects
from gc_assets.stores.local.safe_paths import Entry
from tests.process_kills import PROCESSES
from tests.stores.builders import memory_directory

OBJECTS = EditableLocalObjects()
UNPRIVILEGED_UID = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "repo" / "snapshots" / "A"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"old")
    return path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def etag(path: Path) -> str:
    return OBJECTS.read_with_etag(f"file://{path}")[1]


def replace_as_other_writer(path: Path, content: bytes) -> None:
    """Rename a new file over the old one, like Icechunk's library."""
    staged = path.with_name("upload#1")
    staged.write_bytes(content)
    staged.rename(path)


def test_replaced_object_has_new_bytes_and_identity(file: Path):
    before = etag(file)
    OBJECTS.replace(f"file://{file}", b"new", before)
    assert file.read_bytes() == b"new"
    assert etag(file) != before
    assert names(file) == ["A"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_replace_keeps_the_mode(file: Path, mode: int):
    file.chmod(mode)
    OBJECTS.replace(str(file), b"new", etag(file))
    assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_replace_keeps_the_owner(file: Path):
    os.chown(file, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    OBJECTS.replace(str(file), b"new", etag(file))
    assert (file.stat().st_uid, file.stat().st_gid) == (UNPRIVILEGED_UID, UNPRIVILEGED_UID)


@pytest.mark.parametrize("change", ["replace", "remove"])
def test_object_changed_by_another_writer_is_left_alone(file: Path, change: str):
    read = etag(file)
    replace_as_other_writer(file, b"theirs")
    with pytest.raises(ObjectChanged, match=r"A.*expected.*found"):
        OBJECTS.replace(str(file), b"mine", read) if change == "replace" else OBJECTS.remove(str(file), read)
    assert file.read_bytes() == b"theirs"
    assert names(file) == ["A"]


@pytest.mark.parametrize("change", ["replace", "remove", "read_with_etag"])
def test_replace_does_not_create_a_missing_object(file: Path, change: str):
    read = etag(file)
    file.unlink()
    arguments = {"replace": (b"mine", read), "remove": (read,), "read_with_etag": ()}[change]
    with pytest.raises(FileNotFoundError):
        getattr(OBJECTS, change)(str(file), *arguments)
    assert names(file) == []


def test_missing_directory_does_not_affect_the_working_directory(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "A").write_bytes(b"a stranger")
    for call in (lambda: OBJECTS.read_with_etag(str(tmp_path / "none" / "A")), lambda: OBJECTS.remove(str(tmp_path / "none" / "A"), "x")):
        with pytest.raises(FileNotFoundError):
            call()
    assert (tmp_path / "A").read_bytes() == b"a stranger"


def test_object_written_during_remove_is_put_back(file: Path, monkeypatch: pytest.MonkeyPatch):
    read = etag(file)
    run_after_step(monkeypatch, "require_etag", lambda: replace_as_other_writer(file, b"a commit"))
    with pytest.raises(ObjectChanged):
        OBJECTS.remove(str(file), read)
    assert file.read_bytes() == b"a commit"
    assert names(file) == ["A"]


def test_later_of_two_objects_written_during_remove_is_kept(file: Path, monkeypatch: pytest.MonkeyPatch):
    read = etag(file)
    run_after_step(monkeypatch, "require_etag", lambda: replace_as_other_writer(file, b"a commit"))
    before_putting_back = editing.put_back

    def put_back_after_commit(aside, place):
        replace_as_other_writer(file, b"the next commit")
        before_putting_back(aside, place)

    monkeypatch.setattr(editing, "put_back", put_back_after_commit)
    with pytest.raises(ObjectChanged):
        OBJECTS.remove(str(file), read)
    assert file.read_bytes() == b"the next commit"
    assert names(file) == ["A"]


def run_after_step(monkeypatch: pytest.MonkeyPatch, step: str, act) -> None:
    """Let another writer act right after a step."""
    real = getattr(editing, step)

    def step_and_act(*arguments):
        real(*arguments)
        act()

    monkeypatch.setattr(editing, step, step_and_act)


def test_object_written_during_replace_is_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch):
    read, real = etag(file), editing.write_staged

    def slow(*arguments, **named):
        real(*arguments, **named)
        replace_as_other_writer(file, b"theirs")

    monkeypatch.setattr(editing, "write_staged", slow)
    with pytest.raises(ObjectChanged):
        OBJECTS.replace(str(file), b"mine", read)
    assert file.read_bytes() == b"theirs"
    assert names(file) == ["A"]


def test_object_written_right_before_the_rename_is_put_back(file: Path, monkeypatch: pytest.MonkeyPatch):
    read, compared = etag(file), []

    def commit_after_the_last_comparison() -> None:
        compared.append(True)
        if len(compared) == 2:
            replace_as_other_writer(file, b"a commit")

    run_after_step(monkeypatch, "require_etag", commit_after_the_last_comparison)
    with pytest.raises(ObjectChanged):
        OBJECTS.replace(str(file), b"mine", read)
    assert file.read_bytes() == b"a commit"
    assert names(file) == ["A"]


def test_newest_of_two_objects_written_during_the_rename_is_kept(file: Path, monkeypatch: pytest.MonkeyPatch):
    read, real, commits = etag(file), Entry.exchange_with, [b"a commit", b"the next commit"]

    def exchange_after_commit(self: Entry, target: Entry) -> bool:
        if commits:
            replace_as_other_writer(file, commits.pop(0))
        return real(self, target)

    monkeypatch.setattr(Entry, "exchange_with", exchange_after_commit)
    with pytest.raises(ObjectChanged):
        OBJECTS.replace(str(file), b"mine", read)
    assert file.read_bytes() == b"the next commit"
    assert names(file) == ["A"]


def test_replace_does_not_wait_forever_for_a_lock(file: Path, monkeypatch: pytest.MonkeyPatch):
    """Any user who can read an object can lock it."""
    monkeypatch.setattr("gc_assets.core.file_locks.LOCK_SECONDS", 0.05)
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="locked by another process"):
            OBJECTS.replace(str(file), b"new", etag(file))
    OBJECTS.replace(str(file), b"new", etag(file))


def test_object_is_replaced_without_atomic_name_exchange(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Entry, "exchange_with", lambda *_: False)
    OBJECTS.replace(str(file), b"new", etag(file))
    assert file.read_bytes() == b"new"
    assert names(file) == ["A"]


def test_create_never_overwrites_an_object(file: Path):
    with pytest.raises(FileExistsError):
        OBJECTS.create(str(file), b"mine")
    assert file.read_bytes() == b"old"
    assert names(file) == ["A"]
    OBJECTS.create(str(file.with_name("B")), b"")
    assert file.with_name("B").read_bytes() == b""
    assert names(file) == ["A", "B"]


def test_create_makes_the_parent_directory(tmp_path: Path):
    (tmp_path / "refs").mkdir()
    OBJECTS.create(f"file://{tmp_path}/refs/branch.x/ref.json", b"{}")
    assert (tmp_path / "refs" / "branch.x" / "ref.json").read_bytes() == b"{}"


def test_created_directories_have_the_mode_of_the_parent(tmp_path: Path):
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs").chmod(0o2775)
    OBJECTS.create(f"file://{tmp_path}/refs/a/b/ref.json", b"{}", new_directories=2)
    assert {(tmp_path / name).stat().st_mode & 0o7777 for name in ("refs/a", "refs/a/b")} == {0o2775}


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_create_does_not_make_directories_on_an_unmounted_disk(tmp_path: Path, allowed: int):
    with pytest.raises(FileNotFoundError):
        OBJECTS.create(f"file://{tmp_path}/lake/refs/a/ref.json", b"{}", new_directories=allowed)
    assert not (tmp_path / "lake").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_directory_is_not_created_if_owner_cannot_be_set():
    with memory_directory() as base:
        base.chmod(0o777)
        with as_unprivileged_user(), pytest.raises(PermissionError):
            OBJECTS.create(f"file://{base}/refs/a/ref.json", b"{}", new_directories=2)
        assert not (base / "refs").exists()


@pytest.mark.parametrize("what", ["the object", "its directory"])
def test_change_through_a_symbolic_link_is_refused(tmp_path: Path, file: Path, what: str):
    target = tmp_path / "elsewhere"
    target.mkdir()
    read = etag(file)
    if what == "the object":
        file.rename(target / "A")
        file.symlink_to(target / "A")
    else:
        file.rename(target / "A")
        file.parent.rmdir()
        file.parent.symlink_to(target)
    for change in (lambda: OBJECTS.replace(str(file), b"mine", read), lambda: OBJECTS.remove(str(file), read)):
        with pytest.raises((OSError, StoreError)):
            change()
    assert (target / "A").read_bytes() == b"old"
    assert [entry.name for entry in target.iterdir()] == ["A"]


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Switch to another user, because root may write to every directory."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("change", ["replace", "remove", "create"])
def test_read_only_directory_is_not_changed(change: str):
    with memory_directory() as base:
        file = base / "snapshots" / "A"
        file.parent.mkdir()
        file.write_bytes(b"old")
        file.chmod(0o666)
        base.chmod(0o755)
        file.parent.chmod(0o555)
        read = etag(file)
        target = file.with_name("B") if change == "create" else file
        arguments = {"replace": (b"mine", read), "remove": (read,), "create": (b"mine",)}[change]
        with as_unprivileged_user(), pytest.raises(PermissionError):
            getattr(OBJECTS, change)(str(target), *arguments)
        assert file.read_bytes() == b"old"
        assert names(file) == ["A"]
        file.parent.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_file_is_not_replaced_if_owner_cannot_be_kept():
    with memory_directory() as base:
        file = base / "snapshots" / "A"
        file.parent.mkdir()
        file.write_bytes(b"old")
        file.chmod(0o666)
        for directory in (base, file.parent):
            directory.chmod(0o777)
        read = etag(file)
        with as_unprivileged_user(), pytest.raises(PermissionError):
            OBJECTS.replace(str(file), b"mine", read)
        assert file.read_bytes() == b"old"
        assert names(file) == ["A"]


def _replace_all(path: Path, number: int, start, answers) -> None:
    """Counts up the number in the file by reading and replacing it, again and again."""
    objects, done, refused = EditableLocalObjects(), 0, 0
    start.wait()
    while done < number:
        raw, identity = objects.read_with_etag(str(path))
        try:
            objects.replace(str(path), str(int(raw) + 1).encode(), identity)
        except ObjectChanged:
            refused += 1
        else:
            done += 1
    answers.put(refused)


def test_concurrent_replacements_are_not_lost():
    with memory_directory() as base:
        path = base / "snapshots" / "A"
        path.parent.mkdir()
        path.write_bytes(b"0")
        start, answers = PROCESSES.Barrier(2), PROCESSES.Queue()
        children = [PROCESSES.Process(target=_replace_all, args=(path, 200, start, answers)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(300)
        assert path.read_bytes() == b"400"
        assert names(path) == ["A"]
