"""Copies of objects within a bucket: into the trash, and back to their keys.

A copy keeps metadata, tags, storage class and encryption. One more metadata entry contains the
identity of the original object, because etag and time of the copy differ from it. Copies above 5 GB
are made in parts (Amazon S3 API Reference, CopyObject and UploadPartCopy).
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

from gc_assets.buckets.requests import map_concurrently
from gc_assets.s3.client import PRECONDITION, error_code, translate_errors
from gc_assets.stores.s3.bucket import Bucket, Head
from gc_assets.stores.s3.objects import etag_of

# Metadata entries of a copy: the identity of the object in the trash, and of the restored object.
QUARANTINED: Final = "gc-assets-quarantined"
RESTORED: Final = "gc-assets-restored"

# The limit of one copy request.
MAX_SINGLE_COPY_BYTES: Final = 5 * 10**9
PART_BYTES: Final = 512 * 2**20
# Up to this size a restored object is downloaded and uploaded, because every server supports a
# conditional PUT.
MAX_PUT_BYTES: Final = 64 * 2**20
_PRESERVED: Final = (
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
    """Identities in a copy's metadata: of the quarantined and of the restored object."""

    quarantined: str | None
    restored: str | None
    size_bytes: int

    @classmethod
    def of(cls, head: Head) -> Self:
        metadata: Mapping[str, str] = head.answer.get("Metadata", {})
        return cls(metadata.get(QUARANTINED), metadata.get(RESTORED), head.answer["ContentLength"])


def copy_to_trash(bucket: Bucket, key: str, to: str, source: Head) -> None:
    """Copy the object that `source` describes. Raises `OSError` if the key has another object."""
    attributes = _build_attributes(source, QUARANTINED, source.identity)
    if source.answer["ContentLength"] > MAX_SINGLE_COPY_BYTES:
        _abort_unfinished(bucket, to)
        _copy_in_parts(bucket, key, to, source, attributes | _read_tags(bucket, key))
        _copy_tags(bucket, key, to, source, attributes)
        return
    with translate_errors(bucket.address(key)):
        bucket.client("change").copy_object(
            **bucket.target(to),
            CopySource=_source(bucket, key),
            CopySourceIfMatch=etag_of(source.identity),
            MetadataDirective="REPLACE",
            TaggingDirective="COPY",
            **attributes,
        )
    _copy_tags(bucket, key, to, source, attributes)


def _copy_tags(bucket: Bucket, key: str, to: str, source: Head, attributes: Mapping[str, Any]) -> None:
    """Set the tags of a copy if the server dropped or damaged them (Ceph 16)."""
    if not source.answer.get("TagCount"):
        return
    copy = bucket.head(to)
    if copy is not None and copy.answer.get("Metadata") == attributes["Metadata"]:
        with translate_errors(bucket.address(to)):
            client = bucket.client("change")
            found = client.get_object_tagging(**bucket.target(key)).get("TagSet", [])
            client.put_object_tagging(**bucket.target(to), Tagging={"TagSet": found})


def copy_back(bucket: Bucket, trashed: Head, key: str, to: str) -> bool:
    """Copy an object from the trash to its original key. Returns False if that key has an object.

    Args:
        bucket: The storage.
        held: The object in the trash.
        key: The key in the trash.
        to: The original key.
    """
    quarantined = CopyMetadata.of(trashed).quarantined or ""
    attributes = _build_attributes(trashed, RESTORED, quarantined) | _read_tags(bucket, key)
    try:
        if trashed.answer["ContentLength"] > MAX_PUT_BYTES:
            is_made = _copy_in_parts(bucket, key, to, trashed, attributes, only_if_absent=True)
            if is_made:
                _copy_tags(bucket, key, to, trashed, attributes)
            return is_made
        with translate_errors(bucket.address(key)):
            client = bucket.client("change")
            content = client.get_object(**bucket.target(key), IfMatch=f'"{etag_of(trashed.identity)}"')["Body"].read()
            client.put_object(**bucket.target(to), Body=content, ContentMD5=_md5(content), IfNoneMatch="*", **attributes)
    except OSError as error:
        if isinstance(error.__cause__, ClientError) and error_code(error.__cause__) in PRECONDITION:
            # If the answer to our own request was lost, the object is ours.
            current = bucket.head(to)
            return current is not None and CopyMetadata.of(current).restored == quarantined
        raise
    return True


def _abort_unfinished(bucket: Bucket, to: str) -> None:
    """Abort uploads of a killed copy to a key that no other writer uses."""
    target = bucket.target(to)
    with translate_errors(bucket.address(to)):
        client = bucket.client("change")
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket.name, Prefix=target["Key"]):
            for upload in page.get("Uploads", []):
                if upload["Key"] == target["Key"]:
                    client.abort_multipart_upload(**target, UploadId=upload["UploadId"])


def _copy_in_parts(bucket: Bucket, key: str, to: str, source: Head, attributes: dict[str, Any], only_if_absent: bool = False) -> bool:
    """Copy an object in parts. Returns False if the target key has an object.

    Not every server applies a condition when it completes an upload, so the key is checked again
    immediately before. A killed copy leaves an unfinished upload.
    """
    condition = {"IfNoneMatch": "*"} if only_if_absent else {}
    target, client = bucket.target(to), bucket.client("change")
    with translate_errors(bucket.address(to)):
        upload = client.create_multipart_upload(**target, **attributes)["UploadId"]

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
            with suppress(ClientError, BotoCoreError):  # the first failure is the one to report
                client.abort_multipart_upload(**target, UploadId=upload)
            raise
    return True


def _md5(content: bytes) -> str:
    """Return the checksum that lets the server verify the received bytes."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _ranges(size_bytes: int) -> Iterator[tuple[int, str]]:
    for number, start in enumerate(range(0, size_bytes, PART_BYTES), 1):
        yield number, f"bytes={start}-{min(start + PART_BYTES, size_bytes) - 1}"


def _source(bucket: Bucket, key: str) -> dict[str, str]:
    return {"Bucket": bucket.name, "Key": f"{bucket.prefix}{key}"}


def _build_attributes(head: Head, entry: str, identity: str) -> dict[str, Any]:
    """Return the attributes that make a copy equal to this object, with one more metadata entry."""
    metadata = {name: value for name, value in head.answer.get("Metadata", {}).items() if name not in {QUARANTINED, RESTORED}}
    preserved = {name: head.answer[name] for name in _PRESERVED if head.answer.get(name) is not None}
    expires = head.answer.get("ExpiresString")
    return preserved | ({"Expires": expires} if expires else {}) | {"Metadata": {**metadata, entry: identity}}


def _read_tags(bucket: Bucket, key: str) -> dict[str, str]:
    with translate_errors(bucket.address(key)):
        tags = bucket.client("change").get_object_tagging(**bucket.target(key)).get("TagSet", [])
    return {"Tagging": urlencode([(tag["Key"], tag["Value"]) for tag in tags])} if tags else {}
