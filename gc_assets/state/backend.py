"""The operations that the state needs from a disk or an object store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol


class FileStat(NamedTuple):
    """Name of a file relative to the listed directory, and its size in bytes."""

    name: str
    size_bytes: int


class VersionedContent(NamedTuple):
    """Content of a file and the version that `replace_if` compares. Both are None if it is
    missing.
    """

    content: bytes | None
    version: str | None


ABSENT: Final = VersionedContent(None, None)
# Directory of the verification marks. The next apply deletes what a failed one left here, without
# reading it.
VERIFICATION_MARKS: Final = "_recheck"


def outlives_process(path: str) -> bool:
    """Return True if other processes read the file after the process that wrote it has ended."""
    return not path.startswith(f"{VERIFICATION_MARKS}/")


class Backend(Protocol):
    """Files by their paths relative to the state. `Files` documents the methods."""

    @property
    def parallel_reads(self) -> int:
        """Number of parallel reads that are worth their memory."""
        ...

    def uri(self, path: str) -> str: ...

    def spark_uri(self, path: str) -> str: ...

    def read(self, path: str) -> bytes: ...

    def read_version(self, path: str) -> tuple[bytes, str]: ...

    def replace(self, path: str, content: bytes) -> None: ...

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None: ...

    def check_conditions(self) -> str: ...

    def size(self, path: str) -> int: ...

    def modified_at(self, path: str) -> datetime: ...

    def list(self, path: str, *, recursive: bool) -> Sequence[FileStat]: ...

    def directories(self, path: str) -> Sequence[str]: ...

    def delete(self, path: str) -> None: ...

    def delete_directory(self, path: str) -> None: ...
