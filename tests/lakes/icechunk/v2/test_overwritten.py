"""Copies of `repo` in `overwritten/`: which are kept, compared with what the operations log of the library needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.backup_names import backup_name, backup_time_us
from gc_assets.lakes.icechunk.config import IcechunkRetention
from gc_assets.stores.local.editing import EditableLocalObjects
from tests.lakes.icechunk.icechunk_lakes import lake_at
from tests.lakes.icechunk.v2.builder import EPOCH, RepositoryBuilder, microseconds, numbers, set_value
from tests.lakes.icechunk.v2.library import Library

START = datetime(2026, 1, 1, tzinfo=UTC)
COMMITS, UPDATES_IN_A_FILE = 23, 5


@pytest.fixture(scope="module")
def written(icechunk2: Library, tmp_path_factory: pytest.TempPathFactory) -> RepositoryBuilder:
    path = tmp_path_factory.mktemp("overwritten") / "repo"
    builder = RepositoryBuilder.create(icechunk2, path, START, updates_in_a_file=UPDATES_IN_A_FILE)
    for number in range(COMMITS):
        builder.commit(
            "main", START + timedelta(hours=number + 1), numbers("values", range(2)) if not number else set_value("values", 0, number)
        )
    return builder


@pytest.fixture
def built(written: RepositoryBuilder, tmp_path: Path) -> RepositoryBuilder:
    shutil.copytree(written.path, tmp_path / "repo")
    return RepositoryBuilder(written.library, tmp_path / "repo")


def copies(built: RepositoryBuilder) -> list[Path]:
    """Return the copies, newest first."""
    return sorted((built.path / "overwritten").iterdir())


def list_kept(built: RepositoryBuilder, as_of: datetime, overwritten: str | None = None) -> set[str]:
    refs = lake_at(built.path, {"overwritten": overwritten} if overwritten else {}).freeze(as_of)
    prefix = f"{built.location}/overwritten/"
    return {root.address.removeprefix(prefix) for root in refs.pinned if root.address.startswith(prefix)}


def notes(built: RepositoryBuilder, as_of: datetime) -> str:
    return " ".join(lake_at(built.path).freeze(as_of).notes)


def later(built: RepositoryBuilder) -> datetime:
    """Return a time at which all copies are older than the default limit."""
    newest = max(time for path in copies(built) if (time := backup_time_us(path.name)) is not None)
    return EPOCH + timedelta(microseconds=newest) + timedelta(days=31)


def delete_others(built: RepositoryBuilder, names: Sequence[str] | set[str]) -> int:
    others = [path for path in copies(built) if path.name not in names]
    for path in others:
        path.unlink()
    return len(others)


def test_kept_copies_contain_complete_operations_log(built: RepositoryBuilder):
    log = built.call("ops_log")
    deleted = delete_others(built, list_kept(built, later(built)))
    assert deleted > COMMITS // 2
    built.call("open")
    assert built.call("ops_log") == log
    assert built.call("garbage_collect", older_than=None, dry_run=True)["snapshots"] == 0


def test_operations_log_is_shorter_without_any_kept_copy(built: RepositoryBuilder):
    """Without the copy, the library returns a shorter log and no error."""
    log, named = built.call("ops_log"), list_kept(built, later(built))
    chain = [name for name in named if (built.path / "overwritten" / name).exists() and name not in newest_backups(built)]
    assert len(chain) >= 3
    for name in chain:
        path = built.path / "overwritten" / name
        raw = path.read_bytes()
        path.unlink()
        built.call("open")
        assert len(built.call("ops_log")) < len(log)
        path.write_bytes(raw)


def newest_backups(built: RepositoryBuilder) -> set[str]:
    return {update["backup_path"] for update in built.call("repo_info")["latest_updates"] if update.get("backup_path")}


def test_overwritten_copies_within_age_limit_are_kept(built: RepositoryBuilder):
    names = {path.name for path in copies(built)}
    for path in copies(built):
        os.utime(path, (START.timestamp(), START.timestamp()))
    assert list_kept(built, later(built) - timedelta(days=2)) == names, "the name has the time"
    assert list_kept(built, later(built), "forever") == names
    assert list_kept(built, later(built), "60d") == names
    assert list_kept(built, later(built)) < names


def test_copy_age_counts_from_later_storage_time(built: RepositoryBuilder):
    as_of = later(built)
    copy = next(path for path in copies(built) if path.name not in list_kept(built, as_of))
    os.utime(copy, (as_of.timestamp(), as_of.timestamp()))
    assert copy.name in list_kept(built, as_of)


def test_overwritten_object_with_unknown_name_is_kept(built: RepositoryBuilder):
    (built.path / "overwritten" / "config.1").write_bytes(b"unknown")
    assert "config.1" in list_kept(built, later(built))
    assert "'config.1'" in notes(built, later(built))


def test_all_copies_are_kept_if_copy_of_log_is_damaged(built: RepositoryBuilder):
    as_of = later(built)
    chain = list_kept(built, as_of) - newest_backups(built)
    damaged = built.path / "overwritten" / max(chain)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    assert list_kept(built, as_of) == {path.name for path in copies(built)}
    assert f"{damaged.name} cannot be read, so all copies" in notes(built, as_of)


def test_missing_copy_of_operations_log_is_reported(built: RepositoryBuilder):
    as_of = later(built)
    gone = built.path / "overwritten" / max(list_kept(built, as_of) - newest_backups(built))
    gone.unlink()
    assert f"{gone.name} is missing" in notes(built, as_of)


def test_copies_older_than_missing_copy_are_kept(built: RepositoryBuilder):
    """After the copy is restored, `ops_log()` of the library reads them again."""
    as_of = later(built)
    before = list_kept(built, as_of)
    gone = built.path / "overwritten" / min(before - newest_backups(built))
    gone.unlink()
    assert list_kept(built, as_of) >= before - {gone.name}
    assert list_kept(built, as_of) == {path.name for path in copies(built) if path.name > gone.name} | newest_backups(built)
    assert "so the copies before it are kept" in notes(built, as_of)


def test_operations_log_is_not_read_if_all_copies_are_young(built: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch):
    names = {path.name for path in copies(built)}
    read = EditableLocalObjects.read

    def refuse(self: EditableLocalObjects, address: str) -> bytes:
        assert "/overwritten/" not in address
        return read(self, address)

    monkeypatch.setattr(EditableLocalObjects, "read", refuse)
    assert list_kept(built, later(built) - timedelta(days=20)) == names


def test_kept_copies_may_be_missing(built: RepositoryBuilder):
    refs = lake_at(built.path).freeze(later(built))
    roots = [root for root in refs.pinned if "/overwritten/" in root.address]
    assert {(root.kind, root.must_exist, root.is_container) for root in roots} == {(Kind.REPO_INFO, False, False)}
    assert all(root.size_bytes == Path(root.address.removeprefix("file://")).stat().st_size for root in roots)


def test_copy_name_contains_its_time():
    at = datetime(2026, 11, 25, 22, 26, 36, 647000, tzinfo=UTC)
    assert backup_name(microseconds(at), "KWHGXPNANGWG29A13S0A") == "repo.30708034403353.KWHGXPNANGWG29A13S0A"
    assert backup_time_us("repo.30708034403353.KWHGXPNANGWG29A13S0A") == microseconds(at)
    for other in (
        "repo",
        "repo.1.A",
        "repo.30708034403353.",
        "config.30708034403353.A",
        "repo.30708034403353.a",
        "x/repo.30708034403353.A",
    ):
        assert backup_time_us(other) is None


@pytest.mark.parametrize("limit", [5, "5"])
def test_number_of_copies_is_refused_as_limit(limit: int | str):
    with pytest.raises(ValueError, match="write a duration such as 7d"):
        IcechunkRetention(overwritten=limit)


def test_folder_that_cannot_be_listed_makes_the_lake_unreadable(built: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch):
    listing = EditableLocalObjects.list

    def deny(self: EditableLocalObjects, prefix: str):
        if prefix.endswith("/overwritten/"):
            raise PermissionError(f"403 for {prefix}")
        return listing(self, prefix)

    monkeypatch.setattr(EditableLocalObjects, "list", deny)
    with pytest.raises(LakeUnreadable, match="overwritten/ cannot be listed: 403"):
        lake_at(built.path).freeze(later(built))
