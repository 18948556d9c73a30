"""List unfinished multipart uploads.

Source: Amazon S3 API Reference, ListMultipartUploads (markers, `encoding-type=url`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, Final, Protocol

from gc_assets.buckets.protocol import Role
from gc_assets.s3.client import translate_errors
from gc_assets.s3.invalid_xml import REPLACEMENT
from gc_assets.s3.pages import decode_key

_MARKERS: Final = (("KeyMarker", "Key"), ("UploadIdMarker", "UploadId"))


class UploadTarget(Protocol):
    """The part of `S3Bucket` that is needed to list uploads."""

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    def client(self, role: Role) -> Any: ...
    def address(self, key: str) -> str: ...


def list_uploads(bucket: UploadTarget, prefix: str, role: Role = "read") -> Iterator[list[dict[str, Any]]]:
    """List the unfinished uploads under a prefix of the storage, page by page.

    The next page begins after the last upload of a page, because Ceph 20 does not encode markers.

    Raises:
        OSError: If the server denies a request, or if a page does not continue after the previous
            one.
    """
    params, last = {"Bucket": bucket.name, "Prefix": f"{bucket.prefix}{prefix}"}, dict[str, str]()
    while True:
        with translate_errors(bucket.address(prefix)):
            page = bucket.client(role).list_multipart_uploads(**params, **last)
            uploads: list[dict[str, Any]] = page.get("Uploads", [])
            if any(REPLACEMENT in upload["Key"] for upload in uploads):
                encoded = bucket.client(role).list_multipart_uploads(**params, **last, EncodingType="url")
                uploads = _decode_keys(uploads, encoded.get("Uploads", []))
        yield uploads
        if not page.get("IsTruncated"):
            return
        previous, last = last, {name: upload[field] for upload in uploads[-1:] for name, field in _MARKERS}
        if last in ({}, previous):
            found = f"the list of unfinished uploads does not continue after {previous}"
            raise OSError(errno.EIO, f"{found}; a proxy may repeat answers, so connect to the server directly", bucket.address(prefix))


def _decode_keys(uploads: list[dict[str, Any]], encoded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace keys that XML cannot contain with the URL-encoded ones from a second response.

    Other keys are not decoded, because Ceph 20 does not say whether it has encoded them. A key that
    is not UTF-8 gets replacement characters. No request finds its upload.
    """
    keys = {upload["UploadId"]: decode_key(upload["Key"]).decode(errors="replace") for upload in encoded}
    return [
        {**upload, "Key": keys.get(upload["UploadId"], upload["Key"])} if REPLACEMENT in upload["Key"] else upload for upload in uploads
    ]
