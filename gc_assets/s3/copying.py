"""Copy objects within a bucket, to the trash and back to their keys.

Metadata, tags, storage class and encryption are preserved. Objects above 5 GB are copied in parts
(Amazon S3 API Reference, CopyObject and UploadPartCopy).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from botocore.exceptions import BotoCoreError, ClientError
from botocore.utils import parse_to_aware_datetime

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import COPY_ENTRIES, ObjectInfo, Role
from gc_assets.buckets.requests import map_concurrently
from gc_assets.s3.client import translate_errors
from gc_assets.s3.uploads import UploadTarget, list_uploads

# Larger objects cannot be copied with a single request.
MAX_SINGLE_COPY_BYTES: Final = 5 * 10**9
PART_BYTES: Final = 512 * 2**20
# Smaller objects are restored by downloading and uploading them. This works with every server that
# supports conditions in PUT requests.
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


class RequestTarget(UploadTarget, Protocol):
    """The part of `S3Bucket` that is needed to copy objects."""

    def target(self, key: str, version_id: str | None = None) -> dict[str, str]: ...
    def head(self, key: str, role: Role = "change", version_id: str | None = None) -> ObjectInfo | None: ...


def copy_object(bucket: RequestTarget, key: str, to: str, source: ObjectInfo, entry: tuple[str, str]) -> None:
    """Copy an object to a key that only gc-assets uses.

    Raises:
        OSError: If the copy fails, or if there is now another object at the key of the source.
    """
    attributes = _build_attributes(source, entry)
    if source.size_bytes > MAX_SINGLE_COPY_BYTES:
        _abort_unfinished(bucket, to)
        _copy_in_parts(bucket, key, to, source, attributes | _read_tags(bucket, key))
        _copy_tags(bucket, key, to, source, attributes)
        return
    with translate_errors(bucket.address(key)):
        bucket.client("change").copy_object(
            **bucket.target(to),
            CopySource=_source(bucket, key),
            CopySourceIfMatch=token_of(source.identity),
            MetadataDirective="REPLACE",
            TaggingDirective="COPY",
            **attributes,
        )
    _copy_tags(bucket, key, to, source, attributes)


def _copy_tags(bucket: RequestTarget, key: str, to: str, source: ObjectInfo, attributes: Mapping[str, Any]) -> None:
    """Set the tags of a copy again, because Ceph 16 drops or damages them."""
    if not source.answer.get("TagCount"):
        return
    copy = bucket.head(to)
    if copy is not None and _read_metadata(copy) == attributes["Metadata"]:
        with translate_errors(bucket.address(to)):
            client = bucket.client("change")
            found = client.get_object_tagging(**bucket.target(key)).get("TagSet", [])
            client.put_object_tagging(**bucket.target(to), Tagging={"TagSet": found})


def copy_to_absent(bucket: RequestTarget, key: str, to: str, source: ObjectInfo, entry: tuple[str, str]) -> None:
    """Copy an object to a key that has no object.

    Args:
        bucket: The storage.
        key: The key of the object.
        to: The key of the copy.
        source: The object.
        entry: The name and value of an additional metadata entry.

    Raises:
        FileExistsError: If there is an object at the key of the copy.
        OSError: If the copy fails, for example because the server rejects a condition.
    """
    attributes = _build_attributes(source, entry) | _read_tags(bucket, key)
    if source.size_bytes > MAX_PUT_BYTES:
        _copy_in_parts(bucket, key, to, source, attributes, only_if_absent=True)
        _copy_tags(bucket, key, to, source, attributes)
        return
    with translate_errors(bucket.address(key)):
        client = bucket.client("change")
        content = client.get_object(**bucket.target(key), IfMatch=f'"{token_of(source.identity)}"')["Body"].read()
        client.put_object(**bucket.target(to), Body=content, ContentMD5=_md5(content), IfNoneMatch="*", **attributes)


def _abort_unfinished(bucket: RequestTarget, to: str) -> None:
    """Abort unfinished uploads left by an interrupted copy at one of gc-assets' keys."""
    target = bucket.target(to)
    with translate_errors(bucket.address(to)):
        client = bucket.client("change")
        for uploads in list_uploads(bucket, to, "change"):
            for upload in uploads:
                if upload["Key"] == target["Key"]:
                    client.abort_multipart_upload(**target, UploadId=upload["UploadId"])


def _copy_in_parts(
    bucket: RequestTarget, key: str, to: str, source: ObjectInfo, attributes: dict[str, Any], only_if_absent: bool = False
) -> None:
    """Copy a large object in parts. If the copy is interrupted, an unfinished upload remains.

    If `only_if_absent` is set, there must be no object at the key of the copy. Not every server
    evaluates the condition in a request to complete an upload, so the key is also checked
    immediately before.

    Raises:
        FileExistsError: If `only_if_absent` is set and there is an object at the key of the copy.
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
                    CopySourceIfMatch=token_of(source.identity),
                    CopySourceRange=byte_range,
                )
            return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

        try:
            parts = map_concurrently(_ranges(source.size_bytes), part)
            if only_if_absent:
                _require_absent(bucket, to)
            client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts}, **condition)
        except BaseException:
            with suppress(ClientError, BotoCoreError):  # the original error is more helpful
                client.abort_multipart_upload(**target, UploadId=upload)
            raise


def _require_absent(bucket: RequestTarget, key: str) -> None:
    if bucket.head(key) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), bucket.address(key))


def _md5(content: bytes) -> str:
    """Compute the checksum that the server uses to verify the received bytes."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _ranges(size_bytes: int) -> Iterator[tuple[int, str]]:
    for number, start in enumerate(range(0, size_bytes, PART_BYTES), 1):
        yield number, f"bytes={start}-{min(start + PART_BYTES, size_bytes) - 1}"


def _source(bucket: RequestTarget, key: str) -> dict[str, str]:
    return {"Bucket": bucket.name, "Key": f"{bucket.prefix}{key}"}


def _build_attributes(head: ObjectInfo, entry: tuple[str, str]) -> dict[str, Any]:
    """Collect the attributes that a copy inherits, and add one metadata entry.

    botocore cannot send an `Expires` header that is not a time, so it is left out.
    """
    metadata = {name: value for name, value in _read_metadata(head).items() if name not in COPY_ENTRIES}
    preserved = {name: _decode(name, head.answer[name]) for name in _PRESERVED if head.answer.get(name) is not None}
    expires = head.answer.get("ExpiresString")
    times = {"Expires": expires} if expires and _is_time(expires) else {}
    return preserved | times | {"Metadata": {**metadata, entry[0]: entry[1]}}


def _read_metadata(head: ObjectInfo) -> dict[str, str]:
    return {name: _decode(f"metadata entry {name!r}", value) for name, value in head.answer.get("Metadata", {}).items()}


def _decode(name: str, value: Any) -> Any:
    """Decode the value of a header. Python reads headers as Latin-1, and botocore sends UTF-8.

    Raises:
        OSError: If the value is not UTF-8, so that a copy would have another value.
    """
    if not isinstance(value, str) or value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError as error:
        found = f"its {name} is not UTF-8, so a copy would differ"
        raise OSError(errno.EINVAL, f"{found}; write the object again, or use `quarantine: deferred`") from error


def _is_time(text: str) -> bool:
    try:
        parse_to_aware_datetime(text)
    except (AttributeError, OverflowError, TypeError, ValueError):
        return False
    return True


def _read_tags(bucket: RequestTarget, key: str) -> dict[str, str]:
    with translate_errors(bucket.address(key)):
        tags = bucket.client("change").get_object_tagging(**bucket.target(key)).get("TagSet", [])
    return {"Tagging": urlencode([(tag["Key"], tag["Value"]) for tag in tags])} if tags else {}
