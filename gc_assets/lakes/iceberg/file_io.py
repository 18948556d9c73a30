"""A pyiceberg `FileIO` that rejects files which would block it or decompress without a limit.

pyiceberg opens metadata files itself. It would block the process if such a file is a FIFO, and it
decompresses gzipped files of any size. Azure addresses are opened with adlfs, because pyarrow would
treat the account in `abfss://container@account.dfs.core.windows.net/` as part of the container.
"""

from __future__ import annotations

import errno
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gc_assets.core.paths import AZURE, scheme_of
from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES, gunzip


class GuardedFileIO(PyArrowFileIO):
    """pyiceberg's `PyArrowFileIO` with checks for local files, and `FsspecFileIO` for Azure."""

    def new_input(self, location: str) -> PyArrowFile:
        """Return a handle to read the file at an address.

        Raises:
            ImportError: If the address is on Azure and adlfs is not installed.
            OSError: If a local file is too large, or is not a regular file.
            ValueError: If a local file decompresses to too many bytes.
        """
        if scheme_of(location) == AZURE:
            return cast(PyArrowFile, self._on_azure(location).new_input(location))
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

    def new_output(self, location: str) -> PyArrowFile:
        if scheme_of(location) == AZURE:
            return cast(PyArrowFile, self._on_azure(location).new_output(location))
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        address = location if isinstance(location, str) else location.location
        if scheme_of(address) == AZURE:
            self._on_azure(address).delete(address)
        else:
            super().delete(location)

    def _on_azure(self, location: str) -> FileIO:
        if find_spec("adlfs") is None:
            raise ImportError(f"{location} needs the library adlfs: pip install 'gc-assets[azure]'")
        from pyiceberg.io.fsspec import FsspecFileIO

        return FsspecFileIO(self.properties)
