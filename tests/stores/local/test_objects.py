"""Addresses of local disks, and complete reads of them."""

from __future__ import annotations

import errno
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gc_assets.core.errors import StoreError
from gc_assets.stores.local.editing import EditableLocalObjects
from gc_assets.stores.local.objects import LocalObjects, etag_of, identity, local_path
from tests.stores.builders import write

OBJECTS = LocalObjects()


@pytest.mark.parametrize("address", ["/data/a b", "file:/data/a b", "file:///data/a b", "FILE:///data/a b", "file://localhost/data/a b"])
def test_all_spellings_of_a_local_address_give_one_path(address):
    assert local_path(address) == "/data/a b"


def test_percent_signs_are_not_decoded():
    assert local_path("file:///data/a%20b") == "/data/a%20b"


@pytest.mark.parametrize("address", ["s3://bucket/key", "s3a://bucket/key", "hdfs:///x", "relative/path", "file:relative", "", "/a\0b"])
def test_nonlocal_address_is_refused(address):
    with pytest.raises(StoreError, match="not on a local disk"):
        local_path(address)


def test_file_url_of_another_host_is_refused():
    with pytest.raises(StoreError, match="'nas'"):
        local_path("file://nas/data/x")


@pytest.mark.parametrize("name", ["plain", "a%20b", "a b", "new\nline", "e\u0301-nfd", "\u00e9-nfc", "a#b", "a?b"])
def test_read_and_size_do_not_decode_names(tmp_path, name):
    write(tmp_path, name, b"12345")
    address = f"file://{tmp_path}/{name}"
    assert OBJECTS.read(address) == b"12345"
    assert OBJECTS.size(address) == 5


def test_directory_is_not_an_object(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a regular file"):
        OBJECTS.size(str(tmp_path))
    with pytest.raises(OSError, match="directory"):
        OBJECTS.read(str(tmp_path))


@pytest.mark.parametrize("read", [OBJECTS.read, EditableLocalObjects().read_with_etag])
def test_fifo_or_device_raises_without_blocking(tmp_path, read):
    os.mkfifo(tmp_path / "manifest.avro")
    with pytest.raises(OSError, match="expected a regular file"):
        read(str(tmp_path / "manifest.avro"))
    if read == OBJECTS.read:  # an edit follows no link
        (tmp_path / "endless.avro").symlink_to("/dev/zero")
        with pytest.raises(OSError, match="expected a regular file"):
            read(str(tmp_path / "endless.avro"))


def test_file_larger_than_any_metadata_is_not_read(tmp_path):
    path = write(tmp_path, "manifest.avro")
    os.truncate(path, 2**40)
    with pytest.raises(OSError, match="at most 1,073,741,824 bytes, found 1,099,511,627,776"):
        OBJECTS.read(str(path))


def test_listed_addresses_use_the_spelling_of_the_prefix(tmp_path):
    write(tmp_path, "t/a", b"1", 1_600_000_000_000_001_999)
    write(tmp_path, "t/deep/b%20", b"22")
    write(tmp_path, "t_2/c")
    found = sorted(OBJECTS.list(f"file:{tmp_path}/t/"))
    assert [(address, size) for address, size, _ in found] == [(f"file:{tmp_path}/t/a", 1), (f"file:{tmp_path}/t/deep/b%20", 2)]
    assert found[0][2] == datetime(2020, 9, 13, 12, 26, 40, 1, tzinfo=UTC)


def test_list_skips_the_reserved_prefix(tmp_path):
    write(tmp_path, ".gc-assets/trash/p/snapshots/x")
    write(tmp_path, "snapshots/.gc-assets/y")
    assert [address for address, _, _ in OBJECTS.list(f"{tmp_path}/")] == [f"{tmp_path}/snapshots/.gc-assets/y"]


def test_list_raises_for_a_symbolic_link(tmp_path):
    write(tmp_path, "elsewhere/branch.main")
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/branch.main").symlink_to(tmp_path / "elsewhere/branch.main")
    with pytest.raises(StoreError, match=r"refs/branch\.main.*symbolic link"):
        list(OBJECTS.list(f"{tmp_path}/refs/"))


def test_list_raises_for_a_socket(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(StoreError, match="socket"):
            list(OBJECTS.list(f"{tmp_path}/"))


def test_list_raises_for_a_non_utf8_name(tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).write_bytes(b"")
    with pytest.raises(StoreError, match=r"caf\\xe9.*not UTF-8"):
        list(OBJECTS.list(f"{tmp_path}/"))


def test_list_raises_for_an_unreadable_directory(tmp_path, monkeypatch):
    write(tmp_path, "ok/a")
    write(tmp_path, "closed/b")
    real = os.scandir

    def deny(path):
        if b"closed" in path:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(PermissionError, match="closed"):
        list(OBJECTS.list(f"{tmp_path}/"))


def test_identity_follows_links_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "broken").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    assert identity(f"file://{tmp_path}/link") == identity(f"{file}") == etag_of(file.stat())
    impossible = [f"{tmp_path}/loop", f"{tmp_path}/loop/below", f"{tmp_path}/{'n' * 300}"]
    for nothing in (*impossible, f"{tmp_path}/broken", f"{tmp_path}", f"{file}/below", "s3://bucket/file", "wasbs://c@a/file"):
        assert identity(nothing) is None


def test_address_with_null_byte_has_no_identity() -> None:
    assert identity("file:///a\0b") is None


def test_identity_raises_for_a_file_that_cannot_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "stat", deny)
    with pytest.raises(StoreError, match=r"/private/file: Permission denied.*repair the link"):
        identity("file:///private/file")
