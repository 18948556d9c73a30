"""Inventory reports that are stored in a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from gc_assets.stores.conditional.objects import BucketObjects


@dataclass(frozen=True, slots=True)
class BucketReportFiles:
    """Implements `ReportFiles` for buckets, which are opened with `objects`."""

    objects: BucketObjects

    def folders(self, location: str) -> list[str]:
        bucket, prefix = self.objects.open(location)
        found: list[str] = []
        for page in bucket.list_pages(prefix, delimiter="/"):
            found += [key[len(prefix.encode()) :].decode("utf-8", "backslashreplace") for key in page.common]
        return found

    def files(self, location: str) -> dict[str, int]:
        return {address.removeprefix(location): size for address, size, _ in self.objects.list(location)}

    def read(self, address: str) -> bytes:
        return self.objects.read(address)

    def copy(self, address: str, into: IO[bytes]) -> None:
        bucket, key = self.objects.open(address)
        for block in bucket.read_blocks(key):
            into.write(block)
