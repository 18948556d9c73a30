"""The listing of a local storage contains everything once, for any tree and any division."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.core.errors import StoreError
from gc_assets.stores.listing import INVENTORY_SCHEMA
from gc_assets.stores.local import listing
from gc_assets.stores.local.listing import plan_listing
from gc_assets.stores.local.objects import etag_of
from tests.stores.builders import keys, list_completely, write


def oracle(root: Path) -> dict[str, str]:
    """Return every regular file with `find`, which shares no code with the listing."""
    out = subprocess.run(["find", str(root), "-type", "f", "-printf", r"%P\0"], capture_output=True, check=True).stdout
    names = [name.decode() for name in out.split(b"\0") if name]
    return {name: etag_of((root / name).lstat()) for name in names}


def test_row_contains_size_time_and_identity(tmp_path):
    path = write(tmp_path, "t/data/a.parquet", b"12345", 1_700_000_000_123_456_789)
    step = list_completely(tmp_path)
    assert step.objects.schema == INVENTORY_SCHEMA
    row = step.objects.to_pylist()[0]
    assert row["key"] == "t/data/a.parquet"
    assert row["size_bytes"] == 5
    assert row["last_modified"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert row["etag"] == f"5-1700000000123456789-{path.stat().st_ino}" == etag_of(path.stat())
    assert (row["source"], row["version_id"], row["storage_class"]) == ("listing", None, None)


def test_time_before_1970_is_rounded_down(tmp_path):
    write(tmp_path, "old", b"", -1)
    row = list_completely(tmp_path).objects.to_pylist()[0]
    assert row["last_modified"].isoformat() == "1969-12-31T23:59:59.999999+00:00"


def test_location_may_be_a_file_url(tmp_path):
    write(tmp_path, "a")
    assert keys(list_completely(f"file://{tmp_path}/")) == keys(list_completely(str(tmp_path))) == ["a"]


def test_location_may_be_a_link(tmp_path):
    write(tmp_path, "real/a")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert keys(list_completely(tmp_path / "link")) == ["a"]


TREES = st.lists(st.lists(st.sampled_from(["a", "b%20", "c d", "é", "e\u0301", "n\nl"]), min_size=1, max_size=4), max_size=25)


@settings(max_examples=60, deadline=None)
@given(tree=TREES, parallelism=st.integers(1, 4), budget=st.integers(1, 12), huge=st.integers(1, 6), per_task=st.integers(1, 5))
def test_every_object_is_listed_once_for_any_number_of_tasks(tmp_path_factory, tree, parallelism, budget, huge, per_task):
    root = tmp_path_factory.mktemp("tree")
    for parts in tree:
        write(root, "/".join(f"{part}." for part in parts[:-1]) + f"/{parts[-1]}", parts[-1].encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "HUGE_DIRECTORY", huge)
        patch.setattr(listing, "PLANNED_ENTRIES", 8)
        patch.setattr(listing, "ENTRIES_PER_TASK", per_task)
        step = list_completely(root, parallelism, budget)
    found = dict(zip(step.objects.column("key").to_pylist(), step.objects.column("etag").to_pylist(), strict=True)) if tree else {}
    assert step.objects.num_rows == len(found)
    assert found == oracle(root)
    assert step.problems == ()


def test_huge_directory_is_divided_among_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "HUGE_DIRECTORY", 100)
    for number in range(400):
        write(tmp_path, f"flat/{number}", b"")
    sizes = [sum(step.objects.num_rows for step in task.run(10**9)) for task in plan_listing(str(tmp_path), 4)]
    shares = [size for size in sizes if size]
    assert len(shares) == 4
    assert sum(shares) == 400
    assert max(shares) < 2 * min(shares)


def test_single_worker_lists_a_huge_directory_completely(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "HUGE_DIRECTORY", 2)
    for number in range(5):
        write(tmp_path, f"t/{number}/x", b"")
    assert len(keys(list_completely(tmp_path, 1))) == 5


def test_huge_directory_found_by_a_task_is_divided(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "HUGE_DIRECTORY", 10)
    monkeypatch.setattr(listing, "PLANNED_ENTRIES", 1)
    for number in range(30):
        write(tmp_path, f"a/b/{number}", b"")
    steps = [step for task in plan_listing(str(tmp_path), 3) for step in task.run(10**9)]
    assert sum(step.objects.num_rows for step in steps) == 0
    assert [len(task.units) for step in steps for task in step.leftover] == [1, 1, 1]
    assert len(keys(list_completely(tmp_path, 3))) == 30


def test_exhausted_budget_returns_remaining_work(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "PLANNED_ENTRIES", 1)
    for number in range(20):
        write(tmp_path, f"t/{number}/x", b"")
    steps = [step for task in plan_listing(str(tmp_path), 2) for step in task.run(5)]
    done = sum(step.objects.num_rows for step in steps)
    assert done < 20
    rest = [step for first in steps for task in first.leftover for step in task.run(10**9)]
    assert done + sum(step.objects.num_rows for step in rest) == 20


def test_small_storage_is_listed_in_one_task(tmp_path):
    for number in range(50):
        write(tmp_path, f"t/{number}/x", b"")
    assert len(plan_listing(str(tmp_path), 8)) == 1


def test_links_are_reported_and_never_followed(tmp_path):
    write(tmp_path, "data/a")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    write(outside, "b")
    (tmp_path / "file-link").symlink_to(tmp_path / "data/a")
    (tmp_path / "dir-link").symlink_to(outside)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path)
    step = list_completely(tmp_path)
    assert keys(step) == ["data/a"]
    assert sorted((p.key, p.kind) for p in step.problems) == [(name, "symlink") for name in ("dangling", "dir-link", "file-link", "loop")]
    assert not any(problem.is_incomplete for problem in step.problems)


def test_non_utf8_names_are_kept_and_reported(tmp_path):
    write(tmp_path, "a")
    raw = os.fsencode(tmp_path)
    Path(os.fsdecode(raw + b"/d\xff")).mkdir()
    for name in (b"/caf\xe9", b"/d\xff/x"):
        os.close(os.open(raw + name, os.O_CREAT))
    step = list_completely(tmp_path)
    assert keys(step) == ["a"]
    assert sorted((p.key, p.kind) for p in step.problems) == [(r"caf\xe9", "not_utf8"), (r"d\xff", "not_utf8")]


def test_directory_beyond_the_longest_path_is_kept_and_reported(tmp_path, monkeypatch):
    """A single path of more than 4,096 bytes stopped every plan of its storage."""
    write(tmp_path, "a")
    monkeypatch.chdir(tmp_path)
    for _ in range(25):
        os.mkdir("d" * 200)  # noqa: PTH102  (relative to the directory, because its path is too long)
        os.chdir("d" * 200)
    os.close(os.open("x", os.O_CREAT))
    for parallelism in (1, 50):
        step = list_completely(tmp_path, parallelism)
        assert keys(step) == ["a"]
        (problem,) = step.problems
        assert problem.key.startswith("d" * 200)
        assert (problem.kind, problem.is_incomplete) == ("special", False)
        assert "kept, with everything under it" in problem.detail


def test_sockets_and_fifos_are_kept_and_reported(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        step = list_completely(tmp_path)
    assert step.objects.num_rows == 0
    assert sorted((p.key, p.kind) for p in step.problems) == [("fifo", "special"), ("socket", "special")]


@pytest.mark.parametrize("seconds", [9_223_372_037, 12_000_000_000])
def test_file_dated_after_2262_is_listed_as_young_and_reported(tmp_path, seconds):
    write(tmp_path, "a")
    write(tmp_path, "late")
    os.utime(tmp_path / "late", (seconds, seconds))
    step = list_completely(tmp_path)
    assert keys(step) == ["a", "late"]
    assert [(p.key, p.kind, p.is_incomplete) for p in step.problems] == [("late", "time", False)]
    row = next(row for row in step.objects.to_pylist() if row["key"] == "late")
    assert row["last_modified"].year == 2262
    assert row["etag"] != etag_of((tmp_path / "late").stat())


def deny(monkeypatch, name: bytes, number: int = errno.EACCES) -> None:
    real = os.scandir

    def scandir(path):
        if path.endswith(name):
            raise OSError(number, os.strerror(number), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_unreadable_directory_makes_the_inventory_incomplete(tmp_path, monkeypatch, number):
    write(tmp_path, "open/a")
    write(tmp_path, "t/closed/b")
    deny(monkeypatch, b"/closed", number)
    step = list_completely(tmp_path)
    assert keys(step) == ["open/a"]
    assert [(p.key, p.kind, p.is_incomplete) for p in step.problems] == [("t/closed/", "unreadable", True)]
    assert os.strerror(number) in step.problems[0].detail


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_directory_without_permission_makes_the_inventory_incomplete(tmp_path):
    write(tmp_path, "closed/b")
    (tmp_path / "closed").chmod(0)
    try:
        assert [p.kind for p in list_completely(tmp_path).problems] == ["unreadable"]
    finally:
        (tmp_path / "closed").chmod(0o755)


def test_failed_stat_makes_the_inventory_incomplete(tmp_path, monkeypatch):
    write(tmp_path, "a")
    real = os.stat

    def stat(path, **kwargs):
        if path == b"a":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    assert [(p.key, p.is_incomplete) for p in list_completely(tmp_path).problems] == [("a", True)]


def test_file_removed_during_the_listing_is_skipped(tmp_path, monkeypatch):
    write(tmp_path, "a")
    write(tmp_path, "b")
    real = os.stat

    def stat(path, **kwargs):
        if path == b"a":
            (tmp_path / "a").unlink(missing_ok=True)
        return real(path, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    step = list_completely(tmp_path)
    assert (keys(step), step.problems) == (["b"], ())


def test_directory_removed_after_planning_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "PLANNED_ENTRIES", 1)
    write(tmp_path, "a")
    (tmp_path / "t").mkdir()
    tasks = plan_listing(str(tmp_path), 2)
    (tmp_path / "t").rmdir()
    steps = [step for task in tasks for step in task.run(10**9)]
    assert [problem for step in steps for problem in step.problems] == []


def test_directory_replaced_by_a_link_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "PLANNED_ENTRIES", 1)
    write(tmp_path, "t/a")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    write(outside, "b")
    tasks = plan_listing(str(tmp_path), 2)
    (tmp_path / "t").rename(tmp_path.parent / f"{tmp_path.name}-moved")
    (tmp_path / "t").symlink_to(outside)
    steps = [step for task in tasks for step in task.run(10**9)]
    assert sum(step.objects.num_rows for step in steps) == 0
    found = sorted((p.key, p.kind) for step in steps for p in step.problems)
    assert found == [("t", "symlink"), ("t/", "unreadable")]


def test_empty_root_gives_an_empty_inventory(tmp_path):
    step = list_completely(tmp_path)
    assert (step.objects.num_rows, step.problems) == (0, ())


def test_missing_root_raises_store_error(tmp_path):
    with pytest.raises(StoreError, match=r"gone.*found nothing"):
        plan_listing(f"file://{tmp_path}/gone/", 2)


def test_root_that_is_a_file_raises_store_error(tmp_path):
    with pytest.raises(StoreError, match="found something else"):
        plan_listing(str(write(tmp_path, "a")), 2)


def test_unreadable_root_raises_store_error(tmp_path, monkeypatch):
    deny(monkeypatch, os.fsencode(tmp_path.name) + b"/")
    with pytest.raises(StoreError, match=r"cannot read the directory .*: Permission denied"):
        plan_listing(str(tmp_path), 2)


def test_root_removed_after_planning_makes_the_inventory_incomplete(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    tasks = plan_listing(str(root), 2)
    root.rmdir()
    assert [p.is_incomplete for task in tasks for step in task.run(10) for p in step.problems] == [True]


def test_replaced_root_directory_makes_the_inventory_incomplete(tmp_path):
    """If the disk is not mounted, the mount point is an empty directory."""
    write(tmp_path, "storage/t/metadata/v1.metadata.json")
    tasks = plan_listing(str(tmp_path / "storage"), 2)
    (tmp_path / "storage").rename(tmp_path / "disk")
    (tmp_path / "storage").mkdir()
    steps = [step for task in tasks for step in task.run(10)]
    (problem, *_) = [problem for step in steps for problem in step.problems]
    assert problem.is_incomplete
    assert "a different directory from the one at the start of the run" in problem.detail


def test_name_of_255_bytes_is_listed(tmp_path):
    write(tmp_path, "n" * 255)
    with pytest.raises(OSError, match="name too long"):
        write(tmp_path, "n" * 1025)
    assert keys(list_completely(tmp_path)) == ["n" * 255]
