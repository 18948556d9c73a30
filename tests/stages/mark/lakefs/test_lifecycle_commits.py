"""Lifecycle rules that delete paths by commits, through all stages: paths, plan, apply, undo, and
kept paths.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused, StateError
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.lakes.protocol import DELETE_PATHS, ExpiryAction
from gc_assets.report.metrics import RunMetrics
from gc_assets.stages.delete.close import close_plan
from gc_assets.stages.delete.expire import undo_expiry
from gc_assets.stages.delete.planned_edits import PlannedPaths
from gc_assets.stages.delete.restore_request import resolve_request, restore_files, undo_history
from gc_assets.stages.mark.kind_tables import make_kind_table
from gc_assets.stages.read.explain import explain
from gc_assets.stages.read.plan_text import summarize_plans
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.read.table_rows import count_table_rows, read_table_rows
from gc_assets.stages.records.plans import execution_directory, find_plan
from gc_assets.state.schemas import EXPIRY_PLAN
from tests.depth import in_turn
from tests.lakes.icechunk.builder import document_tree
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.stages.lakehouse import NOW, Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]
TABLE = table_with(TableRole.PATH_EDITS)


@dataclass
class Story:
    house: Lakehouse
    builder: RepositoryBuilder
    server: FakeServer
    rules_file: Path

    def rules(self, **rules: dict[str, Any]) -> None:
        self.rules_file.write_text(json.dumps(rules))

    def plan(self) -> PlanHeader:
        self.find_paths()
        return self.house.sweep()

    def find_paths(self) -> set[tuple[str, str, str]]:
        """Return branch, path and rule of the due paths of a run."""
        self.server.now = self.house.now
        self.house.mark()
        context = self.house.run_context()
        (kind_table,) = (item for item in context.kind("ml").kind_tables if item.table is TABLE)
        make_kind_table(self.house.spark, context, "ml", kind_table)
        return {(row["branch"], row["path"], row["rule_id"]) for row in self.house.rows(TABLE.name, "ml")}

    def edits(self) -> dict[str, str]:
        """Return the reason of each edit by branch, as in `gc-assets show expiry_plan`."""
        context = self.house.run_context()
        rows = [row for batch in read_table_rows(context, EXPIRY_PLAN, "ml") for row in batch.to_pylist()]
        assert count_table_rows(context, EXPIRY_PLAN, "ml") == len(rows)
        return {row["ref_name"]: row["reason"] for row in rows if row["action"] == DELETE_PATHS}

    def paths(self, branch: str = "main") -> set[str]:
        return set(self.builder.repository.resolve(branch) or ())


@pytest.fixture
def story(spark: SparkSession, tmp_path: Path) -> Iterator[Story]:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1, "max_live_drop": 1}})
    builder = RepositoryBuilder(house.warehouse, days_ago(60))
    server, rules = FakeServer(builder.repository), tmp_path / "rules.json"
    with server.running() as url:
        location, retention = f"file://{builder.namespace}/", {"source": "configured", "default": "30d"}
        house.lakes = [config_of(url, "ml-data", retention, location=location, rules=str(rules), lifecycle="commit")]
        story = Story(house, builder, server, rules)
        story.rules(scratch={"prefix": "tmp/", "days": 10, "enabled": True, "branch_days": {"dev": 50}})
        builder.commit("main", tmp_1=b"1", tmp_2=b"22", keep_1=b"3")
        builder.repository.tags["v1"] = builder.repository.branches["main"].head
        builder.now = days_ago(20)
        builder.branch("dev")
        builder.commit("dev", tmp_3=b"4")
        builder.now = days_ago(5)
        builder.commit("main", tmp_4=b"5")
        yield story


def test_plan_contains_branches_paths_bytes_and_rules(story: Story) -> None:
    header = story.plan()
    assert story.find_paths() == {(branch, path, "scratch") for branch in ("main", "dev") for path in ("tmp/1", "tmp/2")}
    reason = "lifecycle: a commit deletes 2 of 4 paths (2 B), by rule: scratch 2"
    assert story.edits() == {"main": reason, "dev": reason}
    assert (header.expiry_actions, header.path_edits, header.totals) == ({"ml": 2}, {"ml": 2}, {})
    assert (header.deleted_paths, header.failed_gates) == ({"ml": 4}, [])
    assert summarize_plans([header]) == "Plan: quarantine 0, delete 4 paths on 2 branches, purge 0, restore 0"
    assert summarize_plans([header.summary]) == summarize_plans([header])
    described = describe_reversibility(header, story.house.config)
    assert "the deletion of 4 paths on 2 branches of lake ml" in described.can_be_undone
    assert described.cannot_be_undone == "nothing"
    key = next(row["key"] for row in story.house.rows(TABLE.name, "ml") if row["path"] == "tmp/1")
    (explanation,) = explain(story.house.run_context(), key)
    assert explanation.sentence.endswith(
        " Lifecycle rules delete these paths of it by commits: tmp/1 on branch dev (rule scratch), tmp/1 on branch main (rule scratch)."
    )
    assert story.plan().plan_id == header.plan_id, "the same content is the same plan"


def test_path_that_is_not_utf8_is_left_out_with_note(story: Story) -> None:
    """The text `tmp/x\\x80` is itself a legal path, which is too young to be deleted."""
    story.builder.now = days_ago(30)
    story.builder.stage("main", b"tmp/x\x80".decode(errors="surrogateescape"))
    story.builder.commit("main")
    story.builder.now = days_ago(1)
    story.builder.stage("main", "tmp/x\\x80")
    story.builder.commit("main")
    header = story.plan()
    assert {path for branch, path, _ in story.find_paths() if branch == "main"} == {"tmp/1", "tmp/2"}
    assert story.house.summary(TABLE.name, "ml")["notes"] == [
        "lake ml: 1 path on branch main will not be deleted, because the server's API cannot name paths that are not UTF-8; "
        "rename or delete them with the client that wrote them"
    ]
    story.house.approve_and_apply(header)
    assert story.paths("main") == {"keep/1", "tmp/4", "tmp/x\\x80", b"tmp/x\x80".decode(errors="surrogateescape")}


def test_apply_deletes_paths_but_no_file_and_undo_restores_them(story: Story) -> None:
    header, files = story.plan(), story.builder.files()
    before = {branch: story.paths(branch) for branch in ("main", "dev")}
    applied = story.house.approve_and_apply(header)
    assert counts(applied.by_outcome) == {("expire", "done"): 2}
    assert (story.paths("main"), story.paths("dev"), story.builder.files()) == ({"keep/1", "tmp/4"}, {"keep/1", "tmp/3"}, files)
    assert story.plan().totals == {}, "older commits still name the files"
    assert story.edits() == {}
    plan = find_plan(story.house.config, header.plan_id)
    assert undo_expiry(story.house.run_context(), plan) == {"undone": 2}
    assert {branch: story.paths(branch) for branch in before} == before


def test_repeated_undo_does_not_revert_later_plan(story: Story) -> None:
    first = story.plan()
    story.house.approve_and_apply(first)
    undone = find_plan(story.house.config, first.plan_id)
    assert undo_expiry(story.house.run_context(), undone) == {"undone": 2}
    story.house.now = NOW + timedelta(days=1)
    story.house.approve_and_apply(story.plan())
    after = {branch: story.paths(branch) for branch in ("main", "dev")}
    assert after == {"main": {"keep/1", "tmp/4"}, "dev": {"keep/1", "tmp/3"}}
    assert undo_expiry(story.house.run_context(), undone) == {}
    assert {branch: story.paths(branch) for branch in after} == after


def test_files_of_deleted_paths_are_garbage_after_retention(story: Story) -> None:
    del story.builder.repository.tags["v1"]
    story.house.approve_and_apply(story.plan())
    story.house.now = NOW + timedelta(days=35)
    header = story.plan()
    assert {amount.files for amount in header.by_reason.values()} == {2}
    assert header.by_reason.keys() == {"expired"}
    assert header.failed_gates == []


def test_paths_on_dirty_or_protected_branches_are_kept_with_note(story: Story) -> None:
    story.builder.repository.protected.append("dev")
    story.builder.stage("main", "new")
    header = story.plan()
    assert (story.edits(), header.path_edits) == ({}, {})
    assert story.house.summary(TABLE.name, "ml")["notes"] == [
        "lake ml: 2 paths on branch dev will not be deleted: the branch protection rule 'dev' protects it",
        "lake ml: 2 paths on branch main will not be deleted: it has uncommitted changes",
    ]


def test_unreadable_repository_deletes_no_path_and_does_not_stop_run(story: Story) -> None:
    story.server.fault = lambda method, path, query: (403, {"message": "no"}) if path.endswith("/ml-data") else None
    header = story.plan()
    assert [item.is_whole_lake for item in header.unreadable] == [True]
    assert (story.edits(), header.path_edits, header.totals) == ({}, {}, {})
    assert story.house.summary(TABLE.name, "ml")["unused_rules"] == []
    story.server.fault = lambda method, path, query: None
    story.house.now = NOW + timedelta(days=1)
    assert story.plan().path_edits == {"ml": 2}


def test_paths_on_moved_branch_are_planned_again(story: Story) -> None:
    header = story.plan()
    story.builder.commit("main", other=b"1")
    applied = story.house.approve_and_apply(header)
    assert counts(applied.by_outcome) == {("expire", "changed"): 1, ("expire", "done"): 1}
    assert story.paths("main") == {"keep/1", "tmp/1", "tmp/2", "tmp/4", "other"}
    header = story.plan()
    assert (header.path_edits, story.edits().keys()) == ({"ml": 1}, {"main"})
    assert counts(story.house.approve_and_apply(header).by_outcome) == {("expire", "done"): 1}


def test_next_apply_after_failure_deletes_each_path_once(story: Story) -> None:
    header = story.plan()
    story.server.fault = lambda method, path, query: (500, {"message": "no"}) if path.endswith("/cherry-pick") else None
    assert counts(story.house.approve_and_apply(header).by_outcome) == {("expire", "failed"): 2}
    story.server.fault = lambda method, path, query: None
    assert counts(story.house.apply(header).by_outcome) == {("expire", "done"): 2}
    assert len(story.builder.repository.log("dev")) == 4


def test_changed_rules_or_paths_refuse_apply(story: Story) -> None:
    header = story.plan()
    story.house.approve(header)
    story.rules(scratch={"prefix": "tmp/", "days": 1, "enabled": True})
    with pytest.raises(GateRefused, match="changed after the plan was made"):
        story.house.apply(header)
    story.rules(scratch={"prefix": "tmp/", "days": 10, "enabled": True, "branch_days": {"dev": 50}})
    other = ExpiryAction(DELETE_PATHS, "", "", "branch", "main", details=json.dumps({"paths": 2, "digest": "0" * 16}))
    with pytest.raises(StateError, match="lifecycle_paths of 2026-11-20 with the digest 0000000000000000 is missing or was changed"):
        PlannedPaths(story.house.run_context(), "ml", NOW.date()).read(other)
    for path in Path(story.house.config.state).joinpath("ml", TABLE.name).rglob("*.parquet"):
        if not path.name.startswith("_"):
            rows = pq.read_table(path)
            pq.write_table(rows.set_column(1, "path", pa.array(["keep/1"] * rows.num_rows)), path)
    with pytest.raises(StateError, match="the table is incomplete"):
        story.house.apply(header)
    assert story.paths() == {"keep/1", "tmp/1", "tmp/2", "tmp/4"}


def test_unused_rule_adds_a_note(story: Story) -> None:
    story.rules(scratch={"prefix": "tmp/", "days": 10, "enabled": True}, wrong={"prefix": "temp/", "days": 1, "enabled": True})
    story.find_paths()
    assert story.house.summary(TABLE.name, "ml")["unused_rules"] == [
        "lake ml: lifecycle rule 'wrong' matches no object on its branches; compare its prefix or glob with the paths"
    ]


def oracle(story: Story, rules: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return the due paths by plain loops over the trees of commits."""
    repository = story.builder.repository
    today = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
    found = set()
    for branch, held in repository.branches.items():
        for path, item in repository.trees[held.head].items():
            first = min(repository.commits[name].created for name, tree in repository.trees.items() if _has(tree, path, item.address))
            age = max(repository.written[item.address].timestamp(), first)
            matching = [(rule_id, rule) for rule_id, rule in rules.items() if path.startswith(rule["prefix"])]
            rows = [(len(rule["prefix"]), branch in rule.get("branch_days", {}), rule_id) for rule_id, rule in matching]
            rows = [row for row in rows if row[1] or "days" in rules[row[2]]]
            if not rows:
                continue
            rule_id = max(rows)[2]
            days = rules[rule_id].get("branch_days", {}).get(branch, rules[rule_id].get("days"))
            if rules[rule_id]["enabled"] and age < (today - timedelta(days=days)).timestamp():
                found.add((branch, path, rule_id))
    return found


def _has(tree: dict[str, Any], path: str, address: str) -> bool:
    return path in tree and tree[path].address == address


@pytest.mark.parametrize("seed", range(4))
def test_planned_paths_of_random_histories_match_plain_loops(story: Story, seed: int) -> None:
    choice, builder = random.Random(seed), story.builder
    prefixes = ["a/", "a/b/", "c", ""]
    rules: dict[str, Any] = {}
    for number, prefix in enumerate(choice.sample(prefixes, choice.randint(2, 4))):
        rules[f"r{number}"] = {"prefix": prefix, "enabled": choice.random() < 0.8, "days": choice.randint(0, 40)}
        if choice.random() < 0.5:
            rules[f"r{number}"]["branch_days"] = {choice.choice(["main", "b1", "b2"]): choice.randint(0, 40)}
            if choice.random() < 0.3:
                del rules[f"r{number}"]["days"]
    story.rules(**rules)
    names = [f"{prefix}{number}" for prefix in ("a/", "a/b/", "c", "d/") for number in range(3)]
    for day in range(50, 0, -5):
        builder.now = days_ago(day)
        if choice.random() < 0.4:
            builder.branch(f"b{len(builder.repository.branches)}", choice.choice(sorted(builder.repository.branches)))
        branch = choice.choice(sorted(builder.repository.branches))
        for name in choice.sample(names, 3):
            if choice.random() < 0.25:
                builder.delete(branch, name)
            else:
                reused = choice.random() < 0.3 and any(builder.repository.trees[builder.repository.branches["main"].head])
                tree = builder.repository.trees[builder.repository.branches["main"].head]
                builder.stage(branch, name, tree[choice.choice(sorted(tree))].address if reused else None)
        builder.commit(branch)
    assert story.find_paths() == oracle(story, rules)
    header = story.house.sweep()
    expected = {branch: {path for on, path, _ in oracle(story, rules) if on == branch} for branch in builder.repository.branches}
    before = {branch: story.paths(branch) for branch in expected}
    assert header.path_edits.get("ml", 0) == len([branch for branch, due in expected.items() if due])
    if header.has_work:
        story.house.approve_and_apply(header)
    assert {branch: story.paths(branch) for branch in expected} == {branch: before[branch] - expected[branch] for branch in expected}


def test_plan_that_empties_a_branch_is_refused(story: Story) -> None:
    """A rule with the prefix `""` matches all paths."""
    story.rules(everything={"prefix": "", "days": 0, "enabled": True})
    header = story.plan()
    (gate,) = (gate for gate in header.gates if gate.name == "deleted_paths")
    assert gate.passed, "small plans pass"
    assert gate.numbers == {"paths": 8, "limit": 100_000, "share": 1, "max_share": 0.5}
    story.house.settings["gates"]["max_deleted_path_share"] = 0.75
    (gate,) = story.plan().failed_gates
    assert gate.overridable
    assert gate.message.startswith(
        "8 paths planned for deletion by commits; max_deleted_paths allows 100,000. The largest share of a branch is 100.0% (branch main "
        "of lake ml); max_deleted_path_share allows 75.0%. Check the lifecycle rules, and `gc-assets show lifecycle_paths`."
    )
    story.house.settings["gates"] = {**story.house.settings["gates"], "max_deleted_path_share": 1, "max_deleted_paths": 7}
    assert [gate.name for gate in story.plan().failed_gates] == ["deleted_paths"]
    story.house.settings["gates"]["max_deleted_paths"] = 8
    assert story.plan().failed_gates == []


def test_undo_is_refused_after_the_objects_were_quarantined_or_purged(story: Story) -> None:
    """The restored paths would reference missing files."""
    del story.builder.repository.tags["v1"]
    first = story.plan()
    story.house.approve_and_apply(first)
    story.house.now = NOW + timedelta(days=35)
    second = story.plan()
    assert set(story.house.planned_actions().values()) == {"quarantine"}
    story.house.approve_and_apply(second)
    plan, before = find_plan(story.house.config, first.plan_id), story.paths()
    assert undo_expiry(story.house.run_context(), plan) == {"changed": 2}
    error = (
        "are in quarantine, such as .*, so the paths would refer to missing files; "
        f"first run `gc-assets restore --plan {second.plan_id[:12]}`"
    )
    assert all(re.search(error, text) for text in undo_errors(story))
    story.house.restore(second.plan_id)
    assert undo_expiry(story.house.run_context(), plan) == {"undone": 2}
    assert before < story.paths()


def quarantine_objects_of_deleted_paths(story: Story) -> tuple[PlanHeader, dict[Path, bytes]]:
    """Return the plan that deleted the paths, and a backup of the objects."""
    del story.builder.repository.tags["v1"]
    first = story.plan()
    story.house.approve_and_apply(first)
    story.house.now = NOW + timedelta(days=35)
    second = story.plan()
    backup = {story.house.warehouse / key: (story.house.warehouse / key).read_bytes() for key in story.house.keys("deletion_plan")}
    story.house.approve_and_apply(second)
    return first, backup


def test_undo_after_purge_reports_commit_with_paths(story: Story) -> None:
    """After the objects were copied back, the undo works. A truncated object is not the purged one."""
    first, backup = quarantine_objects_of_deleted_paths(story)
    story.house.now = NOW + timedelta(days=36)
    story.house.approve_and_apply(story.plan())
    plan, before = find_plan(story.house.config, first.plan_id), story.paths()
    for content in (dict.fromkeys(backup), {path: content[:-1] for path, content in backup.items()}):
        copy_back(content)
        assert undo_expiry(story.house.run_context(), plan) == {"changed": 2}
        assert story.paths() == before
        error = "2 objects at the deleted paths of branch .* do not exist any more, .*; copy them back .*; commit .* has the deleted paths"
        assert all(re.search(error, text) for text in undo_errors(story))
    copy_back(backup)
    assert undo_expiry(story.house.run_context(), plan) == {"undone": 2}
    assert before < story.paths()


def test_undo_succeeds_if_purged_objects_were_copied_back(story: Story) -> None:
    """The copies in quarantine cannot be restored, because objects with their keys exist."""
    first, backup = quarantine_objects_of_deleted_paths(story)
    copy_back(backup)
    assert undo_expiry(story.house.run_context(), find_plan(story.house.config, first.plan_id)) == {"undone": 2}


def copy_back(contents: Mapping[Path, bytes | None]) -> None:
    for path, content in contents.items():
        if content is not None:
            path.write_bytes(content)


def test_undo_is_refused_while_a_later_plan_may_have_removed_the_objects(story: Story) -> None:
    """The log of an interrupted apply does not exist yet, and its files are in quarantine."""
    del story.builder.repository.tags["v1"]
    first = story.plan()
    story.house.approve_and_apply(first)
    story.house.now = NOW + timedelta(days=35)
    second = story.plan()
    story.house.approve_and_apply(second)
    interrupt(story.house, second)
    plan, before = find_plan(story.house.config, first.plan_id), story.paths()
    assert undo_expiry(story.house.run_context(), plan) == {"changed": 2}
    name = second.plan_id[:12]
    error = f"2 objects .* may have been removed by plan {name}, which is unfinished, such as .*; first run `gc-assets apply {name} --end`$"
    assert all(re.search(error, text) for text in undo_errors(story))
    close_plan(story.house.spark, story.house.run_context(), find_plan(story.house.config, second.plan_id))
    assert undo_expiry(story.house.run_context(), plan) == {"changed": 2}
    assert all("are in quarantine" in text for text in undo_errors(story))
    assert story.paths() == before
    story.house.restore(second.plan_id)
    assert undo_expiry(story.house.run_context(), plan) == {"undone": 2}


def interrupt(house: Lakehouse, header: PlanHeader) -> None:
    """Remove what an apply writes after its last change."""
    state = Path(house.config.state)
    (state / execution_directory(header) / "finished.json").unlink()
    (state / header.storage / "apply" / "_records.json").unlink()
    shutil.rmtree(state / header.storage / "deletion_log")


def test_undo_of_other_lakes_continues_if_path_table_is_missing(story: Story) -> None:
    document_tree(story.house.warehouse / "weather", days_ago(18))
    story.house.lakes.append(story.house.weather(retention={"default": "10d"}))
    header = story.plan()
    assert header.expiry_actions.keys() == {"ml", "weather"}
    story.house.approve_and_apply(header)
    story.house.restore(header.plan_id)
    before = story.paths()
    shutil.rmtree(Path(story.house.config.state) / "ml" / TABLE.name)
    undone = undo_expiry(story.house.run_context(), find_plan(story.house.config, header.plan_id))
    assert undone == {"changed": 2, "undone": header.expiry_actions["weather"]}
    assert story.paths() == before
    error = "cannot find out whether the objects at the deleted paths .* exist: .* is missing or was changed.* from a backup .*; commit"
    assert all(re.search(error, text) for text in undo_errors(story))


def test_undo_succeeds_if_only_other_files_of_plan_were_purged(story: Story) -> None:
    """Garbage of the same plan was purged, but the objects at the deleted paths were live."""
    story.builder.now = days_ago(60)
    story.builder.upload()
    document_tree(story.house.warehouse / "weather", days_ago(18))
    story.house.lakes.append(story.house.weather(retention={"default": "10d"}))
    header, before = story.plan(), story.paths()
    assert (header.expiry_actions.keys(), header.deleted_paths) == ({"ml", "weather"}, {"ml": 4})
    story.house.approve_and_apply(header)
    story.house.now = NOW + timedelta(days=1)
    purge = story.plan()
    assert "purge" in story.house.planned_actions("ml-data/data/").values()
    story.house.approve_and_apply(purge)
    context = story.house.run_context()
    request = resolve_request(context, plan_id=header.plan_id, history=True)
    result = restore_files(lambda: story.house.spark, context, request)
    undone = undo_history(context, result)
    assert undone is not None
    assert counts(undone.by_outcome) == {"history/undone": 2}, "the history of lake weather needs its files"
    assert "purged permanently" in (undone.missing or "")
    assert story.paths() == before


def undo_errors(story: Story) -> list[str]:
    published = story.house.run_context().state.current("ml", "expiry_log", NOW.date())
    assert published is not None
    return [row["error"] for row in story.house.rows_of(published)]


def test_branch_that_moves_before_each_apply_is_reported_with_next_step(story: Story) -> None:
    for number in range(3):
        story.house.now = NOW + timedelta(days=number)
        header = story.plan()
        warnings = [text for text in header.warnings if "any path on branch main" in text]
        assert (len(warnings), len(story.house.summary(TABLE.name, "ml")["unedited"])) == ((1, 1) if number == 2 else (0, 0))
        story.builder.commit("main", **{f"other_{number}": b"1"})
        story.house.approve_and_apply(header)
    assert warnings[0].startswith("Lake ml: the last 2 applies did not delete any path on branch main (last reason: branch main points at ")
    assert warnings[0].endswith("Apply a plan immediately after the first run of a date, while nothing writes to the branch.")
    story.house.now = NOW + timedelta(days=3)
    header = story.plan()
    assert counts(story.house.approve_and_apply(header).by_outcome) == {("expire", "done"): 1}


@pytest.mark.parametrize(
    "status, step",
    [(403, "grant `fs:CreateCommit` and `fs:ReadCommit` to the collector's user"), (412, "check the hooks of the repository")],
)
def test_denied_path_deletion_is_reported_with_missing_permission(story: Story, status: int, step: str) -> None:
    """An earlier apply would be refused, too."""
    story.server.fault = lambda method, path, query: (status, {"message": "no"}) if path.endswith("/cherry-pick") else None
    for number in range(2):
        story.house.now = NOW + timedelta(days=number)
        story.house.approve_and_apply(story.plan())
    story.house.now = NOW + timedelta(days=2)
    (warning, _) = sorted(text for text in story.plan().warnings if "any path on branch" in text)
    reason = f"the deletion cannot be committed on branch dev: HTTP {status}: no; {step}"
    assert warning == f"Lake ml: the last 2 applies did not delete any path on branch dev (last reason: {reason})."


def test_refused_undo_does_not_count_as_apply_without_effect(story: Story) -> None:
    plans = list[str]()
    for number, path in enumerate(("tmp/1", "tmp/2")):
        story.house.now = NOW + timedelta(days=number)
        story.rules(scratch={"prefix": path, "days": 10, "enabled": True})
        header = story.plan()
        assert counts(story.house.approve_and_apply(header).by_outcome) == {("expire", "done"): 2}
        plans.append(header.plan_id)
    story.builder.stage("main", "new")  # the undo would be refused
    for number, plan_id in enumerate(plans, 2):
        story.house.now = NOW + timedelta(days=number)
        assert undo_expiry(story.house.run_context(), find_plan(story.house.config, plan_id))["changed"] == 1
    story.builder.repository.branches["main"].staged.clear()
    story.builder.now = days_ago(15)
    story.builder.commit("main", tmp_5=b"6")
    story.rules(scratch={"prefix": "tmp/5", "days": 10, "enabled": True})
    header = story.plan()
    assert (story.edits().keys(), header.warnings) == ({"main"}, ())


def test_metrics_count_planned_paths(story: Story) -> None:
    story.plan()
    text = RunMetrics(story.house.config, story.house.clock).text()
    assert 'gc_assets_planned_path_deletions{lake="ml",storage="warehouse"} 4.0' in text
    assert 'gc_assets_lake_due_paths{lake="ml"} 4.0' in text
