"""`gc-assets doctor` for each problem of a configuration, a disk or a state.

It reports the problem and the solution, exits with 1 and changes nothing. Without a problem it
prints nothing.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from gc_assets.cli import context as command_context
from gc_assets.cli.main import cli
from gc_assets.core.gates import foreign_metadata
from gc_assets.core.plan import PlanHeader, Unreadable
from gc_assets.resources.connect_server import identity
from gc_assets.resources.platform import Platform, load_platform
from gc_assets.resources.spark_version import has_local_server
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, record_damage
from tests.assets.platforms import stored_plan
from tests.cli.lakes import SmallLake, small_lake
from tests.records import log_row, publish_log

NOW = datetime.now(UTC)
TODAY = NOW.date().isoformat()
KEY = "a secret of sixteen letters"


@dataclass
class Setup:
    """A small lake, and a state with a current plan and the results of an earlier plan. `document`
    is written to lakes.yaml.
    """

    lake: SmallLake
    backup: Path
    plan: PlanHeader
    document: dict[str, Any] = field(default_factory=dict[str, Any])
    undo: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])

    @property
    def root(self) -> Path:
        return self.lake.root

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def table(self) -> Path:
        return self.lake.orders.path(self.lake.orders.table.location())

    @property
    def storage(self) -> dict[str, Any]:
        return self.document["storages"][0]

    @property
    def catalog(self) -> dict[str, Any]:
        return self.document["lakes"][0]["catalog"]

    @property
    def receipt(self) -> Path:
        return next((self.root / "state" / "warehouse" / "deletion_plan").rglob("_receipt.json"))

    def platform(self) -> Platform:
        return load_platform({}, str(self.lake.lakes_yaml))

    def reset(self) -> None:
        """Restore the files from before the flaw."""
        shutil.rmtree(self.root)
        shutil.copytree(self.backup, self.root, symlinks=True)
        self.document = json.loads(self.lake.lakes_yaml.read_text())

    def doctor(self, *arguments: str) -> Result:
        self.lake.lakes_yaml.write_text(json.dumps(self.document))
        return CliRunner().invoke(cli, ["doctor", *arguments, "--config", str(self.lake.lakes_yaml)])

    def in_catalog(self, statement: str, *values: str) -> None:
        with closing(sqlite3.connect(self.root / "catalog.db")) as database, database:
            database.execute(statement, values)

    def digest(self) -> dict[str, str]:
        """Return every path under the root with its mode and content."""
        found: dict[str, str] = {}
        for path in sorted(self.root.rglob("*")):
            held = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
            found[str(path)] = f"{path.lstat().st_mode:o} {held}"
        return found


@pytest.fixture(scope="module")
def built_setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    root = tmp_path_factory.mktemp("doctor") / "root"
    root.mkdir()
    lake = small_lake(root)
    platform = load_platform({}, str(lake.lakes_yaml))
    publish_log(platform.run_context(NOW.date()), log_row("shop/orders/data/x.parquet", "quarantine", "p"))
    plan = header_of(stored_plan(platform, run_date=TODAY, live_by_lake={"sales": 7}, refs_digests={"sales": "d"}))
    backup = root.with_name("backup")
    setup = Setup(lake, backup, plan)
    setup.document = json.loads(lake.lakes_yaml.read_text())
    setup.doctor()  # what readers of the state keep for themselves is there
    shutil.copytree(root, backup, symlinks=True)
    return setup


@pytest.fixture
def setup(built_setup: Setup) -> Iterator[Setup]:
    built_setup.reset()
    yield built_setup
    while built_setup.undo:
        built_setup.undo.pop()()


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def mistype_catalog(setup: Setup) -> None:
    setup.catalog["uri"] = f"sqlite:///{setup.root}/catalgo.db"


def remove_lake(setup: Setup) -> None:
    setup.document["lakes"][0]["name"] = "marketing"


def empty_catalog(setup: Setup) -> None:
    setup.in_catalog("delete from iceberg_tables")


def table_at_root(setup: Setup) -> None:
    setup.storage["location"] = f"file://{setup.table}/"


def state_in_claim(setup: Setup) -> None:
    shutil.copytree(setup.root / "state", setup.table / "state")
    setup.document["state"] = str(setup.table / "state")


def catalog_in_claim(setup: Setup) -> None:
    shutil.copy(setup.root / "catalog.db", setup.table / "catalog.db")
    setup.catalog["uri"] = f"sqlite:///{setup.table}/catalog.db"


def add_storage(setup: Setup, location: Path) -> None:
    location.mkdir(exist_ok=True)
    setup.document["storages"].append({"name": "attic", "location": f"file://{location}/"})


def link_into_storage(setup: Setup) -> None:
    add_storage(setup, setup.root / "attic")
    (setup.root / "attic" / "orders").symlink_to(setup.table)


def link_in_claim(setup: Setup) -> None:
    (setup.table / "data" / "more").symlink_to(setup.root)


def link_to_metadata(setup: Setup) -> None:
    address = setup.lake.orders.metadata_location
    (setup.root / "outside").mkdir()
    link = setup.root / "outside" / "00009-x.metadata.json"
    link.symlink_to(setup.lake.orders.path(address))
    setup.in_catalog("update iceberg_tables set metadata_location = ? WHERE table_name = 'orders'", f"file://{link}")


def overlapping_storages(setup: Setup) -> None:
    add_storage(setup, setup.warehouse / "shop")


def bind_mount(setup: Setup) -> None:
    add_storage(setup, setup.root / "attic")
    done = subprocess.run(["mount", "--bind", setup.table, setup.root / "attic"], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("only root may mount")
    setup.undo.append(lambda: subprocess.run(["umount", setup.root / "attic"], check=True))


def edit_plan(setup: Setup) -> None:
    edit_json(setup.receipt, lambda receipt: receipt["summary"]["header"].update(live_files=1))


def edit_row(setup: Setup) -> None:
    part = next(setup.receipt.parent.glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def change_plan_key(setup: Setup) -> None:
    setup.document["plan_key"] = KEY


def misplaced_approval(setup: Setup) -> None:
    approve(setup.platform().config, setup.platform().clock, setup.plan.plan_id, "ada")
    approval = next((setup.root / "state/warehouse/approvals").glob("*.json"))
    edit_json(approval, lambda record: record.update(plan_id="ab" * 32))


def refused_run(setup: Setup) -> None:
    stored_plan(setup.platform(), run_date=TODAY, live_by_lake={"sales": 7}, gates=(foreign_metadata(2, ["a/b.metadata.json"]),))


def unreadable_in_last_run(setup: Setup) -> None:
    unreadable = Unreadable(
        lake="sales", table_name="shop.orders", why="manifest m0.avro is cut", since=NOW, good_on=NOW.date() - timedelta(days=1)
    )
    stored_plan(setup.platform(), run_date=TODAY, live_by_lake={"sales": 7}, unreadable=(unreadable,))


def unreadable_table(setup: Setup) -> None:
    path = setup.lake.orders.path(setup.lake.orders.metadata_location)
    path.write_bytes(path.read_bytes()[:100])


def damaged_history(setup: Setup) -> None:
    record_damage(setup.platform().run_context(NOW.date()).state, "sales", setup.plan.plan_id, ["tag audit is gone"])


def mistype_catalog_name(setup: Setup) -> None:
    setup.document["lakes"][0]["catalog_name"] = "prod"


def open_quarantine(setup: Setup) -> None:
    (setup.warehouse / ".gc-assets").mkdir()
    (setup.warehouse / ".gc-assets").chmod(0o755)


def interrupted_apply(setup: Setup) -> None:
    begun = setup.root / "state" / "warehouse" / "apply" / setup.plan.plan_id
    begun.mkdir(parents=True)
    (begun / "log.json").write_text("{}")


def incomplete_log(setup: Setup) -> None:
    next((setup.root / "state/warehouse/deletion_log").rglob("*.parquet")).unlink()


def edit_index(setup: Setup) -> None:
    index = setup.root / "state/warehouse/deletion_log/_index.json"
    edit_json(index, lambda document: document["runs"].clear())


FLAWS: dict[str, tuple[Callable[[Setup], None], str, str, str, str]] = {
    "wrong catalog path": (mistype_catalog, "sales", "readable", "/catalgo.db does not exist; expected", "correct `catalog.uri`"),
    "removed lake": (remove_lake, "warehouse", "lakes", "sales (not in lakes.yaml now, 7 live files before)", "gc-assets forget LAKE"),
    "empty catalog": (
        empty_catalog,
        "warehouse",
        "lakes",
        "sales (no live files now, 7 live files before)",
        "are not protected",
    ),
    "a wrong catalog name": (
        mistype_catalog_name,
        "sales",
        "names",
        "catalog 'prod' has no tables, but its database has tables of 'default'",
        "Correct the name",
    ),
    "a table at the root": (
        table_at_root,
        "warehouse",
        "claims",
        "is a whole storage, or contains a prefix",
        "its own location",
    ),
    "the state below a claim": (
        state_in_claim,
        "warehouse",
        "claims",
        "orders/state/ belongs to the collector",
        "Move one of the two",
    ),
    "a catalog below a claim": (
        catalog_in_claim,
        "warehouse",
        "claims",
        "orders/catalog.db belongs to the collector or a catalog",
        "Move",
    ),
    "a link into another storage": (
        link_into_storage,
        "attic",
        "links",
        "in storage warehouse: its files have two addresses",
        "Replace",
    ),
    "a link below a claim": (
        link_in_claim,
        "warehouse",
        "links",
        "data/more is a symbolic link to ",
        "Replace the link by its files",
    ),
    "metadata by a link": (
        link_to_metadata,
        "sales",
        "links",
        "00009-x.metadata.json, outside all storages, a symbolic link to",
        "Replace",
    ),
    "storages that overlap": (overlapping_storages, "storages", "overlaps", "warehouse and attic", "Combine them into one storage"),
    "a bind mount": (bind_mount, "storages", "overlaps", "attic", "Use only one path of a directory that is mounted twice"),
    "an edited plan": (edit_plan, "warehouse", "plans", "it was changed after publication", "Make a new one with `gc-assets run`"),
    "an edited row": (edit_row, "warehouse", "plans", "is damaged (sha256", "Make a new one with `gc-assets run`"),
    "another plan_key": (
        change_plan_key,
        "warehouse",
        "plans",
        "was made without a plan_key, and lakes.yaml has one now",
        "gc-assets run",
    ),
    "an approval of another plan": (
        misplaced_approval,
        "warehouse",
        "plans",
        "contains an event of plan abababab",
        "Remove the file, then approve the plan again",
    ),
    "refused run": (
        refused_run,
        "warehouse",
        "last_run",
        "refused by gate foreign_metadata: 2 metadata objects",
        "--override foreign_metadata",
    ),
    "unreadable in the last run": (
        unreadable_in_last_run,
        "warehouse",
        "unreadable",
        "manifest m0.avro is cut",
        "then run `gc-assets run`",
    ),
    "unreadable table": (unreadable_table, "sales", "unreadable", "table shop.orders could not be read", "and nothing is purged"),
    "damaged history": (damaged_history, "state", "histories", "tag audit is gone", "then remove the record"),
    "an open quarantine": (open_quarantine, "warehouse", "private", "has mode 0755, expected 0700", "chmod 700"),
    "an apply that stopped": (interrupted_apply, "warehouse", "interrupted", "1 plan began and did not finish", "gc-assets apply"),
    "a log that lost its rows": (
        incomplete_log,
        "warehouse",
        "ledger",
        "is missing, expected",
        "from a backup of the state",
    ),
    "an edited index": (edit_index, "state", "index", "its checksum does not match", "gc-assets doctor --repair"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_problem_is_reported_with_solution_and_exit_code_1(setup: Setup, flaw: str) -> None:
    break_setup, subject, check, text, solution = FLAWS[flaw]
    break_setup(setup)
    setup.lake.lakes_yaml.write_text(json.dumps(setup.document))
    before = setup.digest()
    result = setup.doctor("--format", "json")
    failed = [row for row in json.loads(result.stdout) if row["verdict"] == "fail"]
    assert result.exit_code == 1, failed
    assert (subject, check) in {(row["subject"], row["check"]) for row in failed}
    message = " ".join(f"{row['found']} {row['todo']}" for row in failed if (row["subject"], row["check"]) == (subject, check))
    assert text in message
    assert solution in message
    assert setup.digest() == before


def test_unmounted_storage_is_reported_as_one_problem(setup: Setup) -> None:
    """Tables in it cannot be read either, but users should not set them aside or drop them for that."""
    setup.warehouse.rename(setup.root / "unmounted")
    rows = json.loads(setup.doctor("--format", "json").stdout)
    assert [(row["subject"], row["check"]) for row in rows if row["verdict"] == "fail"] == [("warehouse", "listable")]
    skipped = {(row["subject"], row["check"]): row["found"] for row in rows if row["verdict"] == "skipped"}
    assert skipped["sales", "unreadable"] == "2 tables in storage warehouse: depends on the failed check listable"
    output = setup.doctor()
    assert output.exit_code == 1
    assert "Mount it, or correct `location`." in output.stdout
    assert "set-aside" not in output.stdout


def spark_findings(setup: Setup) -> dict[str, tuple[str, str]]:
    rows = json.loads(setup.doctor("--format", "json").stdout)
    return {row["check"]: (row["verdict"], row["found"]) for row in rows if row["subject"] == "spark"}


def test_versions_of_process_and_spark_submit_are_reported(setup: Setup, tmp_path: Path) -> None:
    setup.document["spark"] = {"mode": "submit"}
    found = spark_findings(setup)
    assert found["versions"] == ("ok", f"this process has pyspark {pyspark.__version__} and Python {platform.python_version()}")
    assert found["spark-submit"][0] == "ok"
    assert found["spark-submit"][1].endswith(f"bin/spark-submit (Spark {pyspark.__version__})")
    program = tmp_path / "bin" / "spark-submit"
    for name in ("bin/spark-submit", "jars/spark-core_2.12-3.3.2.jar"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch(0o755)
    setup.document["spark"]["submit_program"] = str(program)
    supported = "Spark 3.5 and 4.0 to 4.3"
    assert spark_findings(setup)["spark-submit"] == ("fail", f"{program} is Spark 3.3.2, but gc-assets supports {supported}")


def test_server_directory_with_open_permissions_is_reported(
    setup: Setup, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_context, "open_spark", lambda *_, **__: spark)  # a server would outlive the test
    if not has_local_server():
        setup.document["spark"] = {"mode": "connect", "remote": "local[2]"}
        assert "has no reusable local Spark Connect server" in setup.doctor().stdout
        return
    monkeypatch.setenv("SPARK_LOCAL_CONNECT_DISCOVERY", str(tmp_path / "connect-local.json"))
    setup.document["spark"] = {"mode": "connect", "remote": "local[2]"}
    other = tmp_path / "gc-assets-of-another-environment"
    other.mkdir()
    (other / "connect-local.json").write_text("{}")
    assert "0 other servers exist" in setup.doctor("--all").stdout  # it has ended
    assert list(tmp_path.iterdir()) == [other]
    (tmp_path / f"gc-assets-{identity()}").mkdir(mode=0o755)
    output = setup.doctor()
    assert output.exit_code == 1
    assert "is not a directory that only you can access" in output.stdout


def test_doctor_with_only_warnings_exits_with_0(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path of a table, settings that pyiceberg adds, an approval that waits for another,
    an unclaimed link, and the mark of a killed apply.
    """
    metadata = setup.lake.orders.path(setup.lake.orders.metadata_location)
    edit_json(metadata, lambda document: document["properties"].update({"write.data.path": "objects/"}))
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", "file:///elsewhere")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__PREFIX", "prod")
    approve(setup.platform().config, setup.platform().clock, setup.plan.plan_id, "ada")
    setup.storage["approvals_needed"] = 2
    (setup.warehouse / "latest").symlink_to(setup.root)
    (setup.root / "state" / "_recheck" / f"{'ab' * 32}-1").mkdir(parents=True)
    result = setup.doctor("--format", "json")
    looks = {row["found"]: row["todo"] for row in json.loads(result.stdout) if row["verdict"] == "warn"}
    message = " ".join(looks)
    assert result.exit_code == 0, message
    assert "write.data.path is the relative path 'objects/'" in message
    assert "adds properties to `catalog`: prefix=prod; write them into lakes.yaml, or unset them" in message
    assert "approved by 1 of 2 people" in message
    assert f"gc-assets approve {setup.plan.plan_id[:12]} --by ANOTHER_NAME" in looks.values()
    assert "latest is a symbolic link to" in message
    assert "interrupted applies have left 1 verification mark in " in message
    assert len(looks) == 5


def test_valid_setup_prints_nothing(setup: Setup) -> None:
    before = setup.digest()
    result = setup.doctor()
    assert (result.exit_code, result.stdout) == (0, ""), result.stdout
    first, *checking, last = result.stderr.splitlines()
    assert first == "  checking Spark, which takes some seconds to start"
    places = ["the servers of lakes and storages", "state", "sales", "storages", "warehouse"]
    assert [line for line in checking if "checking" in line] == [f"  checking {place}" for place in places]
    assert last.endswith("0 failed, 0 warnings")
    assert "ok " in setup.doctor("--all").stdout
    assert setup.digest() == before
