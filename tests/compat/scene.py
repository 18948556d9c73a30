"""Lakes of all four kinds in one storage, from which every cell makes the same plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gc_assets.config.models import LakeConfig
from gc_assets.lakes.kinds import config_models
from tests.dates import next_noon
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import document_tree, numbers
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET, FakeRepository, FakeServer
from tests.lakes.nessie.builder import LONG_AGO, NessieBuilder
from tests.lakes.nessie.server import Server, fetch


@dataclass(frozen=True)
class Scene:
    """The lakes in `<root>/warehouse` as documents of `lakes.yaml`, and the time of the run."""

    root: Path
    now: datetime
    lakes: list[dict[str, Any]]

    @classmethod
    def read(cls, file: Path) -> Scene:
        found = json.loads(file.read_text())
        return cls(Path(found["root"]), datetime.fromisoformat(found["now"]), found["lakes"])

    def write(self, file: Path) -> None:
        file.write_text(json.dumps({"root": str(self.root), "now": self.now.isoformat(), "lakes": self.lakes}))

    def configurations(self) -> list[LakeConfig]:
        models = config_models()
        return [models[lake["kind"]].model_validate(lake) for lake in self.lakes]


@contextmanager
def build_scene(root: Path) -> Iterator[Scene]:
    """Build the lakes and run their servers."""
    now = next_noon(days=1)
    warehouse = root / "warehouse"
    lakes = [_build_iceberg(root, now), _build_icechunk(warehouse, now)]
    nessie = Server(fetch(), root / "server")
    nessie.start()
    try:
        lakes.append(_build_nessie(nessie.uri, warehouse))
        repository, server = _build_lakefs(warehouse, now)
        with server.running() as url:
            lake = {
                "name": "ml",
                "kind": "lakefs",
                "endpoint": url,
                "repository": repository.name,
                "location": f"file://{repository.namespace}",
            }
            lakes.append({**lake, "access_key_id": KEY_ID, "secret_access_key": SECRET})
            yield Scene(root, now, lakes)
    finally:
        nessie.stop()


def _build_iceberg(root: Path, now: datetime) -> dict[str, Any]:
    lake = LakeBuilder(root)
    orders = lake.table("db.orders", now - timedelta(days=60))
    first = orders.append(now - timedelta(days=50))
    orders.append(now - timedelta(days=30))
    orders.overwrite(now - timedelta(days=20))
    orders.tag(now - timedelta(days=19), "audit", first)
    orders.append(now - timedelta(days=2))
    orders.leftovers(now - timedelta(days=10))
    orders.leftovers(now - timedelta(hours=1))
    parts = lake.table("db.parts", now - timedelta(days=60), partitioned=True)
    parts.append(now - timedelta(days=40))
    parts.append(now - timedelta(days=3))
    return {"name": "sales", "kind": "iceberg", "catalog": lake.properties, "catalog_name": lake.catalog_name}


def _build_icechunk(warehouse: Path, now: datetime) -> dict[str, Any]:
    repository = document_tree(warehouse / "weather", now - timedelta(days=18)).builder
    repository.abandon_writer("main", now - timedelta(days=15), numbers("gone", range(4)))
    repository.abandon_snapshot("main", now - timedelta(days=14), numbers("reset", range(3)))
    return {"name": "weather", "kind": "icechunk", "location": f"file://{warehouse}/weather/", "retention": {"default": "10d"}}


def _build_nessie(uri: str, warehouse: Path) -> dict[str, Any]:
    """Build a lake whose policy counts commits, because Nessie dates them by its own clock."""
    nessie = NessieBuilder(uri, warehouse / "nessie")
    main = nessie.on()
    main.new("db.orders")
    nessie.tag("v1")
    main.append("db.orders")
    main.append("db.orders")
    main.new("db.dropped")
    main.drop("db.dropped")
    main.existing("db.orders").leftovers(LONG_AGO)
    return {"name": "shop", "kind": "nessie", "uri": uri, "retention": {"default": "1"}}


def _build_lakefs(warehouse: Path, now: datetime) -> tuple[FakeRepository, FakeServer]:
    """Build a repository with a finished dump, so that no request changes the storage."""
    builder = RepositoryBuilder(warehouse, now - timedelta(days=60))
    builder.rules(10, main=20)
    builder.commit("main", a_1=b"a1", a_2=b"a2")
    builder.repository.tags["v1"] = builder.repository.branches["main"].head
    for days, path in ((50, "a/1"), (40, "a/1"), (15, "a/3")):
        builder.now = now - timedelta(days=days)
        builder.stage("main", path)
        builder.commit("main")
    builder.stage("main", "tmp")
    builder.reset("main")
    builder.stage("main", "staged")
    repository = builder.repository
    repository.dumped = repository.dump()
    server = FakeServer(repository)
    server.pages_of_uncommitted = [(repository.prepare_uncommitted("compat"), "")] * 1000
    return repository, server
