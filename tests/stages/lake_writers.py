"""A lake of each kind in one storage, with random changes between runs, written by the libraries of the lakes.

All commits are dated two months before the run, because no library commits into the future. The retention policies allow for that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from gc_assets.config.models import LakeConfig
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder
from tests.lakes.lakefs.builder import RepositoryBuilder as LakeFsBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.random_lakes import take_table_step, take_tree_step

LAG: Final = timedelta(days=60)
RETAINED_AGE: Final = timedelta(days=3)
MAX_AGE: Final = LAG + RETAINED_AGE


class LakeWriter(Protocol):
    """Writes to one lake."""

    def change(self, rng: random.Random, at: datetime) -> None:
        """Commit, move a ref, or leave unreferenced files."""
        ...


class IcebergWriter:
    """Tables of a SQL catalog."""

    def __init__(self, root: Path, at: datetime, tables: int = 3) -> None:
        self.builder = LakeBuilder(root)
        age = str(int(MAX_AGE.total_seconds() * 1000))
        self.tables = [
            self.builder.table(f"db.t{number}", at, properties={"history.expire.max-snapshot-age-ms": age}, partitioned=number == 0)
            for number in range(tables)
        ]
        for table in self.tables:
            table.append(at)

    def change(self, rng: random.Random, at: datetime) -> None:
        table, pick = rng.choice(self.tables), rng.randrange(6)
        steps: Sequence[tuple[object, ...]] = (
            ("append", rng.choice(["main", "dev"])),
            ("overwrite",),
            ("delete",),
            ("merge on read",),
            ("branch", "dev", pick, {}),
            ("tag", "v1", pick, {}),
            ("rollback", pick),
            ("leftovers",),
        )
        name, *values = rng.choice(steps)
        take_table_step(table, at, str(name), *values)


class IcechunkWriter:
    """An Icechunk repository."""

    def __init__(self, path: Path, at: datetime) -> None:
        self.builder, self.steps = RepositoryBuilder.create(path, at), 0

    def change(self, rng: random.Random, at: datetime) -> None:
        self.steps += 1
        refs = ("branch", "tag", "reset", "delete branch", "delete tag")
        step = rng.choice(("commit", "commit", "commit", *refs, "abandon snapshot", "abandon writer"))
        take_tree_step(self.builder, self.steps, at, step, rng.randrange(6), rng.randrange(6))


class NessieWriter:
    """Tables on the branches of a Nessie server, which dates its commits itself."""

    def __init__(self, server: Server, warehouse: Path) -> None:
        server.reset()
        self.builder, self.steps = NessieBuilder(server.uri, warehouse), 0
        self.builder.on().new("shop.orders")
        self.builder.branch("dev")

    def change(self, rng: random.Random, at: datetime) -> None:
        self.steps += 1
        branch = self.builder.on(rng.choice(["main", "dev"]))
        action = rng.choice(["append", "append", "overwrite", "new", "tag", "drop"])
        if action == "new":
            branch.new(f"shop.t{self.steps}")
        elif action == "tag":
            self.builder.tag(f"v{self.steps}", branch.branch_name)
        elif action == "drop":
            branch.new(f"shop.t{self.steps}")
            branch.drop(f"shop.t{self.steps}")
        elif action == "append":
            branch.append("shop.orders")
        else:
            branch.overwrite("shop.orders")


class LakeFsWriter:
    """A lakeFS repository."""

    def __init__(self, folder: Path, at: datetime) -> None:
        self.builder, self.steps = LakeFsBuilder(folder, at), 0
        self.builder.rules(MAX_AGE.days)
        self.builder.commit("main", a_1=b"1", a_2=b"2")
        self.builder.branch("dev")

    def change(self, rng: random.Random, at: datetime) -> None:
        self.steps += 1
        self.builder.now = at
        branch, path = rng.choice(["main", "dev"]), f"a/{rng.randrange(6)}"
        action = rng.choice(["commit", "commit", "delete", "stage", "reset", "tag"])
        if action == "tag":
            self.builder.repository.tags[f"v{self.steps}"] = self.builder.repository.branches[branch].head
        elif action == "reset":
            self.builder.reset(branch)
        elif action == "delete" and path in (self.builder.repository.resolve(branch) or {}):
            self.builder.delete(branch, path)
            self.builder.commit(branch)
        else:
            self.builder.stage(branch, path)
            if action == "commit":
                self.builder.commit(branch)


@contextmanager
def open_lake_writers(root: Path, nessie: Server, now: datetime) -> Iterator[tuple[list[LakeWriter], list[LakeConfig]]]:
    """Yield writers of the lakes in `<root>/warehouse`, and the configurations of the lakes."""
    warehouse, at = root / "warehouse", now - LAG
    tables, weather = IcebergWriter(root, at), IcechunkWriter(warehouse / "weather", at)
    shop, ml = NessieWriter(nessie, warehouse), LakeFsWriter(warehouse, at)
    with FakeServer(ml.builder.repository).running() as url:
        settings = {"name": "weather", "kind": "icechunk", "location": f"file://{warehouse}/weather/"}
        configs = [
            tables.builder.config(),
            IcechunkLakeConfig.model_validate({**settings, "retention": {"default": f"{MAX_AGE.days}d"}}),
            shop.builder.config(retention={"default": "3"}),
            config_of(url, "ml-data", location=f"file://{ml.builder.namespace}/"),
        ]
        yield [tables, weather, shop, ml], configs
