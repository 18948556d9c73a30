"""Test a server with canary objects, because servers with the API of S3 differ."""

from __future__ import annotations

import errno
import secrets
from contextlib import suppress
from typing import Literal

from botocore.exceptions import ClientError

from gc_assets.core.errors import ObjectChanged
from gc_assets.s3 import pages
from gc_assets.s3.client import DENIED, error_code, translate_errors
from gc_assets.stores.protocol import RESERVED_PREFIX, Traits
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.objects import S3Objects

_ANOTHER_ETAG = "0" * 32


def probe(bucket: Bucket) -> Traits:
    """Return the traits of the bucket, and remove all versions of the canaries."""
    canary = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    try:
        return Traits(
            create_if_absent=(created := _can_create_once(bucket, canary)),
            replace_if_match=created and _can_replace_if_match(bucket, canary),
            rename=False,
            versions=bucket.versioning("change").is_on,
            delete_if_match=_test_conditional_delete(bucket, canary),
        )
    finally:
        _remove_canary(bucket, canary)


def _can_create_once(bucket: Bucket, canary: str) -> bool:
    objects, address = S3Objects.of(bucket.settings), bucket.address(canary)
    objects.create(address, b"first")
    try:
        objects.create(address, b"second")
    except FileExistsError:
        return objects.read_with_etag(address)[0] == b"first"
    return False


def _can_replace_if_match(bucket: Bucket, canary: str) -> bool:
    address = bucket.address(canary)
    objects = S3Objects.of(bucket.settings)
    _, etag = objects.read_with_etag(address)
    with suppress(ObjectChanged):
        objects.replace(address, b"replaced", etag)
    if objects.read_with_etag(address)[0] != b"replaced":
        return False
    with translate_errors(address):
        try:
            bucket.client("change").put_object(**bucket.target(canary), Body=b"unexpected", IfMatch=_ANOTHER_ETAG)
        except ClientError:
            return objects.read_with_etag(address)[0] == b"replaced"
    return False


def _test_conditional_delete(bucket: Bucket, canary: str) -> Literal["none", "one", "batch"]:
    """Return for how many keys per request the server compares the etag.

    It must keep an object with a different etag.
    """
    client = bucket.client("change")
    with translate_errors(bucket.address(canary)):
        try:
            client.delete_object(**bucket.target(canary), IfMatch=f'"{_ANOTHER_ETAG}"')
        except ClientError as error:
            if error_code(error) in DENIED:  # a refused delete proves nothing about the condition
                raise
        if bucket.head(canary) is None:
            return "none"
        target = bucket.target(canary)
        with suppress(ClientError):
            client.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": target["Key"], "ETag": _ANOTHER_ETAG}]})
        return "one" if bucket.head(canary) is None else "batch"


def _remove_canary(bucket: Bucket, canary: str) -> None:
    prefix = f"{bucket.prefix}{canary}"
    page = next(pages.list_versions(bucket.settings, bucket.name, prefix, role="change"))
    versions = [(key, version_id) for key, version_id in zip(page.keys, page.version_ids, strict=True) if key == prefix.encode()]
    for result in bucket.delete([(canary, version_id) for _, version_id in versions]):
        if result.error is not None:
            raise PermissionError(
                errno.EACCES, f"the canary cannot be removed, its DELETE was refused: {result.error}", bucket.address(canary)
            )
