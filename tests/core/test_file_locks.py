"""A lock file keeps out other processes for a limited time, and other users entirely."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from gc_assets.core import file_locks
from gc_assets.core.file_locks import lock_exclusively, wait_for_lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.lock"


def test_lock_excludes_other_processes_until_the_block_ends(path: Path) -> None:
    with lock_exclusively(path), path.open("rb+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock_exclusively(path):
        pass


def test_lock_that_another_process_keeps_raises_after_the_time_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_locks, "LOCK_SECONDS", 0.05)
    path.touch()
    with path.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"locked by another process.*`fuser .*/some\.lock`"), lock_exclusively(path):
            raise AssertionError("the block must not run")
        descriptor = os.open(path, os.O_RDWR)
        with pytest.raises(TimeoutError):
            wait_for_lock(descriptor, path)
        os.close(descriptor)


@pytest.mark.parametrize("before", [None, 0o644])
def test_other_users_cannot_open_the_lock_file(path: Path, before: int | None) -> None:
    """Otherwise they could keep the lock. Older releases created lock files with mode 0644."""
    if before is not None:
        path.touch(before)
    with lock_exclusively(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_lock_file_must_not_be_a_link_or_a_fifo(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"), lock_exclusively(path):
        pass
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="expected a regular file, found a FIFO"), lock_exclusively(path):
        pass
