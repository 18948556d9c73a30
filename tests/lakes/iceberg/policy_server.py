"""Serve a catalog with the policy APIs of Polaris and Lakekeeper.

The answers are written from Polaris' `policy-apis.yaml` and Lakekeeper's
`management-open-api-plus.yaml`. The list of endpoints is Polaris' own.
"""

from __future__ import annotations

import json
from typing import Any

from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.rest_server import Refusal, RestServer

WAREHOUSE = "019a1c2e-6f0e-7d32-9b1f-2a1f3c4d5e6f"


def polaris_policy(config: dict[str, Any] | None = None, kind: str = "snapshot-expiry", **fields: Any) -> dict[str, Any]:
    """Return an item of `applicable-policies`. `fields` are further keys of its content."""
    content = {"version": "2025-02-03", "enable": True, **({} if config is None else {"config": config}), **fields}
    return {
        "policy-type": f"system.{kind}",
        "inheritable": True,
        "name": "expire",
        "description": "",
        "content": json.dumps(content),
        "version": 3,
        "inherited": True,
        "namespace": ["db"],
    }


class PolarisServer(RestServer):
    """A server with the policy API of Polaris.

    `policies` has the policies of each table, or the status of an error.
    """

    def __init__(self, builder: LakeBuilder, policies: dict[str, list[dict[str, Any]] | int]) -> None:
        super().__init__(builder)
        self.policies = policies
        self.requests: list[str] = []

    def get(self, path: list[str], query: dict[str, list[str]]) -> dict[str, Any] | None:
        match path:
            case ["config"]:
                endpoints = ["GET /v1/{prefix}/namespaces/{namespace}/tables/{table}", "GET /polaris/v1/{prefix}/applicable-policies"]
                return {"defaults": {}, "overrides": {"prefix": "main"}, "endpoints": [*_TABLE_ENDPOINTS, *endpoints]}
            case ["v1", "main", "applicable-policies"]:
                name = f"{query['namespace'][0]}.{query['target-name'][0]}"
                self.requests.append(name)
                found = self.policies.get(name, [])
                if isinstance(found, int):
                    raise Refusal(found)
                return {"applicable-policies": found}
            case _:
                return super().get(path[1:] if path[0] == "main" else path, query)

    def commit(self, path: list[str], body: bytes) -> tuple[int, dict[str, Any]]:
        return super().commit(path[1:], body)


class LakekeeperServer(RestServer):
    """A server with the management API of Lakekeeper.

    `queues` has the configuration of each task queue, `deleted` the soft-deleted tables.
    """

    def __init__(self, builder: LakeBuilder, queues: dict[str, dict[str, Any]]) -> None:
        super().__init__(builder)
        self.queues = queues
        self.deleted: list[dict[str, Any]] = []

    def get(self, path: list[str], query: dict[str, list[str]]) -> dict[str, Any] | None:
        match path:
            case ["v1", "config"]:
                return {"defaults": {"prefix": WAREHOUSE}, "overrides": {"uri": f"{self.uri}/catalog"}}
            case ["v1", "warehouse", warehouse, "task-queue", queue, "config"] if warehouse == WAREHOUSE:
                return {"queue-config": {**self.queues.get(queue, {}), "queue-name": queue}, "max-seconds-since-last-heartbeat": None}
            case ["v1", "warehouse", warehouse, "deleted-tabulars"] if warehouse == WAREHOUSE:
                first, token = ([], "") if "pageToken" in query else (self.deleted[:1], "second")
                return {"tabulars": first or self.deleted[1:], "next-page-token": token or None}
            case _:
                return super().get(path[2:] if path[:2] == ["v1", WAREHOUSE] else path, query)


_TABLE_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]
