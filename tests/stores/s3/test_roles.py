"""Two roles of Ceph's STS with the least policies of docs/s3-reference.md: the read role cannot delete, and the change role
can do all that each quarantine mode needs.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest

from gc_assets.config.s3 import Connections, S3Config
from gc_assets.core.errors import StoreError
from gc_assets.stores.protocol import QuarantineMode, Store
from gc_assets.stores.store import open_store
from tests.s3.servers import REGION, S3Server, shared_server
from tests.stores.builders import CLOCK, PLAN
from tests.stores.contract import inventory
from tests.stores.s3.test_quarantine import act, every_mode, planned
from tests.stores.s3_bench import S3Bench, open_s3_bench

PAGE = Path(__file__).parents[3] / "docs" / "s3-reference.md"
KEYS = ("a", "t/b")


def documented(number: int, bench: S3Bench) -> list[dict[str, Any]]:
    """The statements of the page's first policy, which reads, or of its second, which changes, for the place of a storage."""
    policies = re.findall(r"```json\n(\{\"Version\".*?)```", PAGE.read_text(), re.DOTALL)
    assert len(policies) == 2
    return json.loads(policies[number].replace("BUCKET", bench.bucket).replace("PREFIX/", bench.prefix))["Statement"]


def further(mode: QuarantineMode, versioned: bool) -> list[str]:
    """The actions that the page's table adds for a way to quarantine."""
    rows = [line for line in PAGE.read_text().split("\n") if line.startswith("| ")]
    names = {("versioned", True): "| `versioned`, and", ("deferred", True): "| `versioned`, and", ("trash", False): "| `trash` | `s3:Put"}
    (row,) = [line for line in rows if line.startswith(names.get((mode, versioned), "| `deferred` in a bucket without versions"))]
    return re.findall(r"`(s3:\w+)`", row.split("|")[2])


def role(server: S3Server, statements: Sequence[dict[str, Any]]) -> str:
    """The ARN of a new role that the owner may assume."""
    keys = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key}
    iam, name = boto3.client("iam", endpoint_url=server.endpoint, region_name=REGION, **keys), f"gc-{secrets.token_hex(4)}"
    trust = {"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/owner"]}, "Action": ["sts:AssumeRole"]}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy([trust]))
    iam.put_role_policy(RoleName=name, PolicyName="least", PolicyDocument=policy(statements))
    return f"arn:aws:iam:::role/{name}"


def policy(statements: Sequence[dict[str, Any]]) -> str:
    """Without spaces, which Ceph 16 reads as `+`."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, separators=(",", ":"))


@pytest.fixture(autouse=True)
def sts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", shared_server("ceph").endpoint)


def as_roles(bench: S3Bench, **roles: str) -> Store:
    settings = shared_server("ceph").settings.model_copy(update=roles)
    return open_store(bench.store.location, Connections(default=S3Config.model_validate(settings.model_dump())))


@every_mode
def test_documented_policies_suffice_and_read_role_cannot_delete(mode: QuarantineMode, versioned: bool) -> None:
    with open_s3_bench("ceph", versioned=versioned, prefix="lake/") as bench:
        for key in KEYS:
            bench.put(key, key.encode())
        everything = [f"arn:aws:s3:::{bench.bucket}/{bench.prefix}*"]
        more = further(mode, versioned)
        # Ceph 16 asks for the bucket too where many keys are deleted at once (docs/s3-reference.md).
        added = [{"Effect": "Allow", "Action": ["s3:DeleteObject"], "Resource": [f"arn:aws:s3:::{bench.bucket}"]}]
        added += [{"Effect": "Allow", "Action": more, "Resource": everything}] if more else []
        reads = role(shared_server("ceph"), documented(0, bench))
        changes = role(shared_server("ceph"), [*documented(1, bench), *added])
        nightly, store = as_roles(bench, role_arn=reads), as_roles(bench, role_arn=reads, apply_role_arn=changes)
        assert inventory(nightly).keys() == set(KEYS)
        found = nightly.count_unfinished_uploads(CLOCK.now())
        assert found is not None
        assert not found.unknown
        rows = planned(bench, *KEYS)
        if mode != "deferred":  # there a quarantine is a look
            assert act(nightly, mode, rows) == ["denied"] * 2
        with pytest.raises(StoreError, match=r"docs/s3-reference.md lists the permissions of each role"):
            nightly.acquire(PLAN, "nightly", CLOCK)
        lease = store.acquire(PLAN, "who applies", CLOCK)
        for action in ("quarantine", "restore"):
            assert act(store, mode, rows, action) == ["done"] * 2
        assert [bench.get(key) for key in KEYS] == [key.encode() for key in KEYS]
        rows = planned(bench, *KEYS)
        assert act(store, mode, rows) == ["done"] * 2
        assert set(act(nightly, mode, rows, "purge")) == {"denied"}
        assert act(store, mode, rows, "purge") == ["done"] * 2
        lease.release()
        assert [bench.get(key) for key in KEYS] == [None] * 2
