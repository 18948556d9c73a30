"""A live file is a link in a directory that the collector may not read, and has another name than the file in the storage.

Before, the `unknown_addresses` gate compared the names, so the file in the storage was quarantined.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.core.external_addresses import HIDDEN, NO_DIRECTORY, ExternalAddresses
from gc_assets.stores.local import mounts, objects
from gc_assets.stores.store import describe_directory, local_file_exists, local_file_is_hidden
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark

NO_FILE = "a file that does not exist on this machine"


@pytest.mark.parametrize("is_private", [True, False])
def test_file_with_size_of_unreadable_link_target_refuses_the_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    house = Lakehouse(spark, tmp_path)
    lake = LakeBuilder(house.root)
    table = lake.table("db.a", days_ago(60))
    table.append(days_ago(50))
    live, garbage = [path for path in table.leftovers(days_ago(40), 2) if path.suffix == ".parquet"]
    garbage.write_bytes(b"garbage")
    os.utime(garbage, (days_ago(40).timestamp(), days_ago(40).timestamp()))
    link = tmp_path / "home/today.parquet"
    link.parent.mkdir()
    link.symlink_to(live)
    table.table.add_files([f"file://{link}"])
    lake.date_files(days_ago(30))
    house.lakes = [lake.config("sales")]
    identity = objects.identity

    def refuse(address: str) -> str | None:
        if str(link.parent) in address:
            raise StoreError("Permission denied")
        return identity(address)

    if is_private:  # the tests may run as root
        monkeypatch.setattr(objects, "identity", refuse)
    header = house.plan()

    # Spark's workers are not patched, so the `links` gate can examine the file.
    gate = next(gate for gate in header.gates if gate.name == "unknown_addresses")
    assert gate.passed != is_private
    if is_private:
        assert "1 planned file has the size or name" in gate.message
        assert "chmod o+x" in gate.message
        assert "aliases" not in gate.message
        assert f"{house.key(live)} and file://{link}" in gate.message


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that every user may search."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        user = os.geteuid()
        yield path
        os.seteuid(user)
        for directory in path.iterdir():
            if not directory.is_symlink():
                directory.chmod(0o700)


def drop_privileges() -> None:
    """Become a user that may not read everything, until the end of the test."""
    try:
        if os.geteuid() == 0:
            os.seteuid(65534)
    except OSError:
        pytest.skip("this process cannot become another user")


def reasons(*paths: Path) -> list[str | None]:
    describe = partial(describe_directory, has_buckets=False, disks=(str(paths[0].parents[1]),))
    classifier = ExternalAddresses.of([("/srv/lake/", None)], describe, local_file_exists, (), local_file_is_hidden)
    return classifier.find_reasons(pa.array([f"file://{path}" for path in paths])).to_pylist()


def test_file_under_a_private_directory_is_reported_as_hidden(home: Path) -> None:
    """Before, the directory counted as missing, so that only the names of files were compared."""
    (home / "private/data").mkdir(parents=True)
    (home / "open").mkdir()
    (home / "open/file").touch()
    (home / "open/link").symlink_to(home / "private/data")
    (home / "private").chmod(0o000)
    drop_privileges()
    below = [home / "private/x", home / "private/data/x", home / "private/missing/x", home / "open/link/x"]
    assert reasons(*below) == [HIDDEN] * len(below)
    others = [home / "open/file", home / "open/missing", home / "missing/x", home / "open/file/x"]
    assert reasons(*others) == [None, NO_FILE, NO_DIRECTORY, NO_DIRECTORY]


def test_link_to_a_missing_file_is_reported_as_hidden(home: Path) -> None:
    """The file may exist on the machine of the writer."""
    (home / "dangling").symlink_to("/mnt/only-on-the-writer/lake/x")
    (home / "directory").symlink_to("/")
    (home / "loop").symlink_to("loop")
    assert reasons(home / "dangling", home / "directory", home / "loop", home / "nul\0") == [HIDDEN, NO_FILE, NO_FILE, NO_FILE]


def test_private_directory_in_a_mount_is_reported_as_hidden(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Home directories are often in a network file system."""
    monkeypatch.setattr(mounts, "may_hang", lambda path: True)
    monkeypatch.setattr(mounts, "is_in_one_mount", lambda path, other: False)
    (home / "private/data").mkdir(parents=True)
    (home / "private").chmod(0o000)
    (home / "open").mkdir()
    drop_privileges()
    found = reasons(home / "private/data/x", home / "open/x")
    assert found[0] == HIDDEN
    assert (found[1] or "").startswith("a network or FUSE mount")
