"""Exclude other processes from a file for a short time, with `flock`.

A lock is only needed for reading and writing small files. The kernel releases it if the process
dies. Any user who can open a lock file can keep its lock, so only the owner can open it, and
waiting ends with an error.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gc_assets.core.regular_files import NEVER_WAIT, require_regular

# If a lock is held longer than this, the disk or the other process hangs.
LOCK_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.005
_OWNER_ONLY: Final = 0o600


@contextmanager
def lock_exclusively(path: Path) -> Generator[None]:
    """Hold the lock of a lock file, which is created if necessary.

    Raises:
        TimeoutError: If another process does not release the lock in time.
        OSError: If the lock file cannot be opened, or is not a regular file.
    """
    with open_lock_file(path) as descriptor:
        wait_for_lock(descriptor, path)
        yield


@contextmanager
def open_lock_file(path: Path) -> Generator[int]:
    """Open a lock file for the duration of the context, and create it if necessary.

    Raises:
        OSError: If the lock file cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | NEVER_WAIT, _OWNER_ONLY)
    try:
        status = os.fstat(descriptor)
        require_regular(status, str(path))
        if status.st_mode & 0o077 and status.st_uid == os.geteuid():
            os.fchmod(descriptor, _OWNER_ONLY)  # older releases created the file readable for all users
        yield descriptor
    finally:
        os.close(descriptor)


def wait_for_lock(descriptor: int, path: Path | str) -> None:
    """Lock an open file.

    Raises:
        TimeoutError: If another process does not release the lock in time.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                text = (
                    f"it has been locked by another process for {LOCK_SECONDS:.0f} s, expected milliseconds. "
                    f"Find that process with `fuser {path}`, end it, then repeat the command"
                )
                raise TimeoutError(errno.ETIMEDOUT, text, str(path)) from error
            time.sleep(_PAUSE_SECONDS)
