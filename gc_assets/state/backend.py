"""What the state asks of the disk or the object store on which its files lie."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol


class FileStat(NamedTuple):
    """Name relative to the listed directory, and size in bytes."""

    name: str
    size_bytes: int


class VersionedContent(NamedTuple):
    """What stood at a path at one moment: the content, and the token that `replace_if` compares.
    Both are null where nothing was there.
    """

    content: bytes | None
    version: str | None


ABSENT: Final = VersionedContent(None, None)
# Below it lie the fresh marks of applies. The next apply deletes what a dead one left there, and
# reads nothing of it.
VERIFICATION_MARKS: Final = "_recheck"


def outlives_process(path: str) -> bool:
    """Return True if a file of the state is read after the process that wrote it has ended."""
    return not path.startswith(f"{VERIFICATION_MARKS}/")


class Backend(Protocol):
    """Files by their paths relative to the state. `Files` says what each method promises."""

    @property
    def parallel_reads(self) -> int:
        """How many reads that are under way together are worth their memory."""
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
