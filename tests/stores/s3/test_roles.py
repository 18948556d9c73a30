"""Two roles of Ceph's STS with the minimal policies of docs/s3-reference.md.

The read role cannot delete, and the change role can do all that each quarantine mode needs.
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

from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StoreError
from gc_assets.stores.protocol import QuarantineMode, Store
from gc_assets.stores.store import open_store
from tests.s3.servers import REGION, S3Server, shared_server
from tests.stores.builders import CLOCK, PLAN
from tests.stores.contract import inventory
from tests.stores.s3.bucket_actions import act, every_mode, plan_rows
from tests.stores.s3_bench import S3Bench, open_s3_bench

PAGE = Path(__file__).parents[3] / "docs" / "s3-reference.md"
KEYS = ("a", "t/b")


def read_policy(number: int, bench: S3Bench) -> list[dict[str, Any]]:
    """Return the statements of the page's first policy (read) or second policy (change)."""
    policies = re.findall(r"```json\n(\{\"Version\".*?)```", PAGE.read_text(), re.DOTALL)
    assert len(policies) == 2
    return json.loads(policies[number].replace("BUCKET", bench.bucket).replace("PREFIX/", bench.prefix))["Statement"]


def read_additional_actions(mode: QuarantineMode, versioned: bool) -> list[str]:
    """Return the actions that the page's table adds for a quarantine mode."""
    rows = [line for line in PAGE.read_text().split("\n") if line.startswith("| ")]
    names = {("versioned", True): "| `versioned`, and", ("deferred", True): "| `versioned`, and", ("trash", False): "| `trash` | `s3:Put"}
    (row,) = [line for line in rows if line.startswith(names.get((mode, versioned), "| `deferred` in a bucket without versions"))]
    return re.findall(r"`(s3:\w+)`", row.split("|")[2])


def create_role(server: S3Server, statements: Sequence[dict[str, Any]]) -> str:
    """Create a role that the owner may assume, and return its ARN."""
    keys = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key}
    iam, name = boto3.client("iam", endpoint_url=server.endpoint, region_name=REGION, **keys), f"gc-{secrets.token_hex(4)}"
    trust = {"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/owner"]}, "Action": ["sts:AssumeRole"]}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy([trust]))
    iam.put_role_policy(RoleName=name, PolicyName="least", PolicyDocument=policy(statements))
    return f"arn:aws:iam:::role/{name}"


def policy(statements: Sequence[dict[str, Any]]) -> str:
    """Return a policy without spaces, which Ceph 16 reads as `+`."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, separators=(",", ":"))


@pytest.fixture(autouse=True)
def sts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", shared_server("ceph").endpoint)


def as_roles(bench: S3Bench, **roles: str) -> Store:
    settings = shared_server("ceph").settings.model_copy(update=roles)
    return open_store(bench.store.location, Connections.of(S3Config.model_validate(settings.model_dump())))


@every_mode
def test_documented_policies_suffice_and_read_role_cannot_delete(mode: QuarantineMode, versioned: bool) -> None:
    with open_s3_bench("ceph", versioned=versioned, prefix="lake/") as bench:
        for key in KEYS:
            bench.put(key, key.encode())
        everything = [f"arn:aws:s3:::{bench.bucket}/{bench.prefix}*"]
        more = read_additional_actions(mode, versioned)
        # Ceph 16 checks the bucket too if a request deletes many keys (docs/s3-reference.md).
        added = [{"Effect": "Allow", "Action": ["s3:DeleteObject"], "Resource": [f"arn:aws:s3:::{bench.bucket}"]}]
        added += [{"Effect": "Allow", "Action": more, "Resource": everything}] if more else []
        reads = create_role(shared_server("ceph"), read_policy(0, bench))
        changes = create_role(shared_server("ceph"), [*read_policy(1, bench), *added])
        nightly, store = as_roles(bench, role_arn=reads), as_roles(bench, role_arn=reads, apply_role_arn=changes)
        assert inventory(nightly).keys() == set(KEYS)
        found = nightly.count_unfinished_uploads(CLOCK.now())
        assert found is not None
        assert not found.unknown
        rows = plan_rows(bench, *KEYS)
        if mode != "deferred":  # a deferred quarantine only reads
            assert act(nightly, mode, rows) == ["denied"] * 2
        with pytest.raises(StoreError, match=r"docs/s3-reference.md lists the permissions of each role"):
            nightly.acquire(PLAN, "nightly", CLOCK)
        assert store.check_undo(mode) is None
        lease = store.acquire(PLAN, "who applies", CLOCK)
        for action in ("quarantine", "restore"):
            assert act(store, mode, rows, action) == ["done"] * 2
        assert [bench.get(key) for key in KEYS] == [key.encode() for key in KEYS]
        rows = plan_rows(bench, *KEYS)
        assert act(store, mode, rows) == ["done"] * 2
        assert set(act(nightly, mode, rows, "purge")) == {"denied"}
        assert act(store, mode, rows, "purge") == ["done"] * 2
        lease.release()
        assert [bench.get(key) for key in KEYS] == [None] * 2
