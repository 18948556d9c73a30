"""`gc-assets doctor` before each flaw that a configuration, a disk or a state can have: it names what it found and the way out, exits 1
and changes nothing. Before a sound one it is quiet.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from gc_assets.core.gates import foreign_metadata
from gc_assets.core.plan import PlanHeader, Unreadable
from gc_assets.resources.connect_server import identity
from gc_assets.resources.platform import Platform, load_platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, record_damage
from tests.assets.platforms import stored_plan
from tests.cli.lakes import SmallLake, small_lake
from tests.records import put_log, word

NOW = datetime.now(UTC)
TODAY = NOW.date().isoformat()
KEY = "a secret of sixteen letters"


@dataclass
class At:
    """A small lake, and a state with a plan of today that may still be approved and with what an earlier plan did. What a flaw says of
    `document` is written to lakes.yaml.
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

    def again(self) -> None:
        """As it was before any flaw."""
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
        """Every name below the root with its mode and what it holds."""
        found: dict[str, str] = {}
        for path in sorted(self.root.rglob("*")):
            held = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
            found[str(path)] = f"{path.lstat().st_mode:o} {held}"
        return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> At:
    root = tmp_path_factory.mktemp("doctor") / "root"
    root.mkdir()
    lake = small_lake(root)
    platform = load_platform({}, str(lake.lakes_yaml))
    put_log(platform.run_context(NOW.date()), word("shop/orders/data/x.parquet", "quarantine", "p"))
    plan = header_of(stored_plan(platform, run_date=TODAY, live_by_lake={"sales": 7}, refs_digests={"sales": "d"}))
    backup = root.with_name("backup")
    at = At(lake, backup, plan)
    at.document = json.loads(lake.lakes_yaml.read_text())
    at.doctor()  # what readers of the state keep for themselves is there
    shutil.copytree(root, backup, symlinks=True)
    return at


@pytest.fixture
def at(built: At) -> Iterator[At]:
    built.again()
    yield built
    while built.undo:
        built.undo.pop()()


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def a_mistyped_catalog(at: At) -> None:
    at.catalog["uri"] = f"sqlite:///{at.root}/catalgo.db"


def a_lake_that_left(at: At) -> None:
    at.document["lakes"][0]["name"] = "marketing"


def an_empty_catalog(at: At) -> None:
    at.in_catalog("delete from iceberg_tables")


def a_table_at_the_root(at: At) -> None:
    at.storage["location"] = f"file://{at.table}/"


def a_state_below_a_claim(at: At) -> None:
    shutil.copytree(at.root / "state", at.table / "state")
    at.document["state"] = str(at.table / "state")


def a_catalog_below_a_claim(at: At) -> None:
    shutil.copy(at.root / "catalog.db", at.table / "catalog.db")
    at.catalog["uri"] = f"sqlite:///{at.table}/catalog.db"


def another_storage(at: At, location: Path) -> None:
    location.mkdir(exist_ok=True)
    at.document["storages"].append({"name": "attic", "location": f"file://{location}/"})


def a_link_into_another_storage(at: At) -> None:
    another_storage(at, at.root / "attic")
    (at.root / "attic" / "orders").symlink_to(at.table)


def a_link_below_a_claim(at: At) -> None:
    (at.table / "data" / "more").symlink_to(at.root)


def metadata_by_a_link(at: At) -> None:
    address = at.lake.orders.metadata_location
    (at.root / "outside").mkdir()
    link = at.root / "outside" / "00009-x.metadata.json"
    link.symlink_to(at.lake.orders.path(address))
    at.in_catalog("update iceberg_tables set metadata_location = ? where table_name = 'orders'", f"file://{link}")


def storages_that_overlap(at: At) -> None:
    another_storage(at, at.warehouse / "shop")


def a_bind_mount(at: At) -> None:
    another_storage(at, at.root / "attic")
    done = subprocess.run(["mount", "--bind", at.table, at.root / "attic"], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("only root may mount")
    at.undo.append(lambda: subprocess.run(["umount", at.root / "attic"], check=True))


def an_edited_plan(at: At) -> None:
    edited(at.receipt, lambda receipt: receipt["summary"]["header"].update(live_files=1))


def an_edited_row(at: At) -> None:
    part = next(at.receipt.parent.glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def another_plan_key(at: At) -> None:
    at.document["plan_key"] = KEY


def an_approval_of_another_plan(at: At) -> None:
    approve(at.platform().config, at.platform().clock, at.plan.plan_id, "ada")
    approval = next((at.root / "state/warehouse/approvals").glob("*.json"))
    edited(approval, lambda record: record.update(plan_id="ab" * 32))


def a_refused_night(at: At) -> None:
    stored_plan(at.platform(), run_date=TODAY, live_by_lake={"sales": 7}, gates=(foreign_metadata(2, ["a/b.metadata.json"]),))


def a_table_that_the_night_could_not_read(at: At) -> None:
    unreadable = Unreadable(
        lake="sales", table_name="shop.orders", why="manifest m0.avro is cut", since=NOW, good_on=NOW.date() - timedelta(days=1)
    )
    stored_plan(at.platform(), run_date=TODAY, live_by_lake={"sales": 7}, unreadable=(unreadable,))


def a_sick_table(at: At) -> None:
    path = at.lake.orders.path(at.lake.orders.metadata_location)
    path.write_bytes(path.read_bytes()[:100])


def a_history_that_an_edit_spoilt(at: At) -> None:
    record_damage(at.platform().run_context(NOW.date()).state, "sales", at.plan.plan_id, ["tag audit is gone"])


def an_open_quarantine(at: At) -> None:
    (at.warehouse / ".gc-assets").mkdir()
    (at.warehouse / ".gc-assets").chmod(0o755)


def an_apply_that_stopped(at: At) -> None:
    begun = at.root / "state" / "warehouse" / "apply" / at.plan.plan_id
    begun.mkdir(parents=True)
    (begun / "log.json").write_text("{}")


def a_log_that_lost_its_rows(at: At) -> None:
    next((at.root / "state/warehouse/deletion_log").rglob("*.parquet")).unlink()


def an_edited_index(at: At) -> None:
    index = at.root / "state/warehouse/deletion_log/_index.json"
    edited(index, lambda document: document["runs"].clear())


FLAWS: dict[str, tuple[Callable[[At], None], str, str, str, str]] = {
    "a mistyped path of a catalog": (a_mistyped_catalog, "sales", "readable", "/catalgo.db does not exist; expected", "mend `catalog.uri`"),
    "a lake that left": (a_lake_that_left, "warehouse", "lakes", "sales (not in lakes.yaml by now, 7 files then)", "gc-assets forget LAKE"),
    "an empty catalog": (
        an_empty_catalog,
        "warehouse",
        "lakes",
        "sales (nothing of it is live here by now, 7 files then)",
        "Put them back",
    ),
    "a table at the root": (
        a_table_at_the_root,
        "warehouse",
        "claims",
        "is a whole storage, or contains a prefix",
        "its own location",
    ),
    "the state below a claim": (
        a_state_below_a_claim,
        "warehouse",
        "claims",
        "orders/state/ is the collector's own",
        "Move one of the two",
    ),
    "a catalog below a claim": (
        a_catalog_below_a_claim,
        "warehouse",
        "claims",
        "orders/catalog.db is the collector's own or a catalog",
        "Move",
    ),
    "a link into another storage": (
        a_link_into_another_storage,
        "attic",
        "links",
        "in storage warehouse: what lies there has two names",
        "Replace",
    ),
    "a link below a claim": (
        a_link_below_a_claim,
        "warehouse",
        "links",
        "data/more is a symbolic link to ",
        "Replace the link by its files",
    ),
    "metadata by a link": (
        metadata_by_a_link,
        "sales",
        "links",
        "00009-x.metadata.json, in no storage, which is a symbolic link to",
        "Replace",
    ),
    "storages that overlap": (storages_that_overlap, "storages", "overlaps", "warehouse and attic", "Combine them into one storage"),
    "a bind mount": (a_bind_mount, "storages", "overlaps", "attic", "Use only one path of a directory that is mounted twice"),
    "an edited plan": (an_edited_plan, "warehouse", "plans", "it was changed after publication", "Make a new one with `gc-assets run`"),
    "an edited row": (an_edited_row, "warehouse", "plans", "holds other bytes than were written", "Make a new one with `gc-assets run`"),
    "another plan_key": (
        another_plan_key,
        "warehouse",
        "plans",
        "was made without a plan_key, and the configuration now has one",
        "gc-assets run",
    ),
    "an approval of another plan": (an_approval_of_another_plan, "warehouse", "plans", "is about plan abababab", "remove it and approve"),
    "a refused night": (a_refused_night, "warehouse", "last_run", "refused by gate foreign_metadata: 2 metadata objects", "Add the catalog"),
    "a night that could not read": (
        a_table_that_the_night_could_not_read,
        "warehouse",
        "unreadable",
        "manifest m0.avro is cut",
        "then `gc-assets run`",
    ),
    "a sick table": (a_sick_table, "sales", "unreadable", "table shop.orders could not be read", "until it can be read"),
    "a spoilt history": (a_history_that_an_edit_spoilt, "state", "histories", "tag audit is gone", "then remove the record"),
    "an open quarantine": (an_open_quarantine, "warehouse", "private", "has the mode 0755, expected 0700", "chmod 700"),
    "an apply that stopped": (an_apply_that_stopped, "warehouse", "interrupted", "1 plans began and did not finish", "gc-assets apply"),
    "a log that lost its rows": (
        a_log_that_lost_its_rows,
        "warehouse",
        "ledger",
        "is missing, its receipt says",
        "from a backup of the state",
    ),
    "an edited index": (an_edited_index, "state", "index", "its sum does not agree", "gc-assets doctor --repair"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_told_with_its_way_out_and_exit_1_and_nothing_is_changed(at: At, flaw: str) -> None:
    spoil, subject, check, words, way_out = FLAWS[flaw]
    spoil(at)
    at.lake.lakes_yaml.write_text(json.dumps(at.document))
    before = at.digest()
    result = at.doctor("--format", "json")
    failed = [row for row in json.loads(result.stdout) if row["verdict"] == "fail"]
    assert result.exit_code == 1, failed
    assert (subject, check) in {(row["subject"], row["check"]) for row in failed}
    said = " ".join(f"{row['found']} {row['todo']}" for row in failed if (row["subject"], row["check"]) == (subject, check))
    assert words in said
    assert way_out in said
    assert at.digest() == before


def test_a_local_server_of_spark_that_others_could_enter_is_told(at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_CONNECT_DISCOVERY", str(tmp_path / "connect-local.json"))
    at.document["spark"] = {"mode": "connect", "remote": "local[2]"}
    other = tmp_path / "gc-assets-of-another-environment"
    other.mkdir()
    (other / "connect-local.json").write_text("{}")
    assert "1 of others are left alone" in at.doctor("--all").stdout
    assert list(tmp_path.iterdir()) == [other]
    (tmp_path / f"gc-assets-{identity()}").mkdir(mode=0o755)
    told = at.doctor()
    assert told.exit_code == 1
    assert "must be a directory that only you may enter" in told.stdout


def test_what_is_no_danger_is_to_look_at_and_exits_0(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path of a table, what pyiceberg merges in, a yes that waits for another, a link that nobody claims, the mark of an apply
    that was killed.
    """
    metadata = at.lake.orders.path(at.lake.orders.metadata_location)
    edited(metadata, lambda document: document["properties"].update({"write.data.path": "objects/"}))
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", "file:///elsewhere")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__PREFIX", "prod")
    approve(at.platform().config, at.platform().clock, at.plan.plan_id, "ada")
    at.storage["approvals_needed"] = 2
    (at.warehouse / "latest").symlink_to(at.root)
    (at.root / "state" / "_recheck" / f"{'ab' * 32}-1").mkdir(parents=True)
    result = at.doctor("--format", "json")
    looks = {row["found"]: row["todo"] for row in json.loads(result.stdout) if row["verdict"] == "warn"}
    said = " ".join(looks)
    assert result.exit_code == 0, said
    assert "write.data.path is 'objects/', a relative path" in said
    assert "adds properties to `catalog`: prefix=prod; write them into lakes.yaml, or unset them" in said
    assert "approved by 1 of 2 names" in said
    assert f"gc-assets approve {at.plan.plan_id[:12]} --by ANOTHER_NAME" in looks.values()
    assert "latest is a symbolic link to" in said
    assert "1 marks of applies that were killed" in said
    assert len(looks) == 5


def test_a_sound_configuration_is_met_in_silence(at: At) -> None:
    before = at.digest()
    result = at.doctor()
    assert (result.exit_code, result.stdout) == (0, ""), result.stdout
    assert "0 failed, 0 to look at" in result.stderr
    assert "ok " in at.doctor("--all").stdout
    assert at.digest() == before
