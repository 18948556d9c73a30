"""Live objects were planned if the server has another address for the storage namespace than `location`.

A gateway serves the disk as `s3://lake/`, or `location` has an access point. REST listings and full addresses of commits have the
server's address. The server's own list of uncommitted objects misses identical content that was uploaded again (H5) and all full
addresses. Relative addresses were never affected.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config, StorageConfig
from gc_assets.lakes.lakefs.addresses import Roots, possible_names
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeObject, FakeRepository, FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.stages.lakehouse import Lakehouse, days_ago

SERVER = "s3://lake/blocks"
LOCATION = "s3://ml-access-point-s3alias/"


class TwoStorages(Lakehouse):
    """A disk, and a bucket with the name of the server's bucket."""

    @property
    def config(self) -> Config:
        found = super().config
        bucket = StorageConfig.model_validate({"name": "bucket", "location": "s3://lake/", "mode": "plan"})
        return found.model_copy(update={"storages": (*found.storages, bucket)})


class GatewayRepository(FakeRepository):
    """A repository whose files have addresses in a bucket on the server."""

    def listed_address(self, item: FakeObject) -> str:
        return item.address if item.is_full else f"{self.storage_namespace}/{item.address}"


def build(folder: Path, name: str) -> RepositoryBuilder:
    builder = RepositoryBuilder(folder, days_ago(60), name)
    builder.repository.__class__ = GatewayRepository
    builder.repository.storage_namespace = f"{SERVER}/{name}"
    return builder


@pytest.mark.spark
@pytest.mark.parametrize("kind", [Lakehouse, TwoStorages])
def test_objects_with_server_side_addresses_are_live(spark: SparkSession, tmp_path: Path, kind: type[Lakehouse]) -> None:
    house = kind(spark, tmp_path)
    ml, importer = build(house.warehouse, "ml"), build(house.warehouse, "importer")
    ml.commit("main", a=b"1")
    again = ml.stage("main", "a")
    staged_again = ml.repository.branches["main"].staged["a"]
    assert staged_again is not None
    staged_again.is_change = False
    linked, imported, staged, lost = (ml.upload() for _ in range(4))
    ml.branch("links")
    ml.stage("links", "linked", f"{SERVER}/ml/{linked}")
    ml.commit("links")
    importer.stage("main", "imported", f"{SERVER}/ml/{imported}")
    importer.commit("main")
    importer.stage("main", "staged", f"{SERVER}/ml/{staged}")
    with FakeServer(ml.repository, importer.repository).running() as url:
        house.lakes = [
            config_of(url, item.repository.name, location=f"file://{item.namespace}").model_copy(update={"name": item.repository.name})
            for item in (ml, importer)
        ]
        house.approve_and_apply(house.plan())
    assert house.planned_actions("ml/") == {lost: "quarantine"}
    assert {again, linked, imported, staged} <= ml.files()


def test_server_side_address_is_mapped_to_every_storage_root() -> None:
    roots = Roots.of(f"{LOCATION}ml/", [LOCATION], is_renamed=True)
    assert next(possible_names(roots, f"{SERVER}/ml/data/p/x")) == f"{LOCATION}ml/data/p/x"
    assert f"{LOCATION}other/data/p/x" in set(possible_names(roots, "s3://lake/other/data/p/x"))
    assert "s3://lake/raw/x" in set(possible_names(roots, "s3://lake/raw/x"))


def test_server_bucket_that_is_a_storage_and_location_are_both_tried() -> None:
    """The location is a copy of the bucket, or has another server, and both are storages."""
    roots = Roots.of(f"{LOCATION}ml/", [LOCATION, "s3://lake/"], is_renamed=True)
    first, *others = possible_names(roots, f"{SERVER}/ml/data/p/x")
    assert first == f"{SERVER}/ml/data/p/x"
    assert f"{LOCATION}ml/data/p/x" in others


def test_location_in_bucket_of_equal_name_is_tried_with_the_location_prefix() -> None:
    """The location is a mirror at another endpoint, under another prefix."""
    roots = Roots.of("s3://lake/mirror/", ["s3://lake/"], is_renamed=True)
    first, *others = possible_names(roots, f"{SERVER}/data/p/x")
    assert first == f"{SERVER}/data/p/x"
    assert "s3://lake/mirror/data/p/x" in others


@pytest.mark.parametrize("host", ["https://acc.blob.core.windows.net/lake", "s3://lake"])
def test_percent_encoded_server_address_is_decoded(host: str) -> None:
    """Imports from Azure record the encoded web address (lakeFS `pkg/block/azure/walker.go`)."""
    roots = Roots.of(f"{LOCATION}ml/", [LOCATION], is_renamed=True)
    assert f"{LOCATION}raw/a b" in set(possible_names(roots, f"{host}/raw/a%20b"))


def test_address_under_the_location_has_one_candidate() -> None:
    """Without `location`, the server's address of the namespace is its location."""
    renamed, same = (Roots.of(f"{LOCATION}ml/", [LOCATION], is_renamed=value) for value in (True, False))
    address = f"{LOCATION}ml/data/p/x"
    assert list(possible_names(renamed, address)) == [address]
    assert next(possible_names(renamed, f"{LOCATION}other/data/p/x")) == f"{LOCATION}other/data/p/x"
    assert list(possible_names(same, "s3://raw/data/p/x")) == ["s3://raw/data/p/x"]
