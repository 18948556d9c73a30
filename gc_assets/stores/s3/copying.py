"""Copies of objects within a bucket: into the trash, and back to their place.

A copy keeps metadata, tags, storage class and encryption, and gets one entry of metadata more: of
which object it is a copy. Its own etag and time tell nothing of that. Copies above 5 GB are made in
parts (Amazon S3 API Reference, CopyObject and UploadPartCopy).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlencode

from botocore.exceptions import BotoCoreError, ClientError

from gc_assets.s3.client import PRECONDITION, error_code, translate_errors
from gc_assets.stores.s3.bucket import Bucket, Head, map_concurrently
from gc_assets.stores.s3.objects import etag_of

# Entries of a copy's metadata: the identity of the object that lies in the trash, and of the one
# that was put back from there.
QUARANTINED: Final = "gc-assets-quarantined"
RESTORED: Final = "gc-assets-restored"

# One request copies at most 5 GB.
MAX_SINGLE_COPY_BYTES: Final = 5 * 10**9
PART_BYTES: Final = 512 * 2**20
# Up to this size an object goes through this process on its way back, because every server creates
# an object by PUT only where there is none.
MAX_PUT_BYTES: Final = 64 * 2**20
_KEPT: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "StorageClass",
    "ServerSideEncryption",
    "SSEKMSKeyId",
    "BucketKeyEnabled",
    "WebsiteRedirectLocation",
)


@dataclass(frozen=True, slots=True)
class CopyMetadata:
    """What a copy's metadata says: the identity of the object that was quarantined or restored."""

    quarantined: str | None
    restored: str | None
    size_bytes: int

    @classmethod
    def of(cls, head: Head) -> Self:
        metadata: Mapping[str, str] = head.answer.get("Metadata", {})
        return cls(metadata.get(QUARANTINED), metadata.get(RESTORED), head.answer["ContentLength"])


def copy_to_trash(bucket: Bucket, key: str, to: str, source: Head) -> None:
    """Copies the object that `source` describes. Raises `OSError` where another one stands there."""
    made = _attributes(source, QUARANTINED, source.identity)
    if source.answer["ContentLength"] > MAX_SINGLE_COPY_BYTES:
        _abort_unfinished(bucket, to)
        _in_parts(bucket, key, to, source, made | _tags(bucket, key))
        _tagged(bucket, key, to, source, made)
        return
    with translate_errors(bucket.address(key)):
        bucket.client("change").copy_object(
            **bucket.target(to),
            CopySource=_source(bucket, key),
            CopySourceIfMatch=etag_of(source.identity),
            MetadataDirective="REPLACE",
            TaggingDirective="COPY",
            **made,
        )
    _tagged(bucket, key, to, source, made)


def _tagged(bucket: Bucket, key: str, to: str, source: Head, attributes: Mapping[str, Any]) -> None:
    """Tags a copy as its source is, where the server left the tags out or spoilt them (Ceph 16)."""
    if not source.answer.get("TagCount"):
        return
    made = bucket.head(to)
    if made is not None and made.answer.get("Metadata") == attributes["Metadata"]:
        with translate_errors(bucket.address(to)):
            client = bucket.client("change")
            found = client.get_object_tagging(**bucket.target(key)).get("TagSet", [])
            client.put_object_tagging(**bucket.target(to), Tagging={"TagSet": found})


def copy_back(bucket: Bucket, held: Head, key: str, to: str) -> bool:
    """Copies an object from the trash at `key` to its place. Returns false where something stands
    there by now.
    """
    quarantined = CopyMetadata.of(held).quarantined or ""
    made = _attributes(held, RESTORED, quarantined) | _tags(bucket, key)
    try:
        if held.answer["ContentLength"] > MAX_PUT_BYTES:
            is_made = _in_parts(bucket, key, to, held, made, only_if_absent=True)
            if is_made:
                _tagged(bucket, key, to, held, made)
            return is_made
        with translate_errors(bucket.address(key)):
            client = bucket.client("change")
            content = client.get_object(**bucket.target(key), IfMatch=f'"{etag_of(held.identity)}"')["Body"].read()
            client.put_object(**bucket.target(to), Body=content, ContentMD5=_md5(content), IfNoneMatch="*", **made)
    except OSError as error:
        if isinstance(error.__cause__, ClientError) and error_code(error.__cause__) in PRECONDITION:
            # An answer that was lost: then ours stands there.
            here = bucket.head(to)
            return here is not None and CopyMetadata.of(here).restored == quarantined
        raise
    return True


def _abort_unfinished(bucket: Bucket, to: str) -> None:
    """Aborts what a killed copy left behind at a key that nobody else writes."""
    target = bucket.target(to)
    with translate_errors(bucket.address(to)):
        client = bucket.client("change")
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket.name, Prefix=target["Key"]):
            for upload in page.get("Uploads", []):
                if upload["Key"] == target["Key"]:
                    client.abort_multipart_upload(**target, UploadId=upload["UploadId"])


def _in_parts(bucket: Bucket, key: str, to: str, source: Head, made: dict[str, Any], only_if_absent: bool = False) -> bool:
    """Copies an object in parts. Returns false where something stands there by now.

    Not every server heeds a condition as it completes an upload, so another look comes immediately
    before. A copy that was killed leaves an unfinished upload behind.
    """
    condition = {"IfNoneMatch": "*"} if only_if_absent else {}
    target, client = bucket.target(to), bucket.client("change")
    with translate_errors(bucket.address(to)):
        upload = client.create_multipart_upload(**target, **made)["UploadId"]

        def part(number_and_range: tuple[int, str]) -> dict[str, Any]:
            number, byte_range = number_and_range
            with translate_errors(bucket.address(key)):
                answer = client.upload_part_copy(
                    **target,
                    UploadId=upload,
                    PartNumber=number,
                    CopySource=_source(bucket, key),
                    CopySourceIfMatch=etag_of(source.identity),
                    CopySourceRange=byte_range,
                )
            return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

        try:
            parts = map_concurrently(_ranges(source.answer["ContentLength"]), part)
            if only_if_absent and bucket.head(to) is not None:
                client.abort_multipart_upload(**target, UploadId=upload)
                return False
            client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts}, **condition)
        except BaseException:
            with suppress(ClientError, BotoCoreError):  # the first failure is the one to tell
                client.abort_multipart_upload(**target, UploadId=upload)
            raise
    return True


def _md5(content: bytes) -> str:
    """Returns the sum by which a server knows that it got all bytes."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _ranges(size_bytes: int) -> Iterator[tuple[int, str]]:
    for number, start in enumerate(range(0, size_bytes, PART_BYTES), 1):
        yield number, f"bytes={start}-{min(start + PART_BYTES, size_bytes) - 1}"


def _source(bucket: Bucket, key: str) -> dict[str, str]:
    return {"Bucket": bucket.name, "Key": f"{bucket.prefix}{key}"}


def _attributes(head: Head, entry: str, identity: str) -> dict[str, Any]:
    """Returns what a new object must be given to be like this one, with one entry of ours."""
    metadata = {name: value for name, value in head.answer.get("Metadata", {}).items() if name not in {QUARANTINED, RESTORED}}
    kept = {name: head.answer[name] for name in _KEPT if head.answer.get(name) is not None}
    expires = head.answer.get("ExpiresString")
    return kept | ({"Expires": expires} if expires else {}) | {"Metadata": {**metadata, entry: identity}}


def _tags(bucket: Bucket, key: str) -> dict[str, str]:
    with translate_errors(bucket.address(key)):
        tags = bucket.client("change").get_object_tagging(**bucket.target(key)).get("TagSet", [])
    return {"Tagging": urlencode([(tag["Key"], tag["Value"]) for tag in tags])} if tags else {}
