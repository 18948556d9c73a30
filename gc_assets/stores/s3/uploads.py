"""Counts multipart uploads that were begun and neither completed nor aborted. Their parts bill, and
no listing of objects shows them.

Sources: Amazon S3 API Reference, ListMultipartUploads and ListParts.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from gc_assets.s3.client import told
from gc_assets.stores.protocol import Unfinished
from gc_assets.stores.s3.bucket import Bucket, each

# Parts are asked for upload by upload, so only of so many, the oldest ones of each page.
MOST_SIZED: Final = 1_000


def unfinished(bucket: Bucket, before: datetime) -> Unfinished:
    """Returns what `Store.unfinished` says. Where the server or a policy refuses, it says why."""
    uploads = old = size_bytes = sized = 0
    try:
        with told(bucket.location):
            pages = bucket.client("read").get_paginator("list_multipart_uploads").paginate(Bucket=bucket.name, Prefix=bucket.prefix)
            for page in pages:
                found = sorted(page.get("Uploads", []), key=lambda upload: upload["Initiated"])
                uploads += len(found)
                old += sum(upload["Initiated"] < before for upload in found)
                looked_at = found[: MOST_SIZED - sized]
                size_bytes += sum(each(looked_at, lambda upload: _size(bucket, upload)))
                sized += len(looked_at)
    except OSError as error:
        return Unfinished(uploads, old, size_bytes, sized, error.strerror or str(error))
    return Unfinished(uploads, old, size_bytes, sized)


def _size(bucket: Bucket, upload: dict[str, Any]) -> int:
    """Returns the bytes of an upload's parts, zero where it ended meanwhile."""
    try:
        with told(f"s3://{bucket.name}/{upload['Key']}"):
            asked = bucket.client("read").get_paginator("list_parts")
            pages = asked.paginate(Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"])
            return sum(part["Size"] for page in pages for part in page.get("Parts", []))
    except FileNotFoundError:
        return 0
