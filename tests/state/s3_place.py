"""A place of its own on the suite's S3 server for each test of the state."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError

from gc_assets.config.s3 import S3Config
from gc_assets.state.files import Files
from tests.s3.servers import OWNER, PROFILES, REGION, shared

ACCESS, SECRET = OWNER
BUCKET = "state-of-tests"
# Tells the processes that a test starts where the server is.
_ENDPOINT = "GC_ASSETS_TEST_S3_ENDPOINT"


def files_at(root: str) -> Files:
    """The files below a path, or below an address that `place` of this process or of its parent gave."""
    endpoint = os.environ.get(_ENDPOINT)
    return Files(root, S3Config(endpoint=endpoint, region=REGION, profile=PROFILES[ACCESS]) if endpoint else S3Config())


@contextmanager
def place() -> Iterator[tuple[str, S3Config]]:
    """An address that nobody has used, and how it is reached."""
    server = shared("ceph")
    os.environ[_ENDPOINT] = server.endpoint
    client = server.client()
    try:
        client.head_bucket(Bucket=BUCKET)
    except ClientError:
        client.create_bucket(Bucket=BUCKET)
    yield f"s3://{BUCKET}/{uuid.uuid4().hex}", server.settings
