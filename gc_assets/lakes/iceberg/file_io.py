"""A pyiceberg `FileIO` that rejects local files that block or decompress without a limit.

pyiceberg opens metadata files itself. A FIFO would block the process, and gzipped files are
decompressed at any size.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES, gunzip


class GuardedFileIO(PyArrowFileIO):
    """pyiceberg's `PyArrowFileIO` with a check of local files."""

    def new_input(self, location: str) -> PyArrowFile:
        """Open a file for reading.

        Raises:
            OSError: If a local file is not a regular file, or is too large.
            ValueError: If a local file decompresses to more than the limit.
        """
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme == "file" and Path(path).exists():
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "expected a regular file, found a directory, socket, fifo or device", location)
            if status.st_size > MAX_OBJECT_BYTES:
                raise OSError(errno.EFBIG, f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found {status.st_size:,}", location)
            if location.endswith(".gz.metadata.json"):
                gunzip(Path(path).read_bytes())
        return super().new_input(location)
