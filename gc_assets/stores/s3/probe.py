"""What canary objects prove of a bucket. Servers that speak the API of S3 differ in it."""

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
    """Probes as `Store.probe` says. Of a bucket that keeps versions it removes those of the
    canaries too.
    """
    canary = f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    try:
        return Traits(
            create_if_absent=(created := _creates_once(bucket, canary)),
            replace_if_match=created and _replaces_if_match(bucket, canary),
            rename=False,
            versions=bucket.versioning("change").is_on,
            delete_if_match=_deletes_if_match(bucket, canary),
        )
    finally:
        _remove_all(bucket, canary)


def _creates_once(bucket: Bucket, canary: str) -> bool:
    objects, address = S3Objects.of(bucket.settings), bucket.address(canary)
    objects.create(address, b"first")
    try:
        objects.create(address, b"second")
    except FileExistsError:
        return objects.read_with_etag(address)[0] == b"first"
    return False


def _replaces_if_match(bucket: Bucket, canary: str) -> bool:
    address = bucket.address(canary)
    objects = S3Objects.of(bucket.settings)
    _, etag = objects.read_with_etag(address)
    with suppress(ObjectChanged):
        objects.replace(address, b"replaced", etag)
    if objects.read_with_etag(address)[0] != b"replaced":
        return False
    with translate_errors(address):
        try:
            bucket.client("change").put_object(**bucket.target(canary), Body=b"by nobody", IfMatch=_ANOTHER_ETAG)
        except ClientError:
            return objects.read_with_etag(address)[0] == b"replaced"
    return False


def _deletes_if_match(bucket: Bucket, canary: str) -> Literal["none", "one", "batch"]:
    """Returns for how many keys of one request the server compares: it must keep an object of
    another etag.
    """
    client = bucket.client("change")
    with translate_errors(bucket.address(canary)):
        try:
            client.delete_object(**bucket.target(canary), IfMatch=f'"{_ANOTHER_ETAG}"')
        except ClientError as error:
            if error_code(error) in DENIED:  # who may not delete has not been compared with
                raise
        if bucket.head(canary) is None:
            return "none"
        target = bucket.target(canary)
        with suppress(ClientError):
            client.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": target["Key"], "ETag": _ANOTHER_ETAG}]})
        return "one" if bucket.head(canary) is None else "batch"


def _remove_all(bucket: Bucket, canary: str) -> None:
    prefix = f"{bucket.prefix}{canary}"
    page = next(pages.list_versions(bucket.settings, bucket.name, prefix, role="change"))
    found = [(key, version) for key, version in zip(page.keys, page.version_ids, strict=True) if key == prefix.encode()]
    for deleted in bucket.delete([(canary, version) for _, version in found]):
        if deleted.error is not None:
            raise PermissionError(errno.EACCES, f"it stays there, because its DELETE was refused: {deleted.error}", bucket.address(canary))
