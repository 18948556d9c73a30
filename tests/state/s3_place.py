"""A place of its own on the suite's S3 server for each test of the state."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError

from gc_assets.config.s3 import S3Config
from tests.s3.servers import OWNER, shared

ACCESS, SECRET = OWNER
BUCKET = "state-of-tests"


@contextmanager
def place() -> Iterator[tuple[str, S3Config]]:
    """An address that nobody has used, and how it is reached."""
    server = shared("ceph")
    client = server.client()
    try:
        client.head_bucket(Bucket=BUCKET)
    except ClientError:
        client.create_bucket(Bucket=BUCKET)
    yield f"s3://{BUCKET}/{uuid.uuid4().hex}", server.settings
