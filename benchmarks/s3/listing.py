"""One bucket listed by boto3's paginator and by us, in turns, in this process. CPU seconds are this process's own, the server's are not
among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gc_assets.config.s3 import S3Config
from gc_assets.s3 import pages
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.listing import plan_listing
from tests.s3.servers import S3Server

BOTO3: Final = "boto3, paginator"
PAGES: Final = "gc-assets, pages"
ROWS: Final = "gc-assets, rows of an inventory"
_Listing = Callable[[], list[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of one side over all keys."""

    who: str
    keys: int
    wall: float
    cpu: float


def listed(server: S3Server, bucket: str, prefix: str, rounds: int) -> list[Run]:
    """Each side once a round. Raises `RuntimeError` where the sides do not find the same keys and sizes."""
    makers = {BOTO3: by_boto3, PAGES: by_pages, ROWS: by_rows}
    for make in makers.values():
        make(server, bucket, f"{prefix}nothing/")()  # modules and clients are loaded
    sides = {who: make(server, bucket, prefix) for who, make in makers.items()}
    runs: list[Run] = []
    for _ in range(rounds):
        found: dict[str, list[tuple[str, int]]] = {}
        for who, ask in sides.items():
            started, cpu = time.perf_counter(), time.process_time()
            found[who] = ask()
            runs.append(Run(who, len(found[who]), time.perf_counter() - started, time.process_time() - cpu))
        for who, keys in found.items():
            if keys != found[BOTO3]:
                other = next(iter(set(keys) ^ set(found[BOTO3])), "the order")
                raise RuntimeError(f"s3://{bucket}/{prefix}: {who} and {BOTO3} do not find the same; the first difference is {other}")
    return runs


def by_boto3(server: S3Server, bucket: str, prefix: str) -> _Listing:
    paginator = server.client().get_paginator("list_objects_v2")

    def ask() -> list[tuple[str, int]]:
        listing = paginator.paginate(Bucket=bucket, Prefix=prefix)
        return [(item["Key"][len(prefix) :], item["Size"]) for page in listing for item in page.get("Contents", [])]

    return ask


def by_pages(server: S3Server, bucket: str, prefix: str) -> _Listing:
    settings: S3Config = server.settings

    def ask() -> list[tuple[str, int]]:
        listing = pages.list_objects(settings, bucket, prefix)
        return [(key[len(prefix) :].decode(), size) for page in listing for key, size in zip(page.keys, page.sizes, strict=True)]

    return ask


def by_rows(server: S3Server, bucket: str, prefix: str) -> _Listing:
    """What an executor does for `storage_inventory`: ranges are planned, and listed into Arrow batches."""
    place = Bucket.of(f"s3://{bucket}/{prefix}", server.settings)

    def ask() -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for task in plan_listing(place, 1):
            for part in task.run(1 << 60):
                if part.problems or part.leftover:
                    raise RuntimeError(f"{place.location}: a listing without a budget left something: {part.problems} {part.leftover}")
                found += zip(*(part.objects.column(name).to_pylist() for name in ("key", "size_bytes")), strict=True)
        return sorted(found, key=lambda item: item[0].encode())

    return ask
