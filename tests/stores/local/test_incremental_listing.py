"""A listing that skips unchanged directories finds exactly what a full one finds."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.stores.listing import INVENTORY_SCHEMA, select_unchanged_objects
from gc_assets.stores.local.listing import find_unchanged_directories, plan_listing
from gc_assets.stores.protocol import Directory
from tests.stores.builders import write

SETTLED = datetime.max.replace(tzinfo=UTC)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "remove", "move", "list", "drop", "replace"]),
        st.sampled_from(["data/p1/", "data/p2/", "data/s/t/p3/", "data/", "data/p1/deep/", ""]),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=25,
)


def list_etags(root: Path, unchanged: frozenset[str] = frozenset()) -> tuple[dict[str, str], list[Directory]]:
    """Return etags by key, and the directories that can be skipped later."""
    found, directories = list_rows(root, unchanged)
    return etags(found), directories


def list_rows(root: Path, unchanged: frozenset[str] = frozenset()) -> tuple[list[pa.RecordBatch], list[Directory]]:
    """Return rows of the inventory, and the directories that can be skipped later."""
    tasks = list(plan_listing(str(root), 2, unchanged, SETTLED))
    found: list[pa.RecordBatch] = []
    directories: list[Directory] = []
    while tasks:
        for step in tasks.pop().run(4):
            found += [step.objects] if step.objects.num_rows else []
            directories += step.directories
            tasks += step.leftover
    return found, directories


def etags(batches: Iterable[pa.RecordBatch]) -> dict[str, str]:
    return {row["key"]: row["etag"] for batch in batches for row in batch.select(["key", "etag"]).to_pylist()}


@dataclass
class IncrementalListing:
    """The known objects of a storage, updated from run to run with the functions under test."""

    root: Path
    prefix: str = ""
    objects: pa.RecordBatch = field(default_factory=lambda: pa.RecordBatch.from_pylist([], schema=INVENTORY_SCHEMA))
    directories: list[Directory] = field(default_factory=list[Directory])

    def list(self) -> frozenset[str]:
        """List the changes, and return the keys of the skipped directories."""
        known = [item for item in self.directories if item.key.startswith(self.prefix)]
        unchanged = find_unchanged_directories(str(self.root), known)
        kept = select_unchanged_objects(self.objects, pa.array(sorted(unchanged), pa.string()))
        found, read = list_rows(self.root, unchanged)
        assert kept.num_rows == sum(item.objects for item in known if item.key in unchanged)
        self.objects = pa.Table.from_batches([kept, *found]).combine_chunks().to_batches()[0] if kept.num_rows or found else kept
        self.directories = [item for item in known if item.key in unchanged] + read
        return unchanged

    def etags(self) -> dict[str, str]:
        return etags([self.objects])


def tick(root: Path, counter: Iterator[int], times: dict[Path, int]) -> None:
    """Give each changed directory a new time, because the file system's clock may stand still."""
    for path in [root, *root.rglob("*")]:
        if path.is_dir() and path.stat().st_mtime_ns != times.get(path):
            times[path] = next(counter)
            os.utime(path, ns=(times[path], times[path]))


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_incremental_listing_equals_a_full_listing(steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        incremental = IncrementalListing(root)
        clock, times = itertools.count(1_000), dict[Path, int]()
        for verb, place, name in [*steps, ("list", "", "")]:
            path = root / place / name
            if verb == "write" and not path.exists():
                write(root, f"{place}{name}")
            elif verb == "remove" and path.is_file():
                path.unlink()
            elif verb == "move" and path.is_file() and (root / "data/p2").is_dir() and not (root / "data/p2/moved").exists():
                path.rename(root / "data/p2/moved")
            elif verb == "drop" and place and (root / place).is_dir():
                shutil.rmtree(root / place)
            elif verb == "replace" and path.is_file():  # stores replace an object by another file of the same name
                path.unlink()
                write(root, f"{place}{name}", b"other")
            tick(root, clock, times)
            if verb == "list":
                incremental.list()
                assert len(incremental.etags()) == incremental.objects.num_rows
                assert incremental.etags() == list_etags(root)[0]


def test_only_changed_directories_are_read(tmp_path: Path) -> None:
    write(tmp_path, "data/old/a")
    write(tmp_path, "data/new/b")
    _, directories = list_etags(tmp_path)
    assert {item.key: item.objects for item in directories} == {"data/old/": 1, "data/new/": 1}
    write(tmp_path, "data/new/c")
    os.utime(tmp_path / "data/new", ns=(1, 1))
    assert find_unchanged_directories(str(tmp_path), directories) == {"data/old/"}
    found, _ = list_etags(tmp_path, frozenset({"data/old/"}))
    assert set(found) == {"data/new/b", "data/new/c"}


def test_copied_directory_is_read_again(tmp_path: Path) -> None:
    """`cp -a` and `rsync -a` keep the time of a directory, so only its inode shows that it is new."""
    write(tmp_path, "data/p/a")
    _, directories = list_etags(tmp_path)
    (tmp_path / "data/p").rename(tmp_path / "data/old")
    shutil.copytree(tmp_path / "data/old", tmp_path / "data/p")
    (tmp_path / "data/p" / "b").touch()
    os.utime(tmp_path / "data/p", ns=(directories[0].modified_ns,) * 2)
    assert find_unchanged_directories(str(tmp_path), directories) == frozenset()


def test_directory_recorded_without_inode_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, "data/p/a")
    _, directories = list_etags(tmp_path)
    assert find_unchanged_directories(str(tmp_path), [replace(item, inode=None) for item in directories]) == frozenset()


def test_directory_with_subdirectories_is_always_read(tmp_path: Path) -> None:
    write(tmp_path, "data/a")
    write(tmp_path, "data/deep/b")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "link").symlink_to(tmp_path / "data")
    write(tmp_path, "linked/c")
    assert {item.key for item in list_etags(tmp_path)[1]} == {"data/deep/"}


def test_recently_changed_directory_is_read_again(tmp_path: Path) -> None:
    directory, modified = write(tmp_path, "data/p/a").parent, datetime(2026, 11, 21, tzinfo=UTC)
    os.utime(directory, (modified.timestamp(), modified.timestamp()))
    for settled, kept in [(modified, 0), (modified + timedelta(microseconds=1), 1)]:
        tasks = plan_listing(str(tmp_path), 2, frozenset(), settled)
        assert sum(len(step.directories) for task in tasks for step in task.run(100)) == kept


def test_removed_or_linked_directory_counts_as_changed(tmp_path: Path) -> None:
    write(tmp_path, "data/p/a")
    _, directories = list_etags(tmp_path)
    (tmp_path / "data/p").rename(tmp_path / "moved")
    assert find_unchanged_directories(str(tmp_path), directories) == frozenset()
    (tmp_path / "data/p").symlink_to(tmp_path / "moved")
    assert find_unchanged_directories(str(tmp_path), directories) == frozenset()
