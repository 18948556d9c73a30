"""A lake of kind `iceberg` on Nessie's Iceberg REST collects nothing if other refs may need files.

The responses are those of a real Nessie 0.99. `tests/stages/test_s3_rest.py` uses a real server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.discovery import DiscoveryTarget
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.discovery import discover
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, DAY, START, plan_expiry, run_expiry, verdicts
from tests.lakes.iceberg.rest_server import RestServer, serve_catalog


class NessieServer(RestServer):
    """A REST catalog that describes itself as Nessie does. `refs` is None if they cannot be listed."""

    refs: list[str] | None = None

    def get(self, path: list[str], query: dict[str, list[str]]) -> dict[str, Any] | None:
        if path == ["config"]:
            overrides = {"nessie.is-nessie-catalog": "true", "nessie.core-base-uri": f"{self.uri}/v1/api/"}
            return {"defaults": {"prefix": ""}, "overrides": overrides}
        if path == ["api", "v2", "trees"] and self.refs is not None:
            return {"references": [{"type": "BRANCH", "name": name, "hash": "00"} for name in self.refs], "hasMore": False}
        return super().get(path, query)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NessieServer]:
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", START)
    for day in range(4):
        table.append(START + (day + 1) * DAY)
    with serve_catalog(builder, NessieServer(builder)) as found:
        assert isinstance(found, NessieServer)
        yield found


def lake_of(server: NessieServer, **retention: Any) -> IcebergLake:
    settings = {"catalog": {"type": "rest", "uri": server.uri, "token": "hunter2"}, "retention": retention}
    return IcebergLake(IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", **settings}), LocalObjects())


def test_nessie_catalog_with_one_ref_is_collected(server: NessieServer) -> None:
    server.refs = ["main"]
    frozen = lake_of(server).freeze(AS_OF)
    assert [claim.collect for claim in frozen.claims] == [True]
    assert [action.snapshot_id is not None for action in plan_expiry(lake_of(server))] == [True] * 3


@pytest.mark.parametrize(
    "refs, reason",
    [(["main", "dev"], "a Nessie server with several refs (main, dev)"), (None, "the refs of the catalog cannot be listed: ")],
)
def test_tables_are_protected_if_nessie_may_have_other_refs(server: NessieServer, refs: list[str] | None, reason: str) -> None:
    server.refs = refs
    frozen = lake_of(server).freeze(AS_OF)
    assert [claim.collect for claim in frozen.claims] == [False]
    assert plan_expiry(lake_of(server)) == []
    (note,) = [note for note in frozen.notes if reason in note]
    assert note.startswith("lake sales: all files of table db.t are kept: ")
    assert "configure the server as a lake of kind nessie" in note
    assert "hunter2" not in note


def test_nessie_ref_created_after_plan_prevents_expiry(server: NessieServer) -> None:
    server.refs = ["main"]
    planned = plan_expiry(lake_of(server))
    server.refs = ["main", "release"]
    assert set(verdicts(run_expiry(lake_of(server), planned))) == {"changed"}
    assert server.commits == 0


def test_discovery_of_nessie_catalog_suggests_server_uri(server: NessieServer) -> None:
    (found,) = discover(DiscoveryTarget(server.uri, LocalObjects(), {}))
    assert found.note.startswith("it is a Nessie server, and this catalog shows only one branch")
    assert f"Configure {server.uri}/v1 instead of the catalog" in found.note
