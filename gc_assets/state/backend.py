"""Define the file operations that the state requires from local disks and object stores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol


class FileStat(NamedTuple):
    """A file name, relative to the listed directory, and the size in bytes."""

    name: str
    size_bytes: int


class VersionedContent(NamedTuple):
    """The content of a file and its version for `replace_if`. Both are None if it is missing."""

    content: bytes | None
    version: str | None


ABSENT: Final = VersionedContent(None, None)
# The directory for tables in which an apply computes the live files again. If the apply fails, the
# next one deletes them.
VERIFICATION_MARKS: Final = "_recheck"
# The directory for the compacted segments of a table.
COMPACTED_SEGMENTS: Final = "_folds"


def outlives_process(path: str) -> bool:
    """Return True if the file is needed after the process that writes it has ended."""
    return not path.startswith(f"{VERIFICATION_MARKS}/")


class Backend(Protocol):
    """Access to files by their path relative to the state. `Files` documents the methods."""

    @property
    def parallel_reads(self) -> int:
        """How many files may be read in parallel, which is limited by memory."""
        ...

    def uri(self, path: str) -> str: ...

    def spark_uri(self, path: str) -> str: ...

    def read(self, path: str) -> bytes: ...

    def read_version(self, path: str) -> tuple[bytes, str]: ...

    def replace(self, path: str, content: bytes) -> None: ...

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None: ...

    def check_conditions(self) -> str: ...

    def free_bytes(self) -> int | None: ...

    def size(self, path: str) -> int: ...

    def modified_at(self, path: str) -> datetime: ...

    def list(self, path: str, *, recursive: bool) -> Sequence[FileStat]: ...

    def directories(self, path: str) -> Sequence[str]: ...

    def delete(self, path: str) -> None: ...

    def delete_directory(self, path: str) -> None: ...
