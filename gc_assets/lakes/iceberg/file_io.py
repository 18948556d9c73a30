"""Reading for pyiceberg that never waits and never grows without end.

pyiceberg opens metadata files by itself. A FIFO in place of one would hold the whole process, and a
gzipped one is inflated whatever becomes of it.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gc_assets.core.bounded import MOST_BYTES, gunzip


class GuardedFileIO(PyArrowFileIO):
    """pyiceberg's own reader, after a look at what is to be read on a local disk."""

    def new_input(self, location: str) -> PyArrowFile:
        """Raises `OSError` where a local file is none, or too large, and `ValueError` where it
        inflates beyond any bound.
        """
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme == "file" and Path(path).exists():
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "expected a regular file, found a directory, socket, fifo or device", location)
            if status.st_size > MOST_BYTES:
                raise OSError(errno.EFBIG, f"expected metadata of at most {MOST_BYTES:,} bytes, found {status.st_size:,}", location)
            if location.endswith(".gz.metadata.json"):
                gunzip(Path(path).read_bytes())
        return super().new_input(location)
