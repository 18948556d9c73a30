"""A FileIO that maps a bucket to a local directory, so that lakes are built before their upload.

This is a separate module because pyiceberg imports the FileIO by its module path.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

# The properties of the directory and of the address that it replaces.
FOLDER: Final = "mirror.folder"
ADDRESS: Final = "mirror.address"
NAME: Final = "benchmarks.s3.mirror.MirroredFileIO"


class MirroredFileIO(PyArrowFileIO):
    def new_input(self, location: str) -> PyArrowFile:
        return self._readdress(location, super().new_input(self._path(location)))

    def new_output(self, location: str) -> PyArrowFile:
        return self._readdress(location, super().new_output(self._path(location)))

    def _path(self, location: str) -> str:
        return self.properties[FOLDER] + location.removeprefix(self.properties[ADDRESS])

    def _readdress(self, location: str, file: PyArrowFile) -> PyArrowFile:
        return PyArrowFile(location=location, path=file._path, fs=file._filesystem, buffer_size=file._buffer_size)
