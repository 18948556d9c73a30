"""The locations and quarantine modes that a release supports, and the store of an address."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.config.models import StorageConfig
from gc_assets.core.errors import StoreError, UsageError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.stores.gcs.store import GcsStore
from gc_assets.stores.key_limits import KeyLimits
from gc_assets.stores.local.store import LocalStore
from gc_assets.stores.s3.store import S3Store
from gc_assets.stores.store import SCHEMES, find_unsupported_settings, open_objects, open_store

PACKAGE = Path(__file__).parents[2] / "gc_assets"


def refusal(**keys: Any) -> list[tuple[str, str]]:
    return list(find_unsupported_settings(StorageConfig.model_validate({"name": "s", "location": "/data/lake", **keys})))


@pytest.mark.parametrize(
    "location", ["/data/lake", "file:/data/lake", "file:///data/lake/", "FILE:///data/lake/", "file://localhost/data/lake"]
)
def test_every_spelling_of_a_path_opens_the_local_store(location: str) -> None:
    assert (type(open_store(location)), open_store(location).location) == (LocalStore, location)
    assert refusal(location=location) == []


@pytest.mark.parametrize("location", ["oss://bucket/", "hdfs://name/x"])
def test_unsupported_location_is_refused_with_alternatives(location: str) -> None:
    with pytest.raises(UsageError, match=rf"'{location}'.* this release supports file://"):
        open_store(location)
    ((key, why),) = refusal(location=location)
    assert (key, why.startswith(f"{location!r} : this release supports file://")) == ("location", True)


@pytest.mark.parametrize("location", ["s3://bucket/prefix/", "s3a://bucket/prefix", "S3N://bucket/prefix/"])
def test_every_spelling_of_a_bucket_opens_the_s3_store(location: str) -> None:
    assert (type(open_store(location)), open_store(location).location) == (S3Store, location)
    assert refusal(location=location) == []


def test_s3_settings_of_a_local_storage_are_refused() -> None:
    ((key, why),) = refusal(s3={"region": "eu-west-1"})
    assert (key, why) == ("s3", "a file:// storage does not use it; leave it out")


@pytest.mark.parametrize("location, why", [("file://nas/data/", "'nas'"), ("/data/../lake", r"`\.\.`")])
def test_invalid_location_is_refused(location: str, why: str) -> None:
    ((key, found),) = refusal(location=location)
    assert key == "location"
    assert why.replace("\\", "") in found


def test_unsupported_quarantine_is_refused_with_alternatives() -> None:
    assert [refusal(quarantine=mode) for mode in SCHEMES["file"].quarantines] == [[], []]
    ((key, why),) = refusal(quarantine="versioned")
    assert key == "quarantine"
    assert why.startswith("'versioned' : ")
    assert why.endswith("use trash or deferred")


BUCKET = {"location": "s3://lake/warehouse/"}


@pytest.mark.parametrize("kind", ["s3", "plain"])
@pytest.mark.parametrize("location", ["s3://reports/lake/daily/", "/data/reports", "file:///data/reports/"])
def test_reports_are_read_from_a_bucket_or_a_disk(kind: str, location: str) -> None:
    assert refusal(**BUCKET, inventory={"kind": kind, "location": location}) == []


@pytest.mark.parametrize("location", ["gs://bucket/prefix/", "gcs://bucket/prefix", "GS://bucket/prefix/"])
def test_every_spelling_of_a_bucket_opens_the_gcs_store(location: str) -> None:
    assert (type(open_store(location)), open_store(location).location) == (GcsStore, location)
    assert refusal(location=location) == []


def test_missing_gcs_library_is_reported_only_when_used() -> None:
    """Users of other stores do not install the extra."""
    script = (
        "import sys\n"
        "sys.modules['google.cloud.storage'] = None\n"
        "from gc_assets.core.errors import StoreError, UsageError\n"
        "from gc_assets.stores.store import open_objects, open_store\n"
        "objects = open_objects()\n"
        "for use in (lambda: objects.read('gs://bucket/a'), lambda: open_store('gs://bucket/')):\n"
        "    try:\n"
        "        use()\n"
        "    except (StoreError, UsageError) as error:\n"
        "        print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout.count("pip install 'gc-assets[gcs]'") == 2


def test_object_store_clients_are_not_imported_for_local_files(tmp_path: Path) -> None:
    """The client of S3 alone takes a quarter of a second, in every run and every executor."""
    (tmp_path / "a").touch()
    script = (
        "import sys\n"
        "from gc_assets.stores.store import open_objects\n"
        "open_objects().read(sys.argv[1])\n"
        "print({'azure.storage.blob', 'botocore', 'google.cloud.storage'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a")]
    result = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


@pytest.mark.parametrize(
    "storage, inventory, key, message",
    [
        ({}, {}, "inventory", "a file:// storage is always listed; leave it out"),
        (
            BUCKET,
            {"kind": "azure"},
            "inventory.kind",
            "'azure' : this release cannot sweep storages with such reports; use 's3' or 'plain'",
        ),
        (BUCKET, {"kind": "gcs"}, "inventory.kind", "'gcs' : this release cannot sweep storages with such reports"),
        (BUCKET, {"location": "oss://reports/"}, "inventory.location", "'oss://reports/' : reports are read from file:// and s3://"),
        (BUCKET, {"location": "s3:///reports/"}, "inventory.location", "'s3:///reports/'"),
    ],
)
def test_invalid_inventory_setting_is_refused_with_the_key(
    storage: dict[str, Any], inventory: dict[str, Any], key: str, message: str
) -> None:
    ((found, why),) = refusal(**storage, inventory={"kind": "s3", "location": "s3://reports/lake/daily/", **inventory})
    assert (found, message in why) == (key, True)


def test_alias_without_a_location_is_refused_with_the_key() -> None:
    assert refusal(aliases=["/mnt/lake", "s3://ap-s3alias/lake/", "dbfs:/mnt/lake/"]) == []
    ((key, why),) = refusal(aliases=["/mnt/lake", "lake/"])
    assert (key, "alias 'lake/'" in why) == ("aliases", True)


def test_objects_can_be_read_and_edited_by_storage_alias(tmp_path: Path) -> None:
    resolver = KeyResolver([("lake", str(tmp_path))], [("lake", "/mnt/lake/"), ("lake", "dbfs:/mnt/lake/")])
    objects = pickle.loads(pickle.dumps(open_objects(resolver=resolver)))  # noqa: S301  (bytes made on this line)
    objects.create("dbfs:/mnt/lake/a", b"one")
    assert list(objects.list("/mnt/lake/")) == [("/mnt/lake/a", 3, next(objects.list(f"{tmp_path}/"))[2])]
    content, etag = objects.read_with_etag("/mnt/lake/a")
    objects.replace("/mnt/lake/a", b"two!", etag)
    assert (content, objects.read("dbfs:/mnt/lake/a"), objects.size(f"{tmp_path}/a")) == (b"one", b"two!", 4)
    objects.remove("dbfs:/mnt/lake/a", objects.read_identified("/mnt/lake/a")[1])
    assert list(tmp_path.iterdir()) == []


def test_scheme_of_the_address_selects_the_store(tmp_path: Path) -> None:
    objects = pickle.loads(pickle.dumps(open_objects()))  # noqa: S301  (bytes made on this line)
    objects.create(f"file://{tmp_path}/a", b"one")
    content, etag = objects.read_with_etag(f"{tmp_path}/a")
    objects.replace(f"file:{tmp_path}/a", b"two!", etag)
    assert (content, objects.read(f"{tmp_path}/a"), objects.size(f"{tmp_path}/a")) == (b"one", b"two!", 4)
    assert [size for _, size, _ in objects.list(f"{tmp_path}/")] == [4]
    objects.remove(f"{tmp_path}/a", objects.read_with_etag(f"{tmp_path}/a")[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["oss://bucket/a", "hdfs:///a"])
def test_address_of_an_unsupported_scheme_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match=rf"'{address}' has an unsupported scheme; this release reads"):
        open_objects().read(address)


def test_packages_outside_stores_do_not_import_a_specific_store() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if "stores" not in path.relative_to(PACKAGE).parts[:1]]
    assert len(modules) > 100
    assert [str(path) for path in modules if "gc_assets.stores.local" in path.read_text()] == []
    of_disks = re.compile(r"file://|LocalObjects|local_path")
    above = [path for path in modules if path.relative_to(PACKAGE).parts[0] in {"stages", "assets"}]
    assert [str(path) for path in above if of_disks.search(path.read_text())] == []


def test_keys_with_too_many_bytes_or_path_segments_exceed_the_limits() -> None:
    keys = pa.array(["a/b/c", "a/b/c/d", "\u00e9\u00e9", "\u00e9\u00e9\u00e9\u00e9"])
    assert KeyLimits(7, 3).select_too_long(keys).to_pylist() == [False, True, False, True]
    assert KeyLimits(7).select_too_long(keys).to_pylist() == [False, False, False, True]
    assert (KeyLimits(1024, 254).describe(), KeyLimits(992).describe()) == (
        "more than 1,024 bytes or 254 path segments",
        "more than 992 bytes",
    )
