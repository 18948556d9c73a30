"""Storage operations required by the state, implemented for local disks and object stores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol


class FileStat(NamedTuple):
    """File name relative to the listed directory, and size in bytes."""

    name: str
    size_bytes: int


class VersionedContent(NamedTuple):
    """File content and the version compared by `replace_if`. Both are None for a missing file."""

    content: bytes | None
    version: str | None


ABSENT: Final = VersionedContent(None, None)
# Directory of verification marks. The next apply deletes the marks of a failed one without reading
# them.
VERIFICATION_MARKS: Final = "_recheck"
# Directory of the compacted segments of a table.
COMPACTED_SEGMENTS: Final = "_folds"


def outlives_process(path: str) -> bool:
    """Check if other processes read the file after its writer has ended."""
    return not path.startswith(f"{VERIFICATION_MARKS}/")


class Backend(Protocol):
    """Protocol for file access by path relative to the state. See `Files` for the methods."""

    @property
    def parallel_reads(self) -> int:
        """Maximum number of parallel reads, limited by memory."""
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
