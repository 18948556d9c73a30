"""The demo creates lakes, plans exactly their unreferenced files, and all printed commands work."""

import getpass
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import icechunk
import nbformat
import pytest
import zarr
from click.testing import CliRunner, Result
from nbclient import NotebookClient
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from gc_assets.assets.lineage import ORIGINS
from gc_assets.cli.demo_story import run_demo
from gc_assets.cli.main import cli
from gc_assets.config.azure import AzureConfig
from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import UsageError
from gc_assets.definitions import build_definitions
from gc_assets.demo import azure_server
from gc_assets.demo.bucket import STORES, ensure_demo_in_bucket
from gc_assets.demo.s3_server import ensure_running
from gc_assets.demo.sample import ensure_demo
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.kinds import all_tables, owners_of
from gc_assets.resources.platform import load_platform
from gc_assets.s3.client import get_client
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.schemas import DELETION_PLAN, LIVE_FILES, REACHABLE_SNAPSHOTS, Table
from gc_assets.stores.store import open_store
from tests.azure.servers import shared_server as shared_azurite
from tests.dates import now_before_midnight
from tests.depth import full_suite_only
from tests.s3.servers import S3Server
from tests.shell import blocks, run_lines

ROOT = Path(__file__).parents[1]
SPARK_SETTINGS = 'spark: {mode: session, master: "local[2]", conf: {spark.sql.shuffle.partitions: "4"}}\n'


@dataclass
class DemoRun:
    """A demo after its run, and its output."""

    config: Path
    lake: Path
    text: str
    before: dict[str, str]

    def rows(self, group: str, table: object) -> list[dict]:
        platform = load_platform(os.environ, str(self.config))
        context = platform.run_context(platform.clock.today())
        published = context.state.require(group, table.name, platform.clock.today())
        if table is LIVE_FILES:
            return [row for batch in LiveSet(context, published).batches() for row in batch.to_pylist()]
        return read_rows(context.state, table, published).to_pylist()

    def commands(self) -> Iterator[list[str]]:
        """Return the printed commands without their comments, which follow after six spaces."""
        for line in self.text.split("NEXT COMMANDS")[1].splitlines():
            if line.startswith("  gc-assets"):
                yield shlex.split(line.strip().split("      ")[0])[1:]


def contents(lake: Path) -> dict[str, str]:
    files = [path for path in lake.rglob("*") if path.is_file() and ".gc-assets" not in path.parts]
    return {str(path.relative_to(lake)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Dagster home of `make ui` and `make demo`."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(ROOT / "deploy" / "dagster.dev.yaml", home / "dagster.yaml")
    return home


@pytest.fixture(scope="module")
def demo_run(spark: SparkSession, home: Path, tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    config = ensure_demo(tmp_path_factory.mktemp("demo"))
    now_before_midnight(minutes=6)
    with config.open("a") as file:
        file.write(SPARK_SETTINGS)
    before, output = contents(config.parent / "lake"), []
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DAGSTER_HOME", str(home))
        run_demo(config.parent, output.append)
    return DemoRun(config, config.parent / "lake", "\n".join(output), before)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a demo whose first build was interrupted."""
    directory = tmp_path_factory.mktemp("interrupted")
    (directory / "lake" / "weather").mkdir(parents=True)
    (directory / "lakes.yaml.unfinished").touch()
    assert ensure_demo(directory).exists()
    return directory


def test_second_build_does_not_change_the_lakes(demo: Path) -> None:
    before = contents(demo)
    assert ensure_demo(demo) == demo / "lakes.yaml"
    assert contents(demo) == before


def test_interrupted_build_is_started_again(demo: Path) -> None:
    assert not (demo / "lakes.yaml.unfinished").exists()
    assert load_platform({}, str(demo / "lakes.yaml")).config.lakes


def test_directory_with_another_lake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "precious").write_text("mine")
    with pytest.raises(UsageError, match="of a demo does not"):
        ensure_demo(tmp_path)
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["precious"]


def test_most_demo_files_are_older_than_the_grace_period(demo: Path) -> None:
    platform = load_platform({}, str(demo / "lakes.yaml"))
    files = [path for path in (demo / "lake").rglob("*") if path.is_file()]
    young = [path for path in files if path.stat().st_mtime > (platform.clock.now() - timedelta(hours=72)).timestamp()]
    assert 0 < len(young) < len(files) / 2
    assert sum(path.stat().st_size for path in files) < 500_000


def test_run_does_not_change_the_lakes(demo_run: DemoRun) -> None:
    assert contents(demo_run.lake) == demo_run.before


def test_demo_run_is_visible_as_partition_in_make_ui(demo_run: DemoRun, home: Path) -> None:
    definitions = build_definitions(demo_run.config)
    steps = [asset for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition)]
    made = {key for step in steps for key in step.keys} - {dg.AssetKey(["lake", "deletion_log"])}  # it only plans
    today = load_platform(os.environ, str(demo_run.config)).clock.today().isoformat()
    assert definitions.resolve_job_def("run").partitions_def.has_partition_key(today)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert {key for key in made if instance.get_materialized_partitions(key) != {today}} == set()


def test_lineage_columns_contain_all_values_of_downstream_columns(demo_run: DemoRun) -> None:
    platform = load_platform(os.environ, str(demo_run.config))
    today, state, tables = platform.clock.today(), platform.run_context(platform.clock.today()).state, all_tables()

    def values(group: str, table: Table, column: str) -> set[str]:
        return {repr(row[column]) for row in demo_run.rows(group, table) if row[column] is not None}

    compared: set[tuple[str, str]] = set()
    for name, origins in ORIGINS.items():
        for group in owners_of(platform.config, tables[name]):
            if state.current(group, name, today) is not None:
                for column, (source, origin) in origins.items():
                    found = values(group, tables[name], column)
                    assert found <= values(group, source, origin), (group, name, column)
                    compared |= {(name, column)} if found else set()
    assert len(compared) > 20
    assert {name for name, _ in compared} == ORIGINS.keys() - {"live_contents", "expiry_log", "deletion_log"}


@full_suite_only
def test_notebook_runs_on_the_demo(demo_run: DemoRun, tmp_path: Path) -> None:
    (tmp_path / "demo").symlink_to(demo_run.config.parent)
    notebook = nbformat.read(ROOT / "docs" / "library.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "save the notebook without its outputs: they are of one machine"
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "\n".join(str(output.get("text") or output["data"]["text/plain"]) for output in outputs)
    (plan,) = json.loads(run_command(["--config", str(demo_run.config), "plans", "--format", "json"]))
    assert plan["plan_id"] in printed
    assert "unreferenced" in printed
    assert "planned - No live commit needs it" in printed


def test_plan_contains_leftovers_and_expired_files(demo_run: DemoRun) -> None:
    rows = demo_run.rows("lake", DELETION_PLAN)
    freed = {row["key"].split("/")[0] for row in rows if row["after_expiry"]}
    assert freed == {"shop", "weather"}
    planned = {row["key"] for row in rows if not row["after_expiry"]}
    iceberg = {key for key in planned if key.startswith("shop/")}
    assert len(iceberg) == 8  # four and two data files, and a manifest of each of the two writers
    catalog = SqlCatalog("demo", uri=f"sqlite:///{demo_run.config.parent / 'catalog.db'}")
    for name in catalog.list_tables("shop"):
        table = catalog.load_table(name)
        for snapshot in table.snapshots():
            named = {file["file_path"] for file in table.inspect.all_files().to_pylist()} | {snapshot.manifest_list}
            assert not {f"file://{demo_run.lake}/{key}" for key in iceberg} & named
    assert {key.split("/")[1] for key in planned - iceberg} == {"chunks", "manifests", "snapshots", "transactions"}


def test_demo_policy_expires_snapshots_six_and_seven(demo_run: DemoRun) -> None:
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(demo_run.lake / "weather")))
    expired = {row["commit_id"] for row in demo_run.rows("weather", REACHABLE_SNAPSHOTS) if row["state"] == "expired"}
    heads = (repository.lookup_branch(name) for name in repository.list_branches())
    messages = {item.message for head in heads for item in repository.ancestry(snapshot_id=head) if item.id in expired}
    assert messages == {"snapshot 6", "snapshot 7"}


def test_demo_output_explains_live_files_and_garbage(demo_run: DemoRun) -> None:
    for heading in ("LIVE FILES", "GARBAGE IN STORAGE", "PROTECTED FILES", "THE PLAN", "NEXT COMMANDS"):
        assert heading in demo_run.text
    garbage = ("unreferenced, lake shop", "unreferenced, lake weather", "expired, lake shop", "expired, lake weather")
    for reason in (*garbage, "young:", "unowned: 1 file"):
        assert reason in demo_run.text


def run_command(arguments: list[str]) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, (arguments, result.output, result.stderr)
    return result.stdout


@pytest.fixture(scope="module")
def tutorial(demo_run: DemoRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Return the console blocks of the tutorial, and a directory with the demo under their name."""
    at = tmp_path_factory.mktemp("tutorial")
    (at / "demo").symlink_to(demo_run.config.parent)
    return blocks((ROOT / "docs" / "tutorial.md").read_text()), at


def test_readme_shows_the_plan_of_the_demo(demo_run: DemoRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def shape(table: str) -> list[str]:
        """Return the lines of a table without ids, dates, sizes and column widths."""
        masked = re.sub(r"\b[0-9a-f]{12}\b|\d{4}-\d\d-\d\d|(\d\d-\d\d )?\d\d:\d\d(:\d\d)?Z|[\d.]+ kB", "?", table)
        return [" ".join(re.sub("─+", "─", line).split()) for line in masked.splitlines()]

    monkeypatch.setenv("COLUMNS", "100")
    block = blocks((ROOT / "README.md").read_text())[0]
    shown = block.removeprefix("$ gc-assets plans\n").partition("$ ")[0]
    assert shape(shown) == shape(run_command(["--config", str(demo_run.config), "plans"]))


def test_commands_of_tutorial_and_demo_work_in_order(demo_run: DemoRun, tutorial: tuple[list[str], Path]) -> None:
    """Each command of the tutorial is followed by the equivalent command that the demo printed."""
    (_, block, *_), at = tutorial
    planned = {row["key"] for row in demo_run.rows("lake", DELETION_PLAN)}
    commands: dict[str, list[str]] = {}
    for arguments in demo_run.commands():
        commands.setdefault(arguments[2], arguments)
    assert list(commands) == ["report", "approve", "apply", "restore", "run"]
    met: list[str] = []

    def add_printed_commands(arguments: list[str], _: Result) -> None:
        met.append(arguments[0])
        if (printed := commands.get(arguments[0])) is None:
            return
        same = [word if word[:12] != printed[-1] and word[:12] not in printed else word[:12] for word in arguments]
        assert {word for word in same if word != getpass.getuser()} <= {*printed}
        run_command(printed)
        if arguments[0] == "apply":
            assert set(demo_run.before) - set(contents(demo_run.lake)) == planned

    output = run_lines(block, at, add_printed_commands)
    assert {"explain", "doctor", *commands} - {"run"} <= {*met}
    assert min(planned) in output
    after = contents(demo_run.lake)
    assert {key: after[key] for key in demo_run.before} == demo_run.before
    assert all(key.startswith("shop/") and key.endswith(".metadata.json") for key in after.keys() - demo_run.before.keys())
    assert "<svg" in (at / "report.html").read_text()


def test_doctor_passes_on_the_demo(demo_run: DemoRun) -> None:
    assert run_command(["--config", str(demo_run.config), "doctor"]) == ""


@full_suite_only
def test_later_run_purges_and_snapshots_stay_readable(demo_run: DemoRun, tutorial: tuple[list[str], Path]) -> None:
    planned = {row["key"] for row in demo_run.rows("lake", DELETION_PLAN)}
    (_, _, rehearsals, *_), at = tutorial
    run_lines(f"export GC_ASSETS_CONFIG=demo/lakes.yaml\n{rehearsals}", at)
    plans = json.loads(run_command(["--config", str(demo_run.config), "plans", "--status", "applied", "--format", "json"]))
    assert [plan["actions"].get(action) for plan, action in zip(plans, ("purge", "quarantine"), strict=True)] == [len(planned)] * 2
    assert not planned & {str(path.relative_to(demo_run.lake)) for path in demo_run.lake.rglob("*")}
    assert not [path for path in (demo_run.lake / ".gc-assets").rglob("*") if path.name in {key.rpartition("/")[2] for key in planned}]
    catalog = SqlCatalog("demo", uri=f"sqlite:///{demo_run.config.parent / 'catalog.db'}")
    rows = {name[1]: catalog.load_table(name).scan().to_arrow().num_rows for name in catalog.list_tables("shop")}
    assert rows == {"orders": 4_100, "returns": 2_798, "customers": 3_300}
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(demo_run.lake / "weather")))
    for branch in repository.list_branches():
        values = zarr.open_group(repository.readonly_session(branch).store, mode="r")["values"][:]
        assert len(values) == 8


@pytest.fixture
def shell() -> Iterator[None]:
    """Restore the environment after a demo on S3."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def demo_on_s3(versity: S3Server, shell: None, tmp_path: Path) -> Iterator[Path]:
    """Create a demo with its own server. `versity` skips the test if the machine has no such
    server.
    """
    yield ensure_demo_in_bucket(tmp_path / "demo", STORES["s3"])
    stop_server(tmp_path / "demo")


def stop_server(directory: Path) -> None:
    process = int((directory / "server" / "pid").read_text())
    os.kill(process, signal.SIGTERM)
    os.waitpid(process, 0)


def in_bucket(config: Path) -> dict[str, bytes]:
    platform = load_platform(os.environ, str(config))
    client: Any = get_client(platform.config.s3 or S3Config(), "read")
    bucket = platform.config.storages[0].location.removeprefix("s3://").strip("/")
    listed = client.list_objects_v2(Bucket=bucket)["Contents"]
    keys = [item["Key"] for item in listed if not item["Key"].startswith(".gc-assets/")]
    return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


@full_suite_only
def test_demo_on_another_s3_server(
    spark: SparkSession, versity: S3Server, shell: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.environ |= {"AWS_ACCESS_KEY_ID": versity.access_key, "AWS_SECRET_ACCESS_KEY": versity.secret_key}
    config = ensure_demo_in_bucket(tmp_path / "demo", STORES["s3"], versity.endpoint)
    # The suite's executors began before this environment: they find the same user by profile.
    text = config.read_text().replace("region: us-east-1}", "region: us-east-1, profile: owner}")
    config.write_text(text + SPARK_SETTINGS)
    before, output = in_bucket(config), list[str]()
    run_demo(config.parent, output.append)
    demo_run = DemoRun(config, config.parent, "\n".join(output), {})
    planned = {row["key"] for row in demo_run.rows("lake", DELETION_PLAN)}
    assert len(planned) == 50
    for found in ("young: 5 files", "unowned: 1 file", "in s3://gc-assets-demo-", "remains until you delete it"):
        assert found in demo_run.text
    monkeypatch.chdir(tmp_path)
    commands: dict[str, list[str]] = {}
    for arguments in demo_run.commands():
        commands.setdefault(arguments[2], arguments)
    assert list(commands) == ["report", "approve", "apply", "restore", "run"]
    for name in ("report", "approve", "apply"):
        run_command(commands[name])
    assert set(before) - set(in_bucket(config)) == planned
    run_command(commands["restore"])
    assert before.items() <= in_bucket(config).items()


def test_stopped_s3_server_restarts_with_objects_and_private_keys(demo_on_s3: Path) -> None:
    before = in_bucket(demo_on_s3)
    stop_server(demo_on_s3.parent)
    assert ensure_demo_in_bucket(demo_on_s3.parent, STORES["s3"]) == demo_on_s3
    assert in_bucket(demo_on_s3) == before
    secret = ensure_running(demo_on_s3.parent / "server").secret_key
    holding = {path for path in demo_on_s3.parent.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()}
    assert {path.name for path in holding} == {"s3.env", "server.json"}
    assert {path.stat().st_mode & 0o077 for path in holding} == {0}


@pytest.fixture
def demo_on_azure(shell: None, tmp_path: Path) -> Iterator[Path]:
    shared_azurite()  # skips the test if the machine has no Azurite
    yield ensure_demo_in_bucket(tmp_path / "demo", STORES["azure"])
    stop_server(tmp_path / "demo")


@full_suite_only
def test_demo_on_azure_is_planned_applied_and_restored(demo_on_azure: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of its own: the executors of the suite began without the credentials of the demo."""
    monkeypatch.chdir(demo_on_azure.parent)
    before = in_container(demo_on_azure)

    def run(*arguments: str) -> str:
        script = "from gc_assets.cli.main import cli; cli()"
        return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True).stdout

    text = run("demo", "--dir", str(demo_on_azure.parent))
    printed = ("young: 5 files", "unowned: 1 file", "quarantine 50 files", "in abfss://gc-assets-demo-", ". azure.env")
    for found in (*printed, "stops the Azure server"):
        assert found in text
    commands: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("  gc-assets --config"):
            arguments = shlex.split(line, comments=True)[1:]
            commands.setdefault(arguments[2], arguments)
    for name in ("approve", "apply"):
        run(*commands[name])
    assert len(before - in_container(demo_on_azure)) == 50
    run(*commands["restore"])
    assert before <= in_container(demo_on_azure)


def in_container(config: Path) -> set[str]:
    """Return the keys of the lakes."""
    found = load_platform(os.environ, str(config)).config
    location = found.storages[0].location
    listed = open_store(location, Connections.of(found.azure or AzureConfig())).objects.list(location)
    return {address.removeprefix(location) for address, _, _ in listed}


def test_stopped_azurite_restarts_with_blobs(demo_on_azure: Path) -> None:
    before = in_container(demo_on_azure)
    stop_server(demo_on_azure.parent)
    assert ensure_demo_in_bucket(demo_on_azure.parent, STORES["azure"]) == demo_on_azure
    assert in_container(demo_on_azure) == before
    secret = azure_server.ensure_running(demo_on_azure.parent / "server").secret_key
    files = [path for path in demo_on_azure.parent.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert {(path.name, path.stat().st_mode & 0o077) for path in files} == {("azure.env", 0), ("server.json", 0)}


def test_missing_azurite_is_reported(shell: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="npm install --global azurite"):
        ensure_demo_in_bucket(tmp_path / "demo", STORES["azure"])
    assert not (tmp_path / "demo").exists()


def test_missing_s3_server_is_reported(shell: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(UsageError, match="--s3-endpoint URL"):
        ensure_demo_in_bucket(tmp_path / "demo", STORES["s3"])
    assert not (tmp_path / "demo").exists()


def test_disk_demo_directory_is_refused_for_an_s3_demo(demo: Path, shell: None) -> None:
    with pytest.raises(UsageError, match=r"a demo on a local disk\. Choose another --dir"):
        ensure_demo_in_bucket(demo, STORES["s3"])


def test_azure_demo_directory_is_refused_for_an_s3_demo(shell: None, tmp_path: Path) -> None:
    for name in ("lakes.yaml", "azure.env"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"a demo on Azure\. Choose another --dir"):
        ensure_demo_in_bucket(tmp_path, STORES["s3"])
