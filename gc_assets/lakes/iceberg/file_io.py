"""Reading for pyiceberg that never waits and never grows without end.

pyiceberg opens metadata files by itself. A FIFO in place of one would hold the whole process, and a
gzipped one is inflated whatever becomes of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gc_assets.core.bounded import gunzip
from gc_assets.stores.local.objects import NEVER_WAIT, content_of, require_regular


class GuardedFileIO(PyArrowFileIO):
    """pyiceberg's own reader, after a look at what is to be read on a local disk."""

    def new_input(self, location: str) -> PyArrowFile:
        """Raises `OSError` where a local file is none, or too large, and `ValueError` where it
        inflates beyond any bound.
        """
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme == "file" and Path(path).exists():
            with os.fdopen(os.open(path, os.O_RDONLY | NEVER_WAIT), "rb") as source:
                if location.endswith(".gz.metadata.json"):
                    gunzip(content_of(source, location))
                else:
                    require_regular(source, location)
        return super().new_input(location)
