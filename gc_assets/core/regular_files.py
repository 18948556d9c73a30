"""Read local files safely if other processes can replace them with something else.

Opening a FIFO would block until another process writes to it, and reading a device may never end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

# Do not block on a FIFO until its other end is opened, and do not let a terminal become the
# controlling terminal.
NEVER_WAIT: Final = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# No lease, rule file or other small file is larger than this.
MAX_SMALL_FILE_BYTES: Final = 2**24

_TYPES: Final = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: If the file does not exist, cannot be read or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | NEVER_WAIT)
    try:
        require_regular(os.fstat(descriptor), str(path))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def require_regular(status: os.stat_result, name: str) -> None:
    """Raise `OSError` unless the status is that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        found = _TYPES.get(stat.S_IFMT(status.st_mode), "special file")
        raise OSError(errno.EINVAL, f"expected a regular file, found a {found}", name)


def read_regular(path: str | Path) -> bytes:
    """Read a whole regular file. Raises the same errors as `open_regular`."""
    with open_regular(path) as source:
        return source.read()


def read_small(path: str | Path) -> bytes:
    """Read a regular file of at most `MAX_SMALL_FILE_BYTES`. Raises `OSError` if it is larger."""
    with open_regular(path) as source:
        content = source.read(MAX_SMALL_FILE_BYTES + 1)
    if len(content) > MAX_SMALL_FILE_BYTES:
        raise OSError(errno.EFBIG, f"expected at most {MAX_SMALL_FILE_BYTES:,} bytes, found more", str(path))
    return content
