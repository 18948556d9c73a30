"""Chunks that another repository reads by `vcc://NAME/PATH` were planned, and later purged.

`reader` references three chunks of `source` through its virtual chunk containers, also with `..` and `./` in the path and a space in the
name. The policy of `source` expires the commit of these chunks. Source: design-docs/014 of earth-mover/icechunk, whose own example
is a container on the chunks of another repository.
"""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.protocol import Container
from tests.depth import in_turn
from tests.lakes.icechunk.icechunk_lakes import commits_of, container, lake_at
from tests.stages.lakehouse import Lakehouse

RECORDED = Path(__file__).parents[2] / "data" / "icechunk" / "virtual-chunk-containers"
SHARED = {"8KMWGK46F4PJDHPHBZ20", "C4AW21NG8ZSR3AGM9QA0", "J60QF865FPTPCVJ2GNNG"}
NOW = datetime(2027, 2, 1, 3, tzinfo=UTC)

pytestmark = [pytest.mark.spark, in_turn]


class Repositories(Lakehouse):
    """The recorded repositories, as the storage `<root>/warehouse`."""

    @property
    def configuration(self) -> Path:
        return self.warehouse / "reader" / "config.yaml"

    def replace(self, old: str, new: str) -> None:
        self.configuration.write_text(self.configuration.read_text().replace(old, new))

    def chunks(self, header: PlanHeader) -> set[str]:
        """Return the names of the planned chunks."""
        assert header.rows == len(self.planned_actions())
        return {key.rpartition("/")[2] for key in self.planned_actions() if key.startswith("source/chunks/")}

    def run(self, days: int) -> PlanHeader:
        self.now = NOW + timedelta(days=days)
        return self.plan()


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> Repositories:
    house = Repositories(spark, tmp_path, now=NOW)
    shutil.copytree(RECORDED, house.warehouse)
    house.replace("/recorded/", f"{house.warehouse}/")
    for path in house.warehouse.rglob("*"):
        os.utime(path, (datetime(2026, 11, 25, tzinfo=UTC).timestamp(),) * 2)
    for name, retention in (("source", {"default": 1}), ("reader", {})):
        location = f"file://{house.warehouse}/{name}/"
        house.lakes.append(
            IcechunkLakeConfig.model_validate({"name": name, "kind": "icechunk", "location": location, "retention": retention})
        )
    return house


def test_chunks_referenced_through_a_virtual_chunk_container_are_kept(house: Repositories) -> None:
    """The fourth chunk of the expired commit is garbage. An undefined container makes the repository unreadable until it is defined again.

    This works on the same run date, although the refs of a date are read only once.
    """
    expired = {path.name for path in (house.warehouse / "source" / "chunks").iterdir()} - current_chunks(house)
    assert expired > SHARED
    header = house.plan()
    assert house.chunks(header) == expired - SHARED
    assert not header.failed_gates

    house.replace("name: box", "name: renamed")
    header = house.run(days=1)
    (unreadable,) = header.unreadable
    assert (unreadable.lake, house.chunks(header)) == ("reader", expired - SHARED)
    assert "'vcc://box/" in unreadable.why
    assert "the configuration defines 'my box', 'renamed'" in unreadable.why

    shutil.copy(RECORDED / "reader" / "config.yaml", house.configuration)
    house.replace("/recorded/", f"{house.warehouse}/")
    header = house.plan()
    assert (header.unreadable, house.chunks(header)) == ((), expired - SHARED)
    house.approve_and_apply(header)
    assert {path.name for path in (house.warehouse / "source" / "chunks").iterdir()} == SHARED | current_chunks(house)


def test_unreadable_icechunk_configuration_refuses_the_first_plan(house: Repositories) -> None:
    """No earlier run knows which files the repository needs, so the names of the chunks are compared."""
    house.configuration.write_text("virtual_chunk_containers: [")
    header = house.plan()
    assert house.failed_gates(header) == {"unknown_addresses"}
    message = next(gate.message for gate in header.failed_gates)
    assert "3 planned files have the name and size of live addresses" in message
    assert "source/chunks/8KMWGK46F4PJDHPHBZ20 and vcc://box/8KMWGK46F4PJDHPHBZ20 (a name without a known prefix)" in message


def test_changed_container_prefix_takes_effect_in_the_next_run(house: Repositories) -> None:
    """The manifest does not change, so its cached locations must not hide the new prefix."""
    moved = house.warehouse / "source" / "chunks"
    house.replace(f"{moved}/", f"{house.root}/other/")
    planned = house.chunks(house.plan())
    assert planned >= SHARED - {"J60QF865FPTPCVJ2GNNG"}
    house.replace(f"{house.root}/other/", f"{moved}/")
    assert house.chunks(house.run(days=1)) == planned - SHARED
    assert house.decoded_counts("reader")[1:] == [1], "only the manifest with the name is decoded again"


def current_chunks(house: Repositories) -> set[str]:
    """Return the chunks of the last commit of `source`, which are younger than the first ones."""
    lake = lake_at(house.warehouse / "source")
    newest = max(commits_of(lake, lake.freeze(NOW)), key=lambda commit: commit.committed_at)
    (root,) = newest.content_roots
    snapshot = lake.decode(container(root), Path(root.address.removeprefix("file://")).read_bytes()).to_pylist()
    found: set[str] = set()
    for row in snapshot:
        if row["is_container"]:
            manifest = Path(row["address"].removeprefix("file://")).read_bytes()
            rows = lake.decode(Container(row["address"], row["kind"], row["size_bytes"], row["expected_entries"]), manifest)
            found |= {item["address"].rpartition("/")[2] for item in rows.to_pylist()}
    return found
