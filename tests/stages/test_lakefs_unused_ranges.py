"""Ranges and metaranges that no commit references are collected (`unused_ranges: collect`), and no
commit loses any.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.containers import decode
from gc_assets.lakes.lakefs.metaranges import read_metarange
from gc_assets.lakes.protocol import Container
from gc_assets.stages.read.explain import explain
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stages.records.plans import find_plan
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import DROPPED_TABLES, DROPPED_TABLES_SIDE
from tests.depth import example_count, full_suite_only, in_turn
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeRepository, FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of, moment
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import Recording
from tests.stages.forecasts import forecast_orphans, orphans_under_policy
from tests.stages.lakehouse import Lakehouse, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]
GATES = {"max_delete_share": 1, "max_live_drop": 1}


@dataclass
class Setup:
    """A repository whose unused ranges are collected, its lakehouse and its server."""

    house: Lakehouse
    repository: FakeRepository
    server: FakeServer
    # Contents of tables that were lost or damaged, by id.
    broken: dict[str, bytes] = field(default_factory=dict)

    @property
    def metadata(self) -> Path:
        return self.repository.namespace / "_lakefs"

    def tables(self) -> set[str]:
        """Return the ids of the existing ranges and metaranges."""
        return {path.name for path in self.metadata.iterdir() if len(path.name) == 64}

    def list_planned(self) -> set[str]:
        prefix = f"{self.repository.name}/_lakefs/"
        return {key.removeprefix(prefix) for key in self.house.planned_actions() if key.startswith(prefix)}

    def read_commits(self) -> set[str]:
        """Read the tree of each commit, as a server did before the losses. Return the ids of the tables that were read."""
        found: set[str] = set()
        for name, commit in self.repository.commits.items():
            tree = {path: item.address for path, item in self.repository.trees[name].items()}
            read, ids = self._read_tree(commit.metarange_id) if commit.metarange_id else ({}, set[str]())
            assert read == {path: self._address_of(address) for path, address in tree.items()}, name
            found |= ids
        return found

    def _read_tree(self, metarange_id: str) -> tuple[dict[str, str], set[str]]:
        ids, tree = {metarange_id}, dict[str, str]()
        for item in read_metarange(metarange_id, metarange_id, self._read(metarange_id)):
            ids.add(item.range_id)
            container = Container(f"file://{self.metadata}/{item.range_id}", Kind.RANGE, None, item.records)
            rows = decode(container, self._read(item.range_id)).to_pylist()
            tree |= {row["path"]: row["address"] for row in rows if row["kind"] == Kind.OBJECT}
        return tree, ids

    def _read(self, table: str) -> bytes:
        return self.broken[table] if table in self.broken else (self.metadata / table).read_bytes()

    def list_old(self) -> tuple[list[str], list[str]]:
        """Return the ids of the metaranges, and those of the ranges, that only commits without a branch or tag at them name."""
        heads = {*self.repository.tags.values(), *(branch.head for branch in self.repository.branches.values())}
        current, old = set[str](), set[str]()
        for name, commit in self.repository.commits.items():
            if commit.metarange_id:
                (current if name in heads else old).update(self._read_tree(commit.metarange_id)[1])
        metaranges = {commit.metarange_id for commit in self.repository.commits.values()}
        return sorted((old - current) & metaranges), sorted(old - current - metaranges)

    def lose(self, table: str, *, keep: bool) -> None:
        """Cut off the last byte of a table, or remove it."""
        path = self.metadata / table
        self.broken[table] = self._read(table)  # it may be lost already
        path.write_bytes(self.broken[table][:-1])
        if not keep:
            path.unlink()

    def repair(self) -> None:
        """Restore all lost tables from a backup."""
        for table, content in self.broken.items():
            (self.metadata / table).write_bytes(content)
        self.broken.clear()

    def _address_of(self, address: str) -> str:
        if "://" not in address:
            return f"file://{self.repository.namespace}/{address}"
        own = f"local://{self.repository.root}/{self.repository.name}/"
        if address.startswith(own):
            return f"file://{self.repository.namespace}/{address.removeprefix(own)}"
        return address.replace("local://", "file://")

    def list_dump(self) -> set[str]:
        """Return the ids of the tables of the last dump."""
        return self.tables_of(self.repository.dump())

    def tables_of(self, dump: dict[str, str]) -> set[str]:
        found: set[str] = set()
        for kind, name in dump.items():
            content, entity = (self.metadata / name).read_bytes(), {"commits": "commit", "branches": "branch", "tags": "tag"}
            found |= {name} | {item.range_id for item in read_metarange(name, name, content, entity[kind.split("_")[0]])}
        return found

    def age(self, days: float = 30) -> None:
        """Set the time of all ranges and metaranges."""
        time = days_ago(days).timestamp()
        for path in self.metadata.rglob("*"):
            os.utime(path, (time, time))

    def notes(self) -> str:
        return "\n".join([*self.house.summary("lake_refs", "ml")["notes"], *self.house.summary("live_files", "ml")["notes"]])


@contextmanager
def serve(house: Lakehouse, repository: FakeRepository, **options: Any) -> Iterator[Setup]:
    server = FakeServer(repository)
    with server.running() as url:
        location = f"file://{repository.namespace}/"
        house.lakes = [config_of(url, repository.name, location=location, unused_ranges="collect", **options)]
        yield Setup(house, repository, server)


# Recorded repositories: the trees of all commits are those of a real server

# By repository: its tables, those that its commits and dumps need, and those that another repository left in its namespace.
RECORDED = {"basic": (72, 70, 62), "lifecycle": (62, 62, 72), "many": (184, 184, 62)}
LEFT_BY = {"basic": "lifecycle", "lifecycle": "basic", "many": "lifecycle"}


@pytest.mark.parametrize("name", ["basic", "lifecycle", pytest.param("many", marks=full_suite_only)])
def test_recorded_repositories_keep_only_ranges_of_commits_and_dumps(name: str, spark: SparkSession, tmp_path: Path) -> None:
    recording = Recording(name)
    house = Lakehouse(spark, tmp_path, settings={"gates": GATES})
    repository = recorded_repository(recording, recording.unpack(house.warehouse))
    house.now = moment(max(item["as_of"] for item in recording.expected["scenarios"])) + timedelta(days=40)
    with serve(house, repository) as setup:
        own, manifest = setup.tables(), json.loads((setup.metadata / "refs_manifest.json").read_text())
        needed = setup.read_commits() | setup.list_dump() | setup.tables_of(manifest)
        add_foreign_tables(setup, LEFT_BY[name])
        unused = setup.tables() - needed
        assert (len(own), len(needed), len(setup.tables() - own)) == RECORDED[name]
        header = house.plan()
        assert header.failed_gates == []
        assert setup.list_planned() == unused
        reasons = {house.orphans(f"{name}/_lakefs/").get(table) for table in unused}
        assert reasons == {"unreferenced"}
        house.approve_and_apply(header)
        assert setup.tables() == needed
        assert setup.read_commits() <= needed
        for listed in (setup.metadata / "retention").rglob("commits.csv"):  # of the server's own collector
            rows = [line.split(",") for line in listed.read_text().splitlines()[1:]]
            assert {row[2] for row in rows if row[2]} <= needed


def add_foreign_tables(setup: Setup, recording: str) -> None:
    """Copy the tables of another recorded repository into the namespace, 30 days old."""
    time, own = (setup.house.now - timedelta(days=30)).timestamp(), setup.tables()
    for table in sorted((Recording(recording).namespace / "_lakefs").iterdir()):
        if len(table.name) == 64 and table.name not in own:
            os.utime(shutil.copyfile(table, setup.metadata / table.name), (time, time))


@pytest.mark.parametrize("loss", ["range is missing", "range is damaged", "metarange is missing", "metarange is damaged"])
def test_only_lost_metarange_of_expired_commit_keeps_all_ranges(loss: str, spark: SparkSession, tmp_path: Path) -> None:
    """A range references only objects, and its metarange contains its id (`_range_rows` of the
    decoder).
    """
    recording = Recording("basic")
    house = Lakehouse(spark, tmp_path, settings={"gates": GATES})
    repository = recorded_repository(recording, recording.unpack(house.warehouse))
    house.now = moment(max(item["as_of"] for item in recording.expected["scenarios"])) + timedelta(days=40)
    with serve(house, repository) as setup:
        needed = setup.read_commits() | setup.list_dump() | setup.tables_of(json.loads((setup.metadata / "refs_manifest.json").read_text()))
        add_foreign_tables(setup, LEFT_BY["basic"])
        unused = setup.tables() - needed
        metaranges, ranges = setup.list_old()
        lost = min(metaranges if loss.startswith("metarange") else ranges)
        setup.lose(lost, keep=loss.endswith("damaged"))
        header = house.plan()
        assert (header.failed_gates, header.unreadable) == ([], ())
        assert setup.list_planned() == (unused if lost in ranges else set())
        assert ("unused ranges are kept" in setup.notes()) == (lost in metaranges)
        house.approve_and_apply(header)
        assert setup.tables() == (needed if lost in ranges else needed | unused) - ({lost} if loss.endswith("missing") else set())


# The whole protocol


@pytest.fixture
def built(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Setup, RepositoryBuilder]]:
    house = Lakehouse(spark, tmp_path, settings={"gates": GATES})
    builder = RepositoryBuilder(house.warehouse, days_ago(60))
    with serve(house, builder.repository) as setup:
        fill(builder)
        setup.age()
        yield setup, builder


def fill(builder: RepositoryBuilder) -> None:
    """Make expired, dangling, tagged and current commits."""
    builder.rules(1)
    tagged = builder.commit("main", a_1=b"1", a_2=b"2", b_1=b"3", b_2=b"4")
    builder.repository.tags["v1"] = tagged
    builder.commit("main", a_1=b"5")
    builder.branch("dev")
    builder.commit("dev", c_1=b"6")
    builder.drop("dev")
    builder.now = days_ago(40)
    builder.commit("main", b_2=b"7")


def leave_unused(setup: Setup, builder: RepositoryBuilder) -> set[str]:
    """Write the tables of a commit that is not recorded, as an interrupted import does."""
    before = setup.tables()
    repository = builder.repository
    repository.record("lost", [], dict(repository.trees["main-1"]) | {"z/z": builder.repository.trees["main-2"]["a/1"]}, builder.now)
    del repository.commits["lost"], repository.trees["lost"]
    setup.age()
    return setup.tables() - before


def test_unused_ranges_can_be_planned_applied_restored_and_purged(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    house = setup.house
    unused = leave_unused(setup, builder)
    needed = setup.tables() - unused
    assert (len(unused), len(needed)) == (2, 9)
    header = house.plan()
    assert header.failed_gates == []
    assert setup.list_planned() == unused
    (found,) = explain(house.run_context(), f"ml-data/_lakefs/{min(unused)}")
    assert (found.verdict, found.sentence.startswith("No live commit needs it (unreferenced)")) == ("planned", True)
    house.approve_and_apply(header)
    assert setup.tables() & unused == set()
    setup.read_commits()
    house.restore(header.plan_id)
    assert unused <= setup.tables()
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "restored"
    house.now += timedelta(days=1)
    setup.age()
    header = house.plan()
    house.approve_and_apply(header)
    house.now += timedelta(days=1)
    purge = house.plan()
    assert {key for key, action in house.planned_actions("ml-data/_lakefs/").items() if action == "purge"} >= unused
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    setup.read_commits()
    assert not unused & {path.name for path in house.warehouse.rglob("*")}


def test_explain_names_the_expired_commit_that_needs_a_range(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    setup.house.plan()
    assert "main-2" in setup.house.commits("expired", "ml")
    (found,) = explain(setup.house.run_context(), f"ml-data/_lakefs/{builder.repository.commits['main-2'].metarange_id}")
    assert (found.verdict, found.sentence) == ("live", "It is live: branch main needs it (in lake ml, 1 commit before its head).")


def test_only_ranges_and_metaranges_are_collected(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, _ = built
    others = ["dummy", "refs_manifest.json.bak", "actions/log/a.log", f"retention/gc/{'a' * 64}", f"{'A' * 64}", "a" * 63, "b" * 65]
    for name in others:
        (setup.metadata / name).parent.mkdir(parents=True, exist_ok=True)
        (setup.metadata / name).write_bytes(b"x")
    (setup.metadata / ("c" * 64)).write_bytes(b"not a table, but nothing else has such a name")
    setup.age()
    header = setup.house.plan()
    assert header.failed_gates == []
    assert setup.list_planned() == {"c" * 64}
    assert setup.house.summary("orphan_files")["foreign_claims"] == 0
    assert all(explain(setup.house.run_context(), f"ml-data/_lakefs/{name}")[0].verdict == "unowned" for name in others)


def test_young_unused_ranges_are_kept(built: tuple[Setup, RepositoryBuilder]) -> None:
    """An import writes its ranges first, and its commit last."""
    setup, builder = built
    unused = leave_unused(setup, builder)
    setup.age(days=2)
    setup.house.plan()
    assert setup.list_planned() == set()
    assert explain(setup.house.run_context(), f"ml-data/_lakefs/{min(unused)}")[0].verdict == "young"


def test_range_referenced_by_commit_after_plan_is_kept(built: tuple[Setup, RepositoryBuilder]) -> None:
    """`source_metarange` of the API commits a metarange of any age."""
    setup, builder = built
    unused, repository = leave_unused(setup, builder), builder.repository
    header = setup.house.plan()
    assert setup.list_planned() == unused
    times = {name: (setup.metadata / name).stat().st_mtime_ns for name in setup.tables()}
    repository.record("found", ["main-4"], dict(repository.trees["main-1"]) | {"z/z": repository.trees["main-2"]["a/1"]}, builder.now)
    repository.branches["main"].head = "found"
    for name, time in times.items():
        os.utime(setup.metadata / name, ns=(time, time))
    applied = setup.house.approve_and_apply(header)
    assert outcomes(applied) <= {"changed", "done"}
    assert unused <= setup.tables()
    setup.read_commits()


def test_quarantined_range_that_commit_references_is_restored(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    house, unused, repository = setup.house, leave_unused(setup, builder), builder.repository
    house.approve_and_apply(house.plan())
    tree = dict(repository.trees["main-1"]) | {"z/z": repository.trees["main-2"]["a/1"]}
    repository.record("found", ["main-4"], tree, builder.now)
    for name in unused:
        (setup.metadata / name).unlink()  # the server had them in its cache
    for _ in range(2):  # the metarange, then the range that it references
        house.now += timedelta(days=1)
        header = house.plan()
        assert "restore" in {house.planned_actions("ml-data/_lakefs/").get(name) for name in unused}
        house.approve_and_apply(header, ("restore",))
    setup.read_commits()


def test_files_of_last_refs_dump_are_kept_and_older_dumps_collected(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    house, repository = setup.house, builder.repository
    saved = repository.dump()
    (setup.metadata / "refs_manifest.json").write_text(json.dumps(saved))
    house.plan()
    older = setup.list_dump() - setup.tables_of(saved)
    house.now += timedelta(days=1)
    builder.commit("main", d=b"8")
    setup.age()
    house.plan()
    assert older == set()
    (setup.metadata / "refs_manifest.json").unlink()
    house.now += timedelta(days=1)
    house.plan()
    assert setup.list_planned() == setup.tables_of(saved) - setup.list_dump() - setup.read_commits() != set()


# Reasons to keep all ranges


def test_unused_ranges_are_kept_by_default(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    leave_unused(setup, builder)
    house = setup.house
    house.lakes = [house.lakes[0].model_copy(update={"unused_ranges": "keep"})]
    house.plan()
    assert setup.list_planned() == set()
    assert house.summary("orphan_files")["unneeded_metadata"]["files"] > 2
    assert ("GET", "/config") not in [(method, path) for method, path, _ in setup.server.requests]


@pytest.mark.parametrize("edition, reason", [("lakeFS-Enterprise", "the edition lakeFS-Enterprise"), (None, "an unknown edition")])
def test_all_ranges_are_kept_if_server_may_compact_staged_objects(
    built: tuple[Setup, RepositoryBuilder], edition: str | None, reason: str
) -> None:
    """No API shows the metarange of a compacted branch (`compacted_base_metarange_id`)."""
    setup, builder = built
    leave_unused(setup, builder)
    setup.server.edition = edition
    assert setup.house.plan().failed_gates == []
    assert setup.list_planned() == set()
    assert f"lake ml: unused ranges are kept, because the server may need them: it is {reason}" in setup.notes()


def test_all_ranges_are_kept_if_refs_manifest_is_unreadable(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    leave_unused(setup, builder)
    missing = dict(setup.repository.dump(), tags_meta_range_id="f" * 64)
    for content in ("{}", json.dumps(missing)):
        (setup.metadata / "refs_manifest.json").write_text(content)
        setup.house.now += timedelta(days=1)
        setup.house.plan()
        assert setup.list_planned() == set()
        assert "unused ranges are kept" in setup.notes()


def test_all_ranges_are_kept_if_metarange_of_expired_commit_is_lost(built: tuple[Setup, RepositoryBuilder]) -> None:
    """The lost metarange may reference any other range."""
    setup, builder = built
    leave_unused(setup, builder)
    repository = builder.repository
    expired = repository.commits["main-2"].metarange_id
    (setup.metadata / expired).unlink()
    setup.house.plan()
    assert "main-2" in setup.house.commits("expired", "ml")
    assert setup.list_planned() == set()
    assert "lake ml: unused ranges are kept, because 1 metarange of its commits cannot be read (for example " in setup.notes()


def test_all_ranges_are_kept_if_repository_is_unreadable(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    leave_unused(setup, builder)
    (setup.metadata / builder.repository.commits[builder.repository.branches["main"].head].metarange_id).write_bytes(b"damaged")
    assert [item.is_whole_lake for item in setup.house.plan().unreadable] == [True]
    assert setup.list_planned() == set()


def test_all_ranges_are_kept_if_another_lake_uses_namespace(built: tuple[Setup, RepositoryBuilder]) -> None:
    """A second server may have been restored from a dump into the same namespace."""
    setup, builder = built
    unused = leave_unused(setup, builder)
    house, own = setup.house, setup.house.lakes[0]
    restored = FakeServer(builder.repository)
    with restored.running() as url:
        house.lakes = [own, own.model_copy(update={"name": "restored", "endpoint": url, "unused_ranges": "keep"})]
        header = house.plan()
        assert header.failed_gates == []
        assert setup.list_planned() == set()
        assert "unused ranges in" in "\n".join(house.summary("orphan_files")["notes"])
        house.lakes = [own]
        house.now += timedelta(days=1)
        house.plan()
        assert unused <= setup.list_planned()


def test_plan_keeps_all_ranges_if_option_was_disabled(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    unused = leave_unused(setup, builder)
    header = setup.house.plan()
    setup.house.approve(header)
    setup.house.lakes = [setup.house.lakes[0].model_copy(update={"unused_ranges": "keep"})]
    with pytest.raises(GateRefused, match=r"the policy in lakes\.yaml has changed"):
        setup.house.apply(header)
    assert unused <= setup.tables()


@pytest.mark.parametrize("cause", ["edition", "lost metadata"])
def test_apply_keeps_all_ranges_if_ranges_must_be_kept_now(built: tuple[Setup, RepositoryBuilder], cause: str) -> None:
    setup, builder = built
    unused = leave_unused(setup, builder)
    header = setup.house.plan()
    assert setup.list_planned() == unused
    if cause == "edition":
        setup.server.edition = "lakeFS-Enterprise"
    else:  # a commit of another client, whose metarange is lost
        repository = builder.repository
        repository.commits["broken"] = replace(repository.commits["main-2"], id="broken", metarange_id="e" * 64)
        repository.trees["broken"] = {}
    applied = setup.house.approve_and_apply(header)
    assert outcomes(applied) <= {"changed", "done"}
    assert unused <= setup.tables()
    log = {row["key"].removeprefix("ml-data/_lakefs/"): row for row in setup.house.rows("deletion_log")}
    assert {log[name]["outcome"] for name in unused} == {"changed"}
    assert "its lake keeps unused ranges now" in log[min(unused)]["error"]


def test_older_ranges_are_collected_if_option_is_enabled_later(built: tuple[Setup, RepositoryBuilder]) -> None:
    """The claim on metadata is as old as the lake, so the ranges are not foreign."""
    setup, builder = built
    unused = leave_unused(setup, builder)
    house, own = setup.house, setup.house.lakes[0]
    house.lakes = [own.model_copy(update={"unused_ranges": "keep"})]
    house.approve_and_apply(house.plan())
    house.lakes, house.now = [own], house.now + timedelta(days=1)
    header = house.plan()
    assert header.failed_gates == []
    assert unused <= setup.list_planned()


def test_unused_ranges_of_deleted_repository_are_kept(built: tuple[Setup, RepositoryBuilder]) -> None:
    """Ranges do not count as files of a dropped table."""
    setup, builder = built
    leave_unused(setup, builder)
    setup.house.plan()
    swept = setup.house.find_table("orphan_files")
    memory = read_parts(setup.house.run_context().state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES)
    assert memory.column("prefixes").to_pylist() == [["ml-data/data/"]]


def test_forecast_keeps_ranges_of_expired_commits(built: tuple[Setup, RepositoryBuilder]) -> None:
    setup, builder = built
    house = setup.house
    builder.rules(3650)
    house.plan()
    (forecast,) = forecast_orphans(house, [Scenario("shorter", ("ml",), retention="1d")])
    real = orphans_under_policy(house, [lake.with_retention("1d") for lake in house.lakes])
    assert forecast.orphans == real
    assert forecast.freed.files > 0


# Random histories

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "branch", "drop", "reset", "tag", "untag", "lose", "dump", "break", "break", "run"]),
        st.sampled_from(["main", "dev", "exp"]),
        st.sampled_from(["a", "b/c", "d", "e/f", "g"]),
    ),
    min_size=4,
    max_size=16,
)


@given(STEPS)
@example([("commit", "main", "a"), ("commit", "main", "a"), ("break", "main", "b/c"), ("break", "main", "a")])
@settings(max_examples=example_count(6, 200), deadline=None, suppress_health_check=list(HealthCheck))
def test_random_histories_keep_only_ranges_of_commits_and_last_dump(spark: SparkSession, steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        house = Lakehouse(spark, Path(folder), settings={"gates": GATES})
        builder = RepositoryBuilder(house.warehouse, days_ago(60))
        builder.rules(3)
        builder.commit("main", a=b"1")
        with serve(house, builder.repository) as setup:
            for step in steps:
                take_step(setup, builder, *step)
            run_and_check(setup)


def take_step(setup: Setup, builder: RepositoryBuilder, verb: str, branch: str, path: str) -> None:
    repository = builder.repository
    builder.now += timedelta(days=2)
    if verb == "branch" and branch not in repository.branches:
        builder.branch(branch)
    elif verb == "run":
        run_and_check(setup)
    elif verb == "untag":
        repository.tags.pop(path.replace("/", "-"), None)
    elif verb == "break":
        metaranges, ranges = setup.list_old()
        candidates = metaranges if path == "g" else ranges
        if candidates:
            setup.lose(candidates[len(candidates) // 2], keep=path in {"a", "g"})
    elif branch in repository.branches:
        if verb == "commit":
            builder.stage(branch, path)
            builder.commit(branch)
        elif verb == "drop" and branch != "main":
            builder.drop(branch)
        elif verb == "reset":
            setup.repair()
            commit = repository.commits[repository.branches[branch].head]
            repository.branches[branch].head = commit.parents[0] if commit.parents else commit.id
        elif verb == "tag":
            repository.tags[path.replace("/", "-")] = repository.branches[branch].head
        elif verb == "dump":
            (setup.metadata / "refs_manifest.json").write_text(json.dumps(repository.dump()))
        elif verb == "lose":
            builder.stage(branch, path)
            head = repository.branches[branch].head
            lost = builder.commit(branch)
            repository.branches[branch].head = head
            del repository.commits[lost], repository.trees[lost]


def run_and_check(setup: Setup) -> None:
    """Run, and check that exactly the tables without a need are deleted, or none after the loss of a metarange."""
    setup.age()
    setup.house.now += timedelta(days=1)
    before = setup.tables()
    header = setup.house.plan()
    assert (header.failed_gates, header.unreadable) == ([], ())
    if header.has_work:
        setup.house.approve_and_apply(header)
    needed = setup.read_commits() | setup.list_dump()
    manifest = setup.metadata / "refs_manifest.json"
    needed |= setup.tables_of(json.loads(manifest.read_text())) if manifest.exists() else set()
    if "unused ranges are kept" not in setup.notes():
        lost = setup.broken.keys() - before
        assert setup.tables() == needed - lost
        return
    metaranges, _ = setup.list_old()
    assert setup.broken.keys() & metaranges
    assert setup.tables() >= before
    setup.repair()
