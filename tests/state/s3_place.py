"""A place of its own on a real S3 server for each test of the state.

The server is the one that `GC_ASSETS_DEV_S3` names (default: the developers' Ceph on this machine), reached as its first user.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from gc_assets.config.s3 import S3Config
from gc_assets.s3.client import client_of
from gc_assets.state.files import Files

ENDPOINT = os.environ.get("GC_ASSETS_DEV_S3", "http://127.0.0.1:18082")
ACCESS, SECRET = "AK1", "SECRET1SECRET1"
BUCKET = "state-of-tests"


SETTINGS = S3Config(endpoint=ENDPOINT)
# Executors look for credentials as the driver does: in the environment in which the JVM was started, which is after this import.
os.environ.update({"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET})


def files_at(root: str) -> Files:
    """The files below a path, or below an address that `place` gave."""
    return Files(root, SETTINGS)


@contextmanager
def place() -> Iterator[tuple[str, S3Config]]:
    """An address that nobody has used, and how it is reached."""
    client = client_of(SETTINGS, "change")
    client.create_bucket(Bucket=BUCKET)
    prefix = uuid.uuid4().hex
    yield f"s3://{BUCKET}/{prefix}", SETTINGS
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/"):
        if named := [{"Key": item["Key"]} for item in page.get("Contents", [])]:
            client.delete_objects(Bucket=BUCKET, Delete={"Objects": named})
