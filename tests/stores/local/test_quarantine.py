"""The effect on one planned object, in both quarantine modes."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from gc_assets.core.errors import StoreError, UsageError
from gc_assets.stores.local.quarantine import open_quarantine
from gc_assets.stores.local.safe_paths import Entry
from tests.stores.builders import PLAN, contents, plan, trash, write


@pytest.fixture(params=["trash", "deferred"])
def mode(request):
    return request.param


def act(root: Path, mode, *batch, resumed=()):
    results = open_quarantine(mode, f"file://{root}/", PLAN).act(batch, resumed)
    return [result.verdict for result in results], [result.error for result in results]


def verdict(root: Path, mode, planned, resumed=()):
    return act(root, mode, planned, resumed=resumed)[0][0]


class TestTrash:
    def test_trash_keeps_key_and_restore_keeps_modification_time(self, tmp_path):
        key = "t/a b"
        write(tmp_path, key, b"precious")
        before, planned = contents(tmp_path), plan(tmp_path, key)
        assert verdict(tmp_path, "trash", planned) == "done"
        assert not (tmp_path / key).exists()
        assert trash(tmp_path, key).read_bytes() == b"precious"
        assert verdict(tmp_path, "trash", plan(tmp_path, key, "restore", etag=planned.etag)) == "done"
        assert contents(tmp_path) == before

    def test_trash_directories_are_private(self, tmp_path):
        write(tmp_path, "a/private/deep/file")
        (tmp_path / "a" / "private").chmod(0o700)
        (tmp_path / ".gc-assets").mkdir(mode=0o755)  # as releases before 0.4 made it
        assert verdict(tmp_path, "trash", plan(tmp_path, "a/private/deep/file")) == "done"
        own = tmp_path / ".gc-assets"
        modes = {str(path.relative_to(own)): path.stat().st_mode & 0o777 for path in (own, *own.rglob("*")) if path.is_dir()}
        expected = {".": 0o700, "trash": 0o700, f"trash/{PLAN}": 0o700}
        below = {"a": 0o755, "a/private": 0o700, "a/private/deep": 0o755}
        assert modes == expected | {f"trash/{PLAN}/{name}": mode for name, mode in below.items()}

    def test_restored_directory_keeps_mode_and_owner(self, tmp_path):
        write(tmp_path, "a/b/file")
        changed = {"a": 0o751, "a/b": 0o2770}
        owner = (1234, 4321) if os.getuid() == 0 else (os.getuid(), os.getgid())
        for name, mode in changed.items():
            os.chown(tmp_path / name, *owner)
            (tmp_path / name).chmod(mode)
        planned = plan(tmp_path, "a/b/file")
        assert verdict(tmp_path, "trash", planned) == "done"
        (tmp_path / "a" / "b").rmdir()
        (tmp_path / "a").rmdir()
        assert verdict(tmp_path, "trash", plan(tmp_path, "a/b/file", "restore", etag=planned.etag)) == "done"
        found = {name: (tmp_path / name).stat() for name in changed}
        assert {name: status.st_mode & 0o7777 for name, status in found.items()} == changed
        assert {(status.st_uid, status.st_gid) for status in found.values()} == {owner}

    def test_restored_directory_of_another_owner_stays_private(self, tmp_path, monkeypatch):
        write(tmp_path, "a/file")
        planned = plan(tmp_path, "a/file")
        (tmp_path / "a").chmod(0o2775)
        os.chown(tmp_path / "a", -1, 4321) if os.getuid() == 0 else pytest.skip("needs root, to make a directory of another group")

        def refuse(*_):
            raise PermissionError(errno.EPERM, "not yours")

        monkeypatch.setattr(os, "fchown", refuse)
        assert verdict(tmp_path, "trash", planned) == "done"
        assert trash(tmp_path, "a").stat().st_mode & 0o777 == 0o705

    def test_restore_never_overwrites_a_newer_file(self, tmp_path):
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        act(tmp_path, "trash", planned)
        write(tmp_path, "a", b"new")
        verdicts, errors = act(tmp_path, "trash", plan(tmp_path, "a", "restore", etag=planned.etag))
        assert verdicts == ["changed"]
        assert "another object" in errors[0]
        assert f".gc-assets/trash/{PLAN}/a" in errors[0]
        assert ((tmp_path / "a").read_bytes(), trash(tmp_path, "a").read_bytes()) == (b"new", b"old")

    def test_file_created_during_a_restore_is_not_overwritten(self, tmp_path, monkeypatch):
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        act(tmp_path, "trash", planned)
        real = os.link

        def link(*args, **kwargs):
            write(tmp_path, "a", b"new")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, "link", link)
        assert verdict(tmp_path, "trash", plan(tmp_path, "a", "restore", etag=planned.etag)) == "failed"
        assert ((tmp_path / "a").read_bytes(), trash(tmp_path, "a").read_bytes()) == (b"new", b"old")

    def test_restore_does_not_follow_or_replace_a_link_at_the_key(self, tmp_path):
        write(tmp_path, "live", b"live")
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        act(tmp_path, "trash", planned)
        (tmp_path / "a").symlink_to(tmp_path / "live")
        assert verdict(tmp_path, "trash", planned) == "done"
        assert verdict(tmp_path, "trash", plan(tmp_path, "a", "restore", etag=planned.etag)) == "denied"
        assert (tmp_path / "a").is_symlink()
        assert trash(tmp_path, "a").read_bytes() == b"old"

    def test_error_contains_the_location_of_a_misplaced_file(self, tmp_path, monkeypatch):
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        with monkeypatch.context() as patch:
            replace_at_rename(patch, tmp_path / "a", b"committed just now")
            patch.setattr(os, "link", raising(errno.EPERM))
            verdicts, errors = act(tmp_path, "trash", planned)
        assert verdicts == ["failed"]
        assert f".gc-assets/trash/{PLAN}/a" in errors[0]
        assert verdict(tmp_path, "trash", planned) == "changed"
        assert (tmp_path / "a").read_bytes() == b"committed just now"

    def test_restore_without_hard_links_reports_the_cause(self, tmp_path, monkeypatch):
        write(tmp_path, "a")
        planned = plan(tmp_path, "a")
        act(tmp_path, "trash", planned)
        monkeypatch.setattr(os, "link", raising(errno.EPERM))
        verdicts, errors = act(tmp_path, "trash", plan(tmp_path, "a", "restore", etag=planned.etag))
        assert verdicts == ["denied"]
        assert "lacks hard links" in errors[0]
        assert trash(tmp_path, "a").exists()

    def test_restore_creates_missing_directories(self, tmp_path):
        write(tmp_path, "t/deep/a", b"x")
        planned = plan(tmp_path, "t/deep/a")
        act(tmp_path, "trash", planned)
        (tmp_path / "t/deep").rmdir()
        (tmp_path / "t").rmdir()
        assert verdict(tmp_path, "trash", plan(tmp_path, "t/deep/a", "restore", etag=planned.etag)) == "done"
        assert (tmp_path / "t/deep/a").read_bytes() == b"x"

    def test_restore_interrupted_between_link_and_unlink_is_completed(self, tmp_path):
        write(tmp_path, "a")
        planned = plan(tmp_path, "a")
        act(tmp_path, "trash", planned)
        (tmp_path / "a").hardlink_to(trash(tmp_path, "a"))
        assert verdict(tmp_path, "trash", planned) == "failed"
        assert verdict(tmp_path, "trash", plan(tmp_path, "a", "restore")) == "done"
        assert list(contents(tmp_path)) == ["a"]

    def test_purge_removes_only_the_file_in_the_trash(self, tmp_path):
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        assert verdict(tmp_path, "trash", plan(tmp_path, "a", "purge")) == "absent"
        act(tmp_path, "trash", planned)
        write(tmp_path, "a", b"new")
        assert verdict(tmp_path, "trash", plan(tmp_path, "a", "purge", etag=planned.etag)) == "done"
        assert contents(tmp_path).keys() == {"a"}

    def test_object_changed_in_the_trash_is_not_purged(self, tmp_path):
        write(tmp_path, "a")
        planned = plan(tmp_path, "a")
        act(tmp_path, "trash", planned)
        trash(tmp_path, "a").write_bytes(b"CONTENT")
        for action in ("purge", "restore"):
            verdicts, (error,) = act(tmp_path, "trash", plan(tmp_path, "a", action, etag=planned.etag))
            assert verdicts == ["changed"]
            assert "`gc-assets adopt` records it as it is now" in error
        assert trash(tmp_path, "a").exists()

    @pytest.mark.parametrize("action", ["purge", "restore"])
    def test_trash_copy_of_another_size_counts_as_lost_and_is_left_alone(self, tmp_path, action):
        write(tmp_path, "a")
        planned = plan(tmp_path, "a")
        act(tmp_path, "trash", planned)
        trash(tmp_path, "a").write_bytes(b"cont")
        verdicts, (error,) = act(tmp_path, "trash", plan(tmp_path, "a", action, etag=planned.etag))
        assert verdicts == ["absent"]
        assert "is damaged (it has 4 B, expected 7 B)" in error
        assert "copy it to its key" in error
        assert trash(tmp_path, "a").read_bytes() == b"cont"

    def test_file_replaced_before_the_rename_is_moved_back(self, tmp_path, monkeypatch):
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        replace_at_rename(monkeypatch, tmp_path / "a", b"committed just now")
        assert verdict(tmp_path, "trash", planned) == "changed"
        assert {key: content for key, (content, _) in contents(tmp_path).items()} == {"a": b"committed just now"}

    def test_file_moved_by_an_abandoned_attempt_has_the_outcome_done(self, tmp_path, monkeypatch):
        """Otherwise the copy in the trash would not be recorded."""
        planned, look = plan(tmp_path, write(tmp_path, "a").name), Entry.identity

        def late(entry):
            if entry.key == "a" and (tmp_path / "a").exists():
                with monkeypatch.context() as quiet:
                    quiet.setattr(Entry, "identity", look)
                    assert verdict(tmp_path, "trash", planned) == "done"
            return look(entry)

        monkeypatch.setattr(Entry, "identity", late)
        assert verdict(tmp_path, "trash", planned, resumed=[planned]) == "done"
        assert trash(tmp_path, "a").exists()

    def test_replaced_file_is_moved_back_after_a_crash_after_rename(self, tmp_path):
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        (tmp_path / "a").unlink()
        write(tmp_path, f".gc-assets/trash/{PLAN}/a", b"committed just now")
        assert verdict(tmp_path, "trash", planned) == "changed"
        assert {key: content for key, (content, _) in contents(tmp_path).items()} == {"a": b"committed just now"}

    def test_replaced_file_is_moved_back_after_a_crash_after_link(self, tmp_path):
        write(tmp_path, "a", b"old")
        planned = plan(tmp_path, "a")
        (tmp_path / "a").unlink()
        write(tmp_path, "a", b"committed just now")
        trash(tmp_path, "a").parent.mkdir(parents=True)
        trash(tmp_path, "a").hardlink_to(tmp_path / "a")
        assert verdict(tmp_path, "trash", planned) == "changed"
        assert list(contents(tmp_path)) == ["a"]

    def test_trash_is_never_overwritten(self, tmp_path):
        write(tmp_path, "a", b"old")
        write(tmp_path, f".gc-assets/trash/{PLAN}/a", b"somebody's")
        before = contents(tmp_path)
        verdicts, errors = act(tmp_path, "trash", plan(tmp_path, "a"))
        assert verdicts == ["failed"]
        assert "decide which one to keep" in errors[0]
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    @pytest.mark.parametrize("call", ["mkdir", "rename"])
    def test_full_disk_fails_and_keeps_the_source(self, tmp_path, monkeypatch, call, number):
        write(tmp_path, "t/a")
        before, planned = contents(tmp_path), plan(tmp_path, "t/a")
        with monkeypatch.context() as patch:
            patch.setattr(os, call, raising(number))
            verdicts, errors = act(tmp_path, "trash", planned)
        assert verdicts == ["failed"]
        assert "apply the plan again" in errors[0]
        assert contents(tmp_path) == before
        assert verdict(tmp_path, "trash", planned) == "done"

    def test_different_file_system_is_denied_with_next_step(self, tmp_path, monkeypatch):
        write(tmp_path, "t/a")
        before, planned = contents(tmp_path), plan(tmp_path, "t/a")
        monkeypatch.setattr(os, "rename", raising(errno.EXDEV))
        verdicts, errors = act(tmp_path, "trash", planned)
        assert verdicts == ["denied"]
        assert "a different file system" in errors[0]
        assert "deferred" in errors[0]
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("number", [errno.EROFS, errno.ENAMETOOLONG])
    def test_error_that_retries_cannot_fix_is_denied(self, tmp_path, monkeypatch, number):
        write(tmp_path, "t/a")
        planned = plan(tmp_path, "t/a")
        monkeypatch.setattr(os, "rename", raising(number))
        assert verdict(tmp_path, "trash", planned) == "denied"

    def test_missing_permission_is_denied(self, tmp_path, monkeypatch):
        write(tmp_path, "t/a")
        planned = plan(tmp_path, "t/a")
        monkeypatch.setattr(os, "rename", raising(errno.EACCES))
        assert act(tmp_path, "trash", planned) == (["denied"], ["quarantine 't/a': Permission denied"])

    def test_trash_behind_a_link_is_denied(self, tmp_path):
        outside = tmp_path.parent / f"{tmp_path.name}-outside"
        outside.mkdir()
        write(tmp_path, "a")
        (tmp_path / ".gc-assets").symlink_to(outside)
        assert verdict(tmp_path, "trash", plan(tmp_path, "a")) == "denied"
        assert (tmp_path / "a").exists()
        assert list(outside.iterdir()) == []

    @pytest.mark.parametrize("action", ["purge", "restore"])
    @pytest.mark.parametrize("source", [None, "../..", "", ".", "a/b"])
    def test_purge_and_restore_require_the_id_of_the_quarantining_plan(self, tmp_path, action, source):
        write(tmp_path, "a")
        odd = type(plan(tmp_path, "a"))("a", action, 7, plan(tmp_path, "a").etag, None, source)
        assert verdict(tmp_path, "trash", odd) == "denied"


class TestDeferred:
    def test_deferred_quarantine_and_restore_move_nothing(self, tmp_path):
        write(tmp_path, "t/a")
        before = contents(tmp_path)
        for action in ("quarantine", "restore", "quarantine"):
            assert verdict(tmp_path, "deferred", plan(tmp_path, "t/a", action)) == "done"
        assert contents(tmp_path) == before

    def test_deferred_purge_removes_only_the_planned_object(self, tmp_path):
        write(tmp_path, "t/a")
        write(tmp_path, "t/b")
        assert verdict(tmp_path, "deferred", plan(tmp_path, "t/a", "purge")) == "done"
        assert list(contents(tmp_path)) == ["t/b"]

    def test_empty_directories_are_kept(self, tmp_path):
        write(tmp_path, "t/deep/a")
        act(tmp_path, "deferred", plan(tmp_path, "t/deep/a", "purge"))
        assert (tmp_path / "t/deep").is_dir()


class TestBoth:
    @pytest.mark.parametrize("how", ["new bytes", "same size, new time", "same bytes and time, new inode"])
    @pytest.mark.parametrize("action", ["quarantine", "purge"])
    def test_file_replaced_after_the_plan_is_left_alone(self, tmp_path, mode, how, action):
        path = write(tmp_path, "t/a", b"old")
        status, planned = path.stat(), plan(tmp_path, "t/a", action)
        if how == "new bytes":
            path.write_bytes(b"new and longer")
        elif how == "same size, new time":
            os.utime(path, ns=(0, status.st_mtime_ns + 1))
        else:
            path.rename(tmp_path / "kept-so-that-its-inode-is-taken")
            write(tmp_path, "t/a", b"old", status.st_mtime_ns)
        before = contents(tmp_path)
        verdicts, errors = act(tmp_path, mode, planned)
        in_trash = mode == "trash" and action == "purge"  # a purge looks in the empty trash
        assert verdicts == (["absent"] if in_trash else ["changed"])
        assert in_trash or planned.etag in errors[0]
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("way, action", [("trash", "quarantine"), *(("deferred", a) for a in ("quarantine", "purge", "restore"))])
    def test_key_that_became_a_link_is_denied(self, tmp_path, way, action):
        write(tmp_path, "live", b"live")
        write(tmp_path, "a")
        planned = plan(tmp_path, "a", action)
        (tmp_path / "a").unlink()
        (tmp_path / "a").symlink_to(tmp_path / "live")
        assert verdict(tmp_path, way, planned) == "denied"
        assert (tmp_path / "a").is_symlink()
        assert (tmp_path / "live").read_bytes() == b"live"

    def test_key_behind_a_link_is_denied(self, tmp_path, mode):
        write(tmp_path, "t/a")
        planned = plan(tmp_path, "t/a")
        (tmp_path / "t").rename(tmp_path.parent / f"{tmp_path.name}-moved")
        (tmp_path / "t").symlink_to(tmp_path.parent / f"{tmp_path.name}-moved")
        verdicts, errors = act(tmp_path, mode, planned)
        assert verdicts == ["denied"]
        assert "path contains 't'" in errors[0]
        assert (tmp_path / "t/a").exists()

    @pytest.mark.parametrize(
        "key", ["../live", "t/../../live", "/etc/hostname", "t//a", "./t/a", "t/a/", "", "a\0b", ".gc-assets/lease.json", ".gc-assets"]
    )
    def test_key_outside_the_root_is_denied(self, tmp_path, mode, key):
        root = tmp_path / "root"
        write(root, "t/a")
        live = write(tmp_path, "live")
        good = plan(root, "t/a")
        for action in ("quarantine", "purge", "restore"):
            assert verdict(root, mode, type(good)(key, action, 7, good.etag, None, PLAN)) == "denied"
        assert live.exists()
        assert list(contents(root)) == ["t/a"]

    def test_directory_is_never_quarantined(self, tmp_path, mode):
        write(tmp_path, "t/a")
        planned = plan(tmp_path, "t/a")
        odd = type(planned)("t", "quarantine", 7, planned.etag)
        verdicts, errors = act(tmp_path, mode, odd)
        assert verdicts == ["changed"]
        assert "a directory" in errors[0]
        assert (tmp_path / "t/a").exists()

    def test_keys_under_a_file_have_the_outcome_absent(self, tmp_path, mode):
        write(tmp_path, "t/a")
        planned = plan(tmp_path, "t/a")
        (tmp_path / "t/a").unlink()
        (tmp_path / "t").rmdir()
        write(tmp_path, "t")
        assert verdict(tmp_path, mode, planned) == "absent"

    def test_row_without_etag_or_with_version_is_denied(self, tmp_path, mode):
        write(tmp_path, "a")
        good = plan(tmp_path, "a")
        rows = [type(good)("a", "quarantine", 7, None), type(good)("a", "quarantine", 7, good.etag, "v1")]
        assert act(tmp_path, mode, *rows)[0] == ["denied"] * 2
        assert (tmp_path / "a").exists()

    def test_one_failed_key_does_not_stop_the_others(self, tmp_path, mode):
        write(tmp_path, "a")
        write(tmp_path, "b")
        good = plan(tmp_path, "b")
        batch = [type(good)("../x", "quarantine", 7, good.etag), type(good)("gone", "quarantine", 7, good.etag), plan(tmp_path, "a"), good]
        assert act(tmp_path, mode, *batch)[0] == ["denied", "absent", "done", "done"]

    def test_missing_storage_fails_every_key(self, tmp_path, mode):
        write(tmp_path, "root/a")
        planned = plan(tmp_path / "root", "a")
        assert verdict(tmp_path / "unmounted", mode, planned) == "failed"


def test_versioned_quarantine_is_refused_on_a_local_disk(tmp_path):
    with pytest.raises(UsageError, match=r"`quarantine: versioned` needs object versions"):
        open_quarantine("versioned", str(tmp_path), PLAN)


@pytest.mark.parametrize("plan_id", ["", "..", "a/b", ".", "a b"])
def test_plan_id_that_is_not_a_valid_directory_name_is_refused(tmp_path, plan_id):
    with pytest.raises(UsageError, match="plan id"):
        open_quarantine("trash", str(tmp_path), plan_id)


def test_location_of_another_store_is_refused():
    with pytest.raises(StoreError, match="s3://"):
        open_quarantine("trash", "s3://bucket/", PLAN)


@pytest.fixture
def mounted(tmp_path):
    """A tmpfs of 64 KiB below the storage's root; skips where mounting is not permitted."""
    target = tmp_path / "root"
    target.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=12", "tmpfs", str(target)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no permission to mount: {done.stderr.decode().strip()}")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_full_disk_loses_no_file(mounted):
    for number in range(7):
        write(mounted, f"t{number}", b"x" * 4096)
    before = contents(mounted)
    rows = [plan(mounted, key) for key in before]
    for number in range(4):  # root, seven files and these take all inodes: no directory can be made
        (mounted / f"filler{number}").touch()
    verdicts, errors = act(mounted, "trash", *rows)
    assert verdicts == ["failed"] * 7
    assert "the disk is full" in errors[0]
    assert {key: value for key, value in contents(mounted).items() if key in before} == before


def test_file_on_a_mount_under_the_root_is_refused(mounted):
    root = mounted.parent
    write(mounted, "a", b"live")
    verdicts, errors = act(root, "trash", plan(root, "root/a"))
    assert verdicts == ["denied"]
    assert "a different file system" in errors[0]
    assert (mounted / "a").read_bytes() == b"live"
    assert verdict(root, "deferred", plan(root, "root/a", "purge")) == "done"


def raising(number: int):
    def call(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return call


def replace_at_rename(monkeypatch, path: Path, content: bytes) -> None:
    real = os.rename

    def rename(*args, **kwargs):
        path.unlink()
        path.write_bytes(content)
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "rename", rename)
