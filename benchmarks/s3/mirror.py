"""A FileIO under which a bucket is a folder of this machine: lakes of a bucket are built there, and uploaded whole.

A module of its own because pyiceberg loads the FileIO by its name.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

# The property that names the folder, and the address that it stands for.
FOLDER: Final = "mirror.folder"
ADDRESS: Final = "mirror.address"
NAME: Final = "benchmarks.s3.mirror.MirroredFileIO"


class MirroredFileIO(PyArrowFileIO):
    def new_input(self, location: str) -> PyArrowFile:
        return self._named(location, super().new_input(self._path(location)))

    def new_output(self, location: str) -> PyArrowFile:
        return self._named(location, super().new_output(self._path(location)))

    def _path(self, location: str) -> str:
        return self.properties[FOLDER] + location.removeprefix(self.properties[ADDRESS])

    def _named(self, location: str, file: PyArrowFile) -> PyArrowFile:
        return PyArrowFile(location=location, path=file._path, fs=file._filesystem, buffer_size=file._buffer_size)
