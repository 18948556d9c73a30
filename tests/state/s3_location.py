"""Provide an unused location on the S3 server of the test suite for each test of the state."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError

from gc_assets.config.s3 import S3Config
from gc_assets.state.files import Files
from tests.s3.servers import OWNER, PROFILES, REGION, shared_server

ACCESS, SECRET = OWNER
BUCKET = "state-of-tests"
# Passes the server to the processes that a test starts.
_ENDPOINT = "GC_ASSETS_TEST_S3_ENDPOINT"


def files_at(root: str) -> Files:
    """Return the files at a path, or at an address from `unused_location` of this or the parent
    process.
    """
    endpoint = os.environ.get(_ENDPOINT)
    return Files(root, S3Config(endpoint=endpoint, region=REGION, profile=PROFILES[ACCESS]) if endpoint else S3Config())


@contextmanager
def unused_location() -> Iterator[tuple[str, S3Config]]:
    """Yield an unused address and its connection."""
    server = shared_server("ceph")
    os.environ[_ENDPOINT] = server.endpoint
    client = server.client()
    try:
        client.head_bucket(Bucket=BUCKET)
    except ClientError:
        client.create_bucket(Bucket=BUCKET)
    yield f"s3://{BUCKET}/{uuid.uuid4().hex}", server.settings
