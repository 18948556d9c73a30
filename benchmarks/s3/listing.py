"""List a bucket with boto3's paginator and with gc-assets, alternately, in this process.

CPU seconds are those of this process, without the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gc_assets.config.s3 import S3Config
from gc_assets.s3 import pages
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.conditional.listing import plan_listing
from tests.s3.servers import S3Server

BOTO3: Final = "boto3, paginator"
PAGES: Final = "gc-assets, pages"
ROWS: Final = "gc-assets, rows of an inventory"
_Listing = Callable[[], list[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of one side over all keys."""

    tool: str
    keys: int
    wall: float
    cpu: float


def measure_listings(server: S3Server, bucket: str, prefix: str, rounds: int) -> list[Run]:
    """Measure each side once per round.

    Raises:
        RuntimeError: If the sides find different keys or sizes.
    """
    makers = {BOTO3: build_boto3_listing, PAGES: build_page_listing, ROWS: build_row_listing}
    for make in makers.values():
        make(server, bucket, f"{prefix}nothing/")()  # loads modules and clients
    sides = {tool: make(server, bucket, prefix) for tool, make in makers.items()}
    runs: list[Run] = []
    for _ in range(rounds):
        found: dict[str, list[tuple[str, int]]] = {}
        for tool, ask in sides.items():
            started, cpu = time.perf_counter(), time.process_time()
            found[tool] = ask()
            runs.append(Run(tool, len(found[tool]), time.perf_counter() - started, time.process_time() - cpu))
        for tool, keys in found.items():
            if keys != found[BOTO3]:
                other = next(iter(set(keys) ^ set(found[BOTO3])), "the order")
                raise RuntimeError(f"s3://{bucket}/{prefix}: {tool} and {BOTO3} find different keys; a difference is {other}")
    return runs


def build_boto3_listing(server: S3Server, bucket: str, prefix: str) -> _Listing:
    paginator = server.client().get_paginator("list_objects_v2")

    def ask() -> list[tuple[str, int]]:
        listing = paginator.paginate(Bucket=bucket, Prefix=prefix)
        return [(item["Key"][len(prefix) :], item["Size"]) for page in listing for item in page.get("Contents", [])]

    return ask


def build_page_listing(server: S3Server, bucket: str, prefix: str) -> _Listing:
    settings: S3Config = server.settings

    def ask() -> list[tuple[str, int]]:
        listing = pages.list_objects(settings, bucket, prefix)
        return [(key[len(prefix) :].decode(), size) for page in listing for key, size in zip(page.keys, page.sizes, strict=True)]

    return ask


def build_row_listing(server: S3Server, bucket: str, prefix: str) -> _Listing:
    """Return the listing of an executor for `storage_inventory`: planned ranges, listed into Arrow
    batches.
    """
    root = S3Bucket.of(f"s3://{bucket}/{prefix}", server.settings)

    def ask() -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for task in plan_listing(root, 1):
            for part in task.run(1 << 60):
                if part.problems or part.leftover:
                    raise RuntimeError(f"{root.location}: a listing without a budget is incomplete: {part.problems} {part.leftover}")
                found += zip(*(part.objects.column(name).to_pylist() for name in ("key", "size_bytes")), strict=True)
        return sorted(found, key=lambda item: item[0].encode())

    return ask
