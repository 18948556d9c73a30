"""Repositories of a real lakeFS server through all stages: plan, apply, reads through the server, and undo."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.stages.delete.expire import undo_expiry
from gc_assets.stages.mark.kind_tables import make_kind_table
from gc_assets.stages.records.accepted_runs import forget_lake
from gc_assets.stages.records.plans import find_plan
from tests.depth import example_count, full_suite_only
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.lakefs.server import LakeFs, Repository, running
from tests.lakes.lakefs.test_retention_random import expected_commits
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.lakehouse import Lakehouse, counts
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, full_suite_only]

SETTINGS = {"grace": "24h", "gates": {"max_delete_share": 1, "max_live_drop": 1}}
# The server's objects are from today, and candidates after a day and an hour.
AGE = timedelta(hours=26)
# The clocks of server and run are up to this apart, so commits are at least as far from each limit.
UNIT = timedelta(days=3)


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path, settings=SETTINGS, now=datetime.now(UTC) + AGE)


@pytest.fixture
def server(house: Lakehouse) -> Iterator[LakeFs]:
    with running(house.warehouse, house.root / "server") as started:
        yield started


def configure(house: Lakehouse, *repositories: Repository, **settings: Any) -> None:
    house.lakes = [
        config_of(item.uri, item.name, name=item.name, location=f"file://{item.folder}/", **{"retention": None, **settings})
        for item in repositories
    ]


def plan_edits(house: Lakehouse) -> PlanHeader:
    """Plan with the paths that lifecycle rules delete by commits."""
    house.mark()
    context = house.run_context()
    (edits,) = (item for item in context.kind("models").kind_tables if item.table is table_with(TableRole.PATH_EDITS))
    make_kind_table(house.spark, context, "models", edits)
    return house.sweep()


def days_ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


class History:
    """A random history of a repository. It remembers what its writer wrote, by path."""

    def __init__(self, repository: Repository, as_of: datetime, seed: int) -> None:
        self.repository, self.as_of, self.draw = repository, as_of, random.Random(seed)
        self.branches, self.commits, self.age = ["main"], list[str](), 10
        for _ in range(self.draw.randrange(15, 40)):
            self.step()
        self.days = {name: self._draw_days() for name in self.branches if self.draw.random() < 0.5}
        repository.rules(self._draw_days(), **self.days)

    def _draw_days(self) -> int:
        return self.draw.randrange(1, 9) * UNIT.days

    def step(self) -> None:
        repository, branch, path = self.repository, self.draw.choice(self.branches), self.draw.choice("abcd")
        verb = self.draw.choice(["upload", "upload", "upload", "commit", "commit", "delete", "reset", "branch", "drop", "tag", "merge"])
        if verb == "upload":
            repository.upload(branch, path, self.draw.randbytes(20))
        elif verb == "commit":
            self.age = max(self.age - self.draw.randrange(3), 1)
            self.commits.append(repository.commit(branch, self.as_of - (self.age - 1 / 6) * UNIT))
        elif verb == "delete" and path in repository.keys(branch):
            repository.delete(branch, path)
        elif verb == "reset":
            repository.reset(branch)
        elif verb == "branch" and len(self.branches) < 4:
            self.branches.append(f"b{self.draw.randrange(10**6)}")
            repository.branch(self.branches[-1], branch)
        elif verb == "drop" and branch != "main":
            self.branches.remove(branch)
            repository.drop(branch)
        elif verb == "tag":
            repository.tag(f"v{self.draw.randrange(10**6)}", branch)
        elif verb == "merge":
            target = self.draw.choice([name for name in self.branches if name != branch] or [branch])
            if target != branch and not list(repository.list_pages(f"branches/{target}/diff")):
                self.commits.append(repository.merge(branch, target))

    def list_retained_commits(self) -> set[str]:
        """Return the commits that the rules and tags keep, by a second implementation of the rule over the server's own log."""
        repository = self.repository
        branches, tags = repository.refs("branches"), repository.refs("tags")
        found = {row["id"]: row for ref in (*branches.values(), *self.commits) for row in repository.log(ref)}
        ids = sorted(found, key=lambda name: found[name]["generation"])
        number, as_of = {name: index for index, name in enumerate(ids)}, self.as_of.timestamp()
        heads = [(name, "branch", head) for name, head in branches.items()] + [(name, "tag", head) for name, head in tags.items()]
        rules = repository.request("GET", repository.on("settings/gc_rules"))
        drawn = {
            "commits": [
                ([number[parent] for parent in found[name]["parents"]], (as_of - found[name]["creation_date"]) / 86_400) for name in ids
            ],
            "server": True,
            "refs": {name: (kind, number[head], self.days.get(name)) for name, kind, head in heads},
            "default": rules["default_retention_days"],
            "tags": "keep",
            "grace": None,
        }
        return {ids[index] for index in expected_commits(drawn)[0]}


def test_random_histories_lose_no_file_that_server_needs(house: Lakehouse, server: LakeFs) -> None:
    as_of = house.now.replace(hour=0, minute=0, second=0, microsecond=0)
    histories = [History(server.create(f"history{seed}"), as_of, seed) for seed in range(example_count(2, 20))]
    configure(house, *(history.repository for history in histories))
    before, expected = house.files(), set[str]()
    retained: dict[tuple[str, str], dict[str, bytes]] = {}
    for history in histories:
        repository, commits = history.repository, history.list_retained_commits()
        assert repository.list_active_commits() <= commits
        live = set[str]()
        for ref in (*commits, *repository.refs("branches")):
            live |= set(repository.keys(ref).values())
            retained[repository.name, ref] = repository.contents(ref)
        expected |= {f"{repository.name}/{key}" for key in repository.files() - live}

    header = house.plan()

    assert header.failed_gates == []
    assert set(house.planned_actions()) == expected
    assert expected
    house.approve_and_apply(header)
    assert {key for key in before if key not in house.files()} == expected
    for history in histories:
        for ref in [ref for name, ref in retained if name == history.repository.name]:
            assert history.repository.contents(ref) == retained[history.repository.name, ref], (history.repository.name, ref)
    house.restore(header.plan_id)
    assert before.items() <= house.files().items()


def test_lifecycle_commit_deletes_paths_and_undo_restores_them(house: Lakehouse, server: LakeFs, tmp_path: Path) -> None:
    repository = server.create("models")
    for path in ("tmp/1", "tmp/2", "keep/1"):
        repository.upload("main", path, path.encode())
    repository.commit("main", days_ago(20))
    repository.tag("v1", "main")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"scratch": {"prefix": "tmp/", "days": 10, "enabled": True}}))
    configure(house, repository, rules=str(rules), lifecycle="commit")
    house.now += timedelta(days=15)

    header = plan_edits(house)
    assert header.path_edits == {"models": 1}
    house.approve_and_apply(header)

    assert set(repository.keys("main")) == {"keep/1"}
    assert set(repository.keys("v1")) == {"keep/1", "tmp/1", "tmp/2"}
    assert undo_expiry(house.run_context(), find_plan(house.config, header.plan_id)) == {"undone": 1}
    assert set(repository.keys("main")) == {"keep/1", "tmp/1", "tmp/2"}


def test_idle_branch_is_deleted_and_undo_recreates_it(house: Lakehouse, server: LakeFs) -> None:
    repository = server.create("models")
    repository.commit("main", days_ago(60))
    for branch in ("tmp-idle", "tmp-staged", "dev"):
        repository.branch(branch)
    repository.upload("tmp-idle", "a", b"a")
    repository.commit("tmp-idle", days_ago(50))
    repository.upload("tmp-staged", "a", b"b")
    heads = repository.refs("branches")
    configure(house, repository, retention={"delete_idle": [{"match": "tmp-.*", "after": "30d"}]})
    for _ in range(2):
        header = house.plan()
        house.now += timedelta(days=31)

    house.now -= timedelta(days=31)
    assert header.expiry_actions == {"models": 1}
    house.approve_and_apply(header)

    assert repository.refs("branches").keys() == {"main", "dev", "tmp-staged"}
    assert undo_expiry(house.run_context(), find_plan(house.config, header.plan_id)) == {"undone": 1}
    assert repository.refs("branches") == heads


def test_files_of_deleted_repository_are_deleted_after_wait(house: Lakehouse, server: LakeFs) -> None:
    gone, other = server.create("gone"), server.create("other")
    for repository in (gone, other):
        repository.upload("main", "a", b"a")
        repository.commit("main")
    configure(house, gone, other)
    house.plan()
    gone.remove()
    house.now += timedelta(days=1)
    assert house.plan().totals == {}, "the server still finds the repository, without branches"
    gone.wait_until_missing()
    forget_lake(house.config, house.clock, "gone", "ada")
    for _ in range(2):
        house.now += timedelta(days=1)
        assert house.plan().totals == {}
    house.now += timedelta(days=7)

    header = house.plan()

    assert set(house.planned_actions()) == {f"gone/{key}" for key in gone.files()}
    assert len(gone.files()) == 1
    assert house.failed_gates(header) == {"dropped_tables"}
    house.approve(header, "dropped_tables")
    house.apply(header)
    assert (gone.files(), other.contents("main")) == (set(), {"a": b"a"})


def test_server_reads_each_commit_after_unused_ranges_are_deleted(house: Lakehouse, server: LakeFs) -> None:
    repository = server.create("models")
    for number in range(3):
        repository.upload("main", f"p/{number}", b"%d" % number)
        repository.commit("main", days_ago(3 - number))
    repository.branch("dev")
    repository.upload("dev", "q", b"q")
    commit = repository.commit("dev")
    repository.drop("dev")
    commits = {row["id"]: repository.contents(row["id"]) for row in repository.log("main")} | {commit: repository.contents(commit)}
    configure(house, repository, unused_ranges="collect")
    house.plan()
    repository.upload("main", "later", b"later")
    commits |= {(last := repository.commit("main")): repository.contents(last)}
    house.now += 2 * AGE

    header = house.plan()

    dumps = {key for key in house.planned_actions() if key.startswith("models/_lakefs/")}
    assert dumps, "the dumps of the refs of the first run"
    house.approve_and_apply(header)
    assert {name: repository.contents(name) for name in commits} == commits


def test_results_of_lifecycle_rules_are_published_into_the_namespace(house: Lakehouse, server: LakeFs, tmp_path: Path) -> None:
    repository = server.create("models")
    repository.upload("main", "tmp/1", b"1")
    repository.commit("main", days_ago(20))
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"scratch": {"prefix": "tmp/", "days": 10, "enabled": True}}))
    configure(house, repository, rules=str(rules), publish_results=True)
    house.now += timedelta(days=15)

    applied = house.approve_and_apply(house.plan())

    assert counts(applied.by_outcome) == {("quarantine", "done"): 1}
    results = repository.folder / "_lakefs" / "retention" / "lc" / "addresses"
    assert [path.parent.name for path in results.rglob("*.parquet")] == [f"date={house.clock.today()}"]


def test_server_reads_retained_objects_after_garbage_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    with open_s3_bench("versity", prefix="lake/") as bench, running(tmp_path / "unused", tmp_path / "server", bench.server) as server:
        repository = server.create("models", f"{bench.store.location}models")
        commits: list[str] = []
        for number in range(3):
            repository.upload("main", "a", b"%d" % number)
            commits.append(repository.commit("main", days_ago(30 - 10 * number)))
        for path in ("lost", "staged"):
            repository.upload("main", path, path.encode())
            if path == "lost":
                lost = repository.keys("main")[path]
                repository.reset("main")
        expired = repository.keys(commits[0])["a"]
        repository.rules(15)
        house = BucketLakehouse(spark, tmp_path, [config_of(server.uri, "models")], SETTINGS, datetime.now(UTC) + AGE, bench=bench)
        contents = house.contents()

        header = house.plan()

        assert house.orphans("models/") == {expired: "expired", lost: "uncommitted"}
        house.approve_and_apply(header)
        assert repository.contents("main") == {"a": b"2", "staged": b"staged"}
        assert repository.contents(commits[1]) == {"a": b"1"}
        with pytest.raises(RuntimeError, match="410"):
            repository.contents(commits[0])
        house.restore(header.plan_id)
        assert contents.items() <= house.contents().items()
        assert repository.contents(commits[0]) == {"a": b"0"}
