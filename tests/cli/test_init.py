"""`gc-assets init` on real catalogs and repositories."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from gc_assets.config.file import load_config
from gc_assets.core.paths import Location
from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget, choose_storages, server_name, unique_name
from gc_assets.lakes.iceberg.discovery import find_folder
from gc_assets.lakes.icechunk.discovery import discover
from gc_assets.lakes.kind import LakeKind
from gc_assets.lakes.kinds import KINDS, config_models
from gc_assets.stores.store import open_objects
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.rest_server import serve_catalog as rest_catalog
from tests.lakes.icechunk.builder import RepositoryBuilder
from tests.lakes.icechunk.v2.builder import RepositoryBuilder as RepositoryBuilder2
from tests.lakes.icechunk.v2.library import Library
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET, FakeRepository, FakeServer
from tests.lakes.nessie.scripted_server import CONFIG, serve_answers
from tests.stages.bucket_mirror import mirror_on_s3
from tests.stores.s3_bench import open_s3_bench

AT = datetime(2026, 1, 10, tzinfo=UTC)


def init(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, ["init", *arguments])


def read_config(path: Path) -> dict[str, Any]:
    """Return the written configuration as a mapping that `load_config` accepts."""
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with an Iceberg catalog of two tables, an Icechunk repository, and unrelated
    files.
    """
    root = tmp_path_factory.mktemp("data")
    builder = LakeBuilder(root)
    builder.table("shop.orders", AT).append(AT)
    builder.table("crm.people", AT).append(AT)
    RepositoryBuilder.create(root / "warehouse" / "weather", AT - timedelta(days=1))
    (root / "warehouse" / "notes.db").write_text("no database")
    return root


def test_configuration_from_init_passes_doctor(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "lakes.yaml"
    result = init(f"{data}/warehouse/..", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    document = read_config(path)
    assert {lake["kind"] for lake in document["lakes"]} == {"iceberg", "icechunk"}
    assert [(storage["location"], storage["mode"]) for storage in document["storages"]] == [(f"file://{data}/warehouse/", "plan")]
    doctor = CliRunner().invoke(cli, ["doctor", "--config", str(path), "--format", "json"])
    assert doctor.exit_code == 0, doctor.stdout
    assert [row for row in json.loads(doctor.stdout) if row["verdict"] != "ok"] == []


def test_init_and_doctor_support_icechunk_2(icechunk2: Library, tmp_path: Path) -> None:
    builder = RepositoryBuilder2.create(icechunk2, tmp_path / "warehouse" / "weather", AT)
    path = tmp_path / "lakes.yaml"
    assert init(str(tmp_path / "warehouse"), "-o", str(path)).exit_code == 0
    assert [lake["kind"] for lake in read_config(path)["lakes"]] == ["icechunk"]

    def diagnose() -> dict[str, list[str]]:
        result = CliRunner().invoke(cli, ["doctor", "--config", str(path), "--format", "json"])
        found: dict[str, list[str]] = {}
        for row in json.loads(result.stdout):
            if row["subject"] == "weather":
                found.setdefault(row["check"], []).append(row["found"])
        return found

    assert diagnose()["readable"] == ["1 ref, 5 claimed prefixes; spec version 2, online"]
    assert "note" not in diagnose()
    builder.call("set_feature_flag", name="delete_tag", setting=False)
    builder.call("set_status", availability="read_only", reason="audit")
    assert diagnose()["readable"] == ["1 ref, 5 claimed prefixes; spec version 2, read-only, disabled features: delete_tag"]
    (note,) = diagnose()["note"]
    assert "the repository is read-only since" in note
    assert "audit" in note


def test_init_finds_icechunk_2_in_a_bucket(icechunk2: Library, tmp_path: Path) -> None:
    RepositoryBuilder2.create(icechunk2, tmp_path / "weather", AT)
    with open_s3_bench("versity", prefix="lakes/") as bench:
        mirror_on_s3(bench).copy(tmp_path, tmp_path / "weather")
        target = DiscoveryTarget(f"{bench.store.location}weather/", open_objects(bench.connections), {})
        (found,) = discover(target)
        assert found.entry == {"kind": "icechunk", "location": f"{bench.store.location}weather/"}
        assert list(discover(replace(target, address=bench.store.location))) == [found]


def test_first_line_of_configuration_refers_to_the_schema(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "lakes.yaml"
    assert init(str(data), "-o", str(path)).exit_code == 0
    first, _ = path.read_text().split("\n", 1)
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / name).read_text()) == json.loads(CliRunner().invoke(cli, ["schema"]).stdout)


def test_init_does_not_replace_an_existing_file(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "lakes.yaml"
    path.write_text("mine")
    result = init(str(data), "-o", str(path))
    assert (result.exit_code, path.read_text()) == (2, "mine")
    assert "is not replaced" in result.stderr


def test_folder_without_a_lake_is_refused(tmp_path: Path, data: Path) -> None:
    (tmp_path / "empty").mkdir()
    path = tmp_path / "lakes.yaml"
    result = init(str(data), str(tmp_path / "empty"), "-o", str(path))
    assert result.exit_code == 2
    assert "empty: no lake found" in result.stderr
    assert not path.exists()


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    result = init(str(tmp_path / "nowhere"), "-o", str(tmp_path / "lakes.yaml"))
    assert result.exit_code == 2
    assert "nowhere: no such file or directory" in " ".join(result.stderr.split())


def test_missing_lake_libraries_are_reported(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.lakes.kinds.missing_modules", lambda kind: ["httpx"] if kind.name == "nessie" else [])
    result = init(str(data), "-o", str(tmp_path / "lakes.yaml"))
    assert result.exit_code == 0
    assert "Lakes of Nessie are not searched" in result.stderr
    assert "pip install 'gc-assets[nessie]'" in result.stderr


def test_unreadable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused_request(*_: object, onerror: Callable[[OSError], None], **__: object) -> Iterator[object]:
        onerror(PermissionError(13, "Permission denied", str(tmp_path / "closed")))
        yield

    monkeypatch.setattr("os.walk", refused_request)
    result = init(str(tmp_path), "-o", str(tmp_path / "lakes.yaml"))
    assert result.exit_code == 1
    assert f"Permission denied: {tmp_path}/closed" in result.stderr


def test_state_inside_a_storage_is_refused(data: Path) -> None:
    path = data / "warehouse" / "lakes.yaml"
    result = init(str(data), "--config", str(path))
    assert result.exit_code == 2
    assert "--state" in result.stderr
    assert not path.exists()


def test_address_with_password_is_refused_without_echo(tmp_path: Path) -> None:
    result = init("https://ada:hunter2@catalog.example/v1", "-o", str(tmp_path / "lakes.yaml"))
    assert result.exit_code == 2
    assert "hunter2" not in result.output


def test_unreachable_server_is_reported(tmp_path: Path) -> None:
    result = init("http://127.0.0.1:9/", "-o", str(tmp_path / "lakes.yaml"))
    assert result.exit_code == 1
    assert "127.0.0.1:9/" in result.stderr
    assert "does not respond" in result.stderr


def test_error_for_server_without_a_lake_lists_searched_servers(tmp_path: Path) -> None:
    """The error contains their paths too, because the address of a REST catalog often has a prefix."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        result = init(f"http://127.0.0.1:{server.server_port}", "-o", str(tmp_path / "lakes.yaml"))
        server.shutdown()
    assert result.exit_code == 2
    searched = (
        "no lake found. Looked for: an Iceberg REST catalog (/v1/config); a lakeFS server (/api/v1/healthcheck); "
        "a Nessie server (/api/v2/config). See gc-assets init --help"
    )
    assert searched in result.stderr
    assert "Icechunk" not in result.stderr


def test_init_finds_tables_of_a_rest_server(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "lakes.yaml"
    with rest_catalog(LakeBuilder(data)) as server:
        result = init(server.uri, "-o", str(path))
        assert result.exit_code == 0, result.stderr
    (lake,) = read_config(path)["lakes"]
    assert lake["catalog"] == {"type": "rest", "uri": server.uri}
    assert [storage["location"] for storage in read_config(path)["storages"]] == [f"file://{data}/warehouse/"]


def test_init_finds_tables_of_a_nessie_server(tmp_path: Path) -> None:
    content = {
        "type": "ICEBERG_TABLE",
        "id": "c",
        "metadataLocation": "s3://lake/shop/orders/metadata/00001.metadata.json",
        "snapshotId": 1,
    }
    answers = {
        "config": CONFIG,
        "trees": {"references": [{"type": "BRANCH", "name": "main", "hash": "aa"}], "hasMore": False},
        "trees/@aa/entries": {"entries": [{"name": {"elements": ["shop", "orders"]}, "type": "ICEBERG_TABLE", "content": content}]},
    }
    path = tmp_path / "lakes.yaml"
    with serve_answers(lambda given, _: (200, answers[given]) if given in answers else (404, {})) as (client, _):
        uri = client._uri
        result = init(uri, "-o", str(path), "--state", str(tmp_path / "state"))
        assert result.exit_code == 0, result.stderr
    document = read_config(path)
    assert [(lake["kind"], lake["uri"]) for lake in document["lakes"]] == [("nessie", uri)]
    assert [storage["location"] for storage in document["storages"]] == ["s3://lake/shop/"]


def test_init_finds_lakefs_repositories_without_secrets(tmp_path: Path) -> None:
    repositories = [FakeRepository(name, tmp_path / name, "/srv", False, 0) for name in ("ml", "raw")]
    for repository in repositories:
        repository.storage_namespace = f"s3://lake/{repository.name}"
    server = FakeServer(*repositories)
    server.fault = lambda _, path, __: (204, b"") if path == "/healthcheck" else None
    path = tmp_path / "lakes.yaml"
    credentials = {"LAKECTL_CREDENTIALS_ACCESS_KEY_ID": KEY_ID, "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": SECRET}
    with server.running() as url:
        result = init(url, "-o", str(path), **credentials)
        assert result.exit_code == 0, result.stderr
    assert SECRET not in path.read_text() + result.output
    config = load_config(path, credentials, config_models())
    assert [(lake.name, lake.kind) for lake in config.lakes] == [("ml", "lakefs"), ("raw", "lakefs")]
    assert [storage.location for storage in config.storages] == ["s3://lake/ml/", "s3://lake/raw/"]


def test_lake_without_known_location_is_refused(tmp_path: Path) -> None:
    server = FakeServer(FakeRepository("ml", tmp_path / "ml", "/srv", False, 0))
    server.fault = lambda _, path, __: (204, b"") if path == "/healthcheck" else None
    with server.running() as url:
        credentials = {"LAKECTL_CREDENTIALS_ACCESS_KEY_ID": KEY_ID, "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": SECRET}
        result = init(url, "-o", str(tmp_path / "lakes.yaml"), **credentials)
    assert result.exit_code == 2
    assert "local://ml" in result.stderr
    assert "`location`" in result.stderr


def found_lake(*places: str) -> DiscoveredLake:
    return DiscoveredLake("lake", {"kind": "any"}, places)


@pytest.mark.parametrize(
    "lakes, given, storages",
    [
        ([found_lake("file:///data/wh/a"), found_lake("file:///data/wh/b")], ["/data"], ["file:///data/wh/"]),
        ([found_lake("file:///data/wh/a"), found_lake("file:///data/wh/b")], [], ["file:///data/wh/a/", "file:///data/wh/b/"]),
        ([found_lake("file:///data/wh/a", "file:///data/wh/b/c")], [], ["file:///data/wh/"]),
        ([found_lake("file:///data/wh/a", "file:///mnt/b")], [], ["file:///data/wh/a/", "file:///mnt/b/"]),
        ([found_lake("s3://one/a/b", "s3://one/a/c", "s3a://two/x")], [], ["s3://one/a/", "s3://two/x/"]),
        ([found_lake("s3://one/a"), found_lake("s3://one/a/b")], [], ["s3://one/a/"]),
        ([found_lake("s3://one/ab"), found_lake("s3://one/a")], [], ["s3://one/a/", "s3://one/ab/"]),
    ],
)
def test_chosen_storages_cover_all_lakes_without_overlap(lakes: list[DiscoveredLake], given: list[str], storages: list[str]) -> None:
    assert choose_storages(lakes, given) == [Location.parse(storage) for storage in storages]


@pytest.mark.parametrize(
    "wanted, taken, name",
    [("my-lake", (), "my_lake"), ("2026", (), "_2026"), ("", (), "lake"), ("a", ("a", "a_2"), "a_3"), ("äß", (), "lake")],
)
def test_generated_names_are_valid_and_unique(wanted: str, taken: tuple[str, ...], name: str) -> None:
    assert unique_name(wanted, taken) == name


@pytest.mark.parametrize(
    "address, name",
    [
        ("http://catalog.example.org:19120", "catalog"),
        ("http://nessie/api/v2", "nessie"),
        ("http://127.0.0.1:19120", "kind"),
        ("http://[::1]:19120", "kind"),
        ("http://localhost:8181/catalog", "kind"),
    ],
)
def test_lake_is_named_after_server_or_kind(address: str, name: str) -> None:
    assert server_name(address, "kind") == name


def test_shell_completion_lists_the_commands() -> None:
    """Uses click's completion protocol, as documented in docs/cli.md."""
    environment = os.environ | {"_GC_ASSETS_COMPLETE": "bash_complete", "COMP_WORDS": "gc-assets re", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from gc_assets.cli.main import main; main()"], env=environment, capture_output=True, text=True, check=False
    )
    assert [line.split(",")[1] for line in done.stdout.splitlines()] == ["report", "reject", "restore", "rename", "retry"]


def test_init_writes_the_default_retention_of_each_lake(data: Path, tmp_path: Path) -> None:
    path, bare = tmp_path / "lakes.yaml", tmp_path / "bare.yaml"
    result = init(str(data), "-o", str(path))
    assert "keeps the last 5d and at least 1 snapshot (Iceberg's defaults)" in result.stdout
    assert "weather: icechunk, keeps everything" in result.stdout
    text = path.read_text()
    assert "# By default, Iceberg keeps the snapshots of the last 5 days and at least 1 for each branch. The" in text
    document = read_config(path)
    retentions = {lake["kind"]: lake.pop("retention") for lake in document["lakes"]}
    assert retentions == {"iceberg": {"source": "table"}, "icechunk": {"default": "forever", "tags": "keep"}}
    bare.write_text(yaml.safe_dump(document))
    written, without = (load_config(file, {}, config_models()) for file in (path, bare))
    assert written.policy_digest() == without.policy_digest(), "the written retention is the default"


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.discover is not None], ids=lambda kind: kind.name)
def test_retention_template_equals_the_default_of_the_lake_kind(kind: LakeKind) -> None:
    model = kind.config.model_fields["retention"].get_default(call_default_factory=True)
    (written,) = yaml.safe_load(kind.retention_yaml).values()
    assert type(model).model_validate(written).model_dump() == model.model_dump()


def test_error_for_table_metadata_without_catalog_lists_searched_files(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "warehouse" / "shop", tmp_path / "copy" / "shop")
    result = init(str(tmp_path / "copy"), "-o", str(tmp_path / "lakes.yaml"))
    assert result.exit_code == 2
    assert re.search(r"copy: found \d+ files with table metadata of Iceberg, but no catalog\.", result.stderr)
    assert re.search(r"Example: \S+/copy/shop/orders/metadata/\S+\.metadata\.json", result.stderr)
    assert "Looked for: SQLite files (.db, .sqlite or .sqlite3) that are Iceberg catalogs; Icechunk repositories." in result.stderr
    assert "Pass the catalog instead" in result.stderr
    assert not (tmp_path / "lakes.yaml").exists()


@pytest.mark.parametrize("place", ["warehouse", "", "catalog.db"])
def test_catalog_next_to_the_warehouse_folder_is_found(place: str, tmp_path: Path) -> None:
    """The layout of many tutorials. Another catalog there, without tables in the folder, is not taken."""
    LakeBuilder(tmp_path / "lake").table("shop.orders", AT).append(AT)
    (other := LakeBuilder(tmp_path / "other")).table("db.t", AT)
    shutil.copy(other.root / "catalog.db", tmp_path / "lake" / "other.db")
    place_of = str(tmp_path / "lake" / place)
    result = init(place_of, "-o", str(tmp_path / "new.yaml"), "--state", str(tmp_path / "state"))
    assert result.exit_code == 0, result.stderr
    document = yaml.safe_load((tmp_path / "new.yaml").read_text())
    uris = [lake["catalog"]["uri"] for lake in document["lakes"]]
    taken = ["catalog.db", "other.db"] if not place else ["catalog.db"]
    assert uris == [f"sqlite:///{tmp_path}/lake/{name}" for name in taken]
    assert [line for line in result.stderr.splitlines() if "Found" in line] == [
        f"Found the catalog {tmp_path}/lake/{name}." for name in taken
    ]
    assert f"file://{tmp_path}/lake/warehouse/" in [storage["location"] for storage in document["storages"]]


def test_unreadable_parent_folder_is_reported(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Iterator[Path]:
        if path == data.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", refuse)
    result = init(str(data), "-o", str(tmp_path / "new.yaml"), "--state", str(tmp_path / "state"))
    assert result.exit_code == 0, result.stderr
    assert f"Catalogs in {data.parent} are not searched: " in result.stderr


def test_init_without_arguments_shows_examples() -> None:
    result = CliRunner().invoke(cli, ["init"])
    assert result.exit_code == 2
    assert "\n  gc-assets init /data/warehouse\n" in result.stderr


@pytest.mark.parametrize(
    "table, metadata, folder",
    [
        ("shop.orders", "file:///data/wh/shop/orders/metadata/1.metadata.json", "file:///data/wh"),
        ("shop.orders", "s3://lake/wh/shop.db/orders/metadata/1.metadata.json", "s3://lake/wh"),
        ("shop.orders", "s3://lake/shop/orders/metadata/1.metadata.json", "s3://lake/shop"),
        ("shop.orders", "file:///shop/orders/metadata/1.metadata.json", "file:///shop"),
        ("shop.orders", "file:///data/other/orders/metadata/1.metadata.json", "file:///data/other"),
    ],
)
def test_warehouse_folder_is_found_from_table_location(table: str, metadata: str, folder: str) -> None:
    assert find_folder(table, metadata) == folder
