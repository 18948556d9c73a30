"""Directories of storages with two paths, from the kernel's mount tables of real machines."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gc_assets.core.deadline import run_with_deadline
from gc_assets.stores.local import mounts
from gc_assets.stores.local.editing import EditableLocalObjects
from gc_assets.stores.local.mounts import find_mounted_aliases, find_path_aliases, find_slow_mounts, parse_mounts
from gc_assets.stores.store import describe_directory

ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"
TMPFS = "25 27 0:23 / /data/tmp rw - tmpfs tmpfs rw"


def names(table: str, **roots: str) -> list[tuple[str, str]]:
    return [(found.path, found.other_path) for found in find_path_aliases(parse_mounts(table), roots)]


def test_bind_mount_of_another_storage_is_an_alias() -> None:
    table = f"{ROOT}\n40 27 254:0 /data/b/x /data/a/mnt rw - ext4 /dev/vda rw"
    assert names(table, a="/data/a/", b="/data/b/") == [("/data/b/x", "/data/a/mnt")]


def test_bind_mount_within_one_storage_is_an_alias() -> None:
    table = f"{ROOT}\n40 27 254:0 /data/a/x /data/a/y rw - ext4 /dev/vda rw"
    assert names(table, a="/data/a/") == [("/data/a/x", "/data/a/y")]


def test_storage_on_a_bind_mount_is_an_alias() -> None:
    table = f"{ROOT}\n40 27 254:0 /data/b/x /mnt/a rw - ext4 /dev/vda rw"
    assert names(table, a="/mnt/a/lake/", b="/data/b/") == [("/data/b/x/lake", "/mnt/a/lake")]


def test_file_system_mounted_twice_is_an_alias() -> None:
    table = f"{ROOT}\n40 27 8:1 / /mnt/one rw - xfs /dev/sda1 rw\n41 27 8:1 / /mnt/two rw - xfs /dev/sda1 rw"
    assert names(table, a="/mnt/one/", b="/mnt/two/lake/") == [("/mnt/one/lake", "/mnt/two/lake")]


def test_network_export_mounted_twice_is_an_alias() -> None:
    table = f"{ROOT}\n40 27 0:50 / /mnt/one rw - nfs4 nas:/export rw\n41 27 0:51 / /mnt/two rw - nfs4 nas:/export/b rw"
    assert names(table, a="/mnt/one/", b="/mnt/two/") == [("/mnt/one/b", "/mnt/two")]
    other = f"{ROOT}\n40 27 0:50 / /mnt/one rw - nfs4 nas:/export rw\n41 27 0:51 / /mnt/two rw - nfs4 other:/export rw"
    assert names(other, a="/mnt/one/", b="/mnt/two/") == []
    share = f"{ROOT}\n40 27 0:50 / /mnt/one rw - cifs //nas/s rw\n41 27 0:51 /d /mnt/two rw - cifs //nas/s rw"
    assert names(share, a="/mnt/one/", b="/mnt/two/") == [("/mnt/one/d", "/mnt/two")]


@pytest.mark.parametrize(
    "mounts",
    [
        "",
        TMPFS,
        "40 27 0:23 / /data/a/tmp rw - tmpfs tmpfs rw\n41 27 0:24 / /data/b/tmp rw - tmpfs tmpfs rw",
        "40 27 254:0 /data /data rw shared:1 - ext4 /dev/vda rw",
        "40 27 254:0 /data/a /data/a rw - ext4 /dev/vda rw",
        "40 27 254:0 /data/a/x /data/a/x rw - ext4 /dev/vda rw",
        "40 27 254:0 /other /data/a/mnt rw - ext4 /dev/vda rw",
        "40 27 254:0 /data/a/x /srv/x rw - ext4 /dev/vda rw",
        "40 27 254:0 /var/hosts /etc/hosts rw - ext4 /dev/vda rw",
        "40 27 254:0 /data/b /data/a/mnt rw - ext4 /dev/vda rw\n41 40 0:23 / /data/a/mnt rw - tmpfs tmpfs rw",
    ],
)
def test_unrelated_mounts_are_not_aliases(mounts: str) -> None:
    assert names(f"{ROOT}\n{mounts}".strip(), a="/data/a/", b="/data/b/") == []


def test_mount_table_with_escaped_names_is_parsed() -> None:
    table = f"{ROOT}\n40 27 254:0 /data/my\\040b /data/a/mnt rw - ext4 /dev/vda rw"
    assert names(table, b="/data/my b/", a="/data/a/") == [("/data/my b", "/data/a/mnt")]
    assert names(table, all="/") == [("/data/my b", "/data/a/mnt")]


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    for name in ("a/mnt", "b/x"):
        (tmp_path / name).mkdir(parents=True)
    done = subprocess.run(["mount", "--bind", tmp_path / "b/x", tmp_path / "a/mnt"], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("only root may mount; the recorded tables cover the same")
    yield tmp_path
    subprocess.run(["umount", tmp_path / "a/mnt"], check=True)


def test_visible_bind_mount_is_found_but_a_hidden_one_is_not(bound: Path) -> None:
    storages = [(name, f"file://{bound}/{name}/") for name in ("a", "b")]
    found = find_mounted_aliases(storages)
    assert [(item.path, item.other_path) for item in found] == [(f"{bound}/b/x", f"{bound}/a/mnt")]
    assert find_mounted_aliases(storages[:1]) == []
    subprocess.run(["mount", "-t", "tmpfs", "none", bound / "b"], check=True)
    try:
        (bound / "b" / "x").mkdir()
        assert find_mounted_aliases(storages) == []
    finally:
        subprocess.run(["umount", bound / "b"], check=True)


def test_inodes_are_comparable_on_one_device_or_between_local_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other file system may show a directory of a disk under its own inode numbers."""
    other, kind = "/dev/shm", "tmpfs"  # noqa: S108
    monkeypatch.setattr(mounts, "read_mount_types", lambda: [(other, kind), ("", "ext4")])
    (tmp_path / "link").symlink_to(other)
    pairs = [(str(tmp_path), "/"), (str(tmp_path), other), (str(tmp_path / "link"), str(tmp_path))]
    assert [mounts.has_same_inodes(*pair) for pair in pairs] == [True, True, True]
    for kind in ("fuse.sshfs", "nfs4", "overlay", "unknown"):
        assert [mounts.has_same_inodes(*pair) for pair in pairs] == [True, False, False], kind
    assert not mounts.has_same_inodes(str(tmp_path / "missing"), str(tmp_path))


def test_only_remote_file_systems_may_hang() -> None:
    table = "\n".join(
        [
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
            "23 22 0:40 / /data rw - nfs4 host:/export rw",
            "24 23 0:41 / /data/fast rw - tmpfs tmpfs rw",
            "25 22 0:42 / /mnt/s3\\040here rw - fuse.s3fs s3fs rw",
        ]
    )
    found = find_slow_mounts(table)
    assert found == [("/mnt/s3 here", True), ("/data/fast", False), ("/data", True), ("", False)]


@pytest.fixture
def hanging_mount(tmp_path: Path) -> Iterator[Path]:
    """A mount whose server never answers, like that of a dead NFS server."""
    point = tmp_path / "hung"
    point.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("this machine has no /dev/fuse that we may open")
    if libc.mount(b"hung", os.fsencode(point), b"fuse", 0, f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()):
        os.close(server)
        pytest.skip("only root may mount")
    mounts.read_slow_mounts.cache_clear()
    yield point
    libc.umount2(os.fsencode(point), 2)  # MNT_DETACH
    os.close(server)
    mounts.read_slow_mounts.cache_clear()


@pytest.mark.parametrize("read", ["read", "read_with_etag"])
def test_read_from_a_hanging_mount_raises_timeout_with_the_address(hanging_mount: Path, read: str) -> None:
    objects = EditableLocalObjects(read_seconds=0.3)
    with pytest.raises(TimeoutError, match=r"no complete answer in 0\.3 s .*/hung/manifest"):
        getattr(objects, read)(f"file://{hanging_mount}/manifest")
    assert not mounts.may_hang(str(hanging_mount.parent)), "a disk of this machine is read without a thread"


@pytest.mark.parametrize("has_buckets", [True, False])
def test_directory_in_a_network_mount_is_classified_without_reading_it(hanging_mount: Path, has_buckets: bool) -> None:
    directory, disk = f"{hanging_mount}/table/data", str(hanging_mount.parent)
    found = run_with_deadline(2, directory, lambda: describe_directory(directory, has_buckets=has_buckets, disks=(disk,)))
    assert (found or "").startswith("a network or FUSE mount")
