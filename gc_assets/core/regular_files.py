"""Read local files that other processes can replace, without blocking on a FIFO.

Opening a FIFO blocks until another process writes to it, and reading a device may never end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

# Opening a FIFO blocks until its other end is opened, and opening a terminal may make it the
# controlling terminal.
NEVER_WAIT: Final = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# This is larger than any lease, rule file or other small file.
MAX_SMALL_FILE_BYTES: Final = 2**24

_TYPES: Final = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        OSError: If it does not exist, cannot be read or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | NEVER_WAIT)
    try:
        require_regular(os.fstat(descriptor), str(path))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def require_regular(status: os.stat_result, name: str) -> None:
    """Raise `OSError` for anything but a regular file."""
    if not stat.S_ISREG(status.st_mode):
        found = _TYPES.get(stat.S_IFMT(status.st_mode), "special file")
        raise OSError(errno.EINVAL, f"expected a regular file, found a {found}", name)


def read_regular(path: str | Path) -> bytes:
    """Read a file. Raises `OSError` like `open_regular`."""
    with open_regular(path) as source:
        return source.read()


def read_small(path: str | Path) -> bytes:
    """Read a small file. Raises `OSError` like `open_regular`, or if the file is too large."""
    with open_regular(path) as source:
        content = source.read(MAX_SMALL_FILE_BYTES + 1)
    if len(content) > MAX_SMALL_FILE_BYTES:
        raise OSError(errno.EFBIG, f"expected at most {MAX_SMALL_FILE_BYTES:,} bytes, found more", str(path))
    return content
