"""Live files, candidates and reasons of random lakeFS repositories, computed from the trees of their commits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import start_of_day
from tests.depth import example_count, in_turn
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.lakefs.test_retention_random import expected_commits
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

HISTORIES = example_count(5, 60)
AS_OF = start_of_day(NOW.date())
STEPS = ("stage",) * 4 + ("commit",) * 8 + ("delete", "reset", "branch", "drop", "tag", "merge", "upload", "copy")
# From 60 to 8 days ago, so that no file or commit is in a grace period.
OLDEST, YOUNGEST, MOST_STEPS = 60, 8, 60


class History(RepositoryBuilder):
    """A random history. Branches with an odd number have their own rule."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, days_ago(OLDEST), f"r{seed}")
        self.chance, self.days = random.Random(seed), dict[str, int]()
        steps = self.chance.randint(20, MOST_STEPS)
        for number in range(steps):
            self.now = days_ago(OLDEST - (OLDEST - YOUNGEST) * (number + 1) / steps) - timedelta(hours=1)
            self._step(number)
        self.days = {name: self.chance.randint(1, 50) for name in self.repository.branches if self.chance.random() < 0.5}
        self.default_days = self.chance.randint(1, 30)
        self.rules(self.default_days, **self.days)

    def _step(self, number: int) -> None:
        chance, branches = self.chance, self.repository.branches
        branch, other, path = chance.choice(sorted(branches)), chance.choice(sorted(branches)), chance.choice("abcd")
        match chance.choice(STEPS):
            case "stage":
                self.stage(branch, path)
            case "copy" if seen := self.repository.resolve(other):
                self.stage(branch, f"{path}-copy", seen[min(seen)].address)
            case "commit":
                self.commit(branch, **{path: b"x"})
            case "delete":
                self.delete(branch, path)
            case "reset":
                self.reset(branch)
            case "branch":
                self.branch(f"b{number}", branch)
            case "drop" if branch != "main":
                self.drop(branch)
            case "tag":
                self.repository.tags[f"v{number}"] = branches[branch].head
            case "merge" if branch != other:
                source, target = branches[other], branches[branch]
                tree = {**self.repository.trees[source.head], **self.repository.trees[target.head]}
                addresses = {path: item.address for path, item in tree.items()}
                target.head = self.record(f"merge-{number}", [target.head, source.head], addresses)
            case _:
                self.upload()

    def list_retained_commits(self) -> set[str]:
        """Return the commits that the rules keep, by the second implementation of the rule."""
        commits = self.repository.commits
        number = {name: position for position, name in enumerate(commits)}
        heads = {name: ("branch", number[branch.head], self.days.get(name)) for name, branch in self.repository.branches.items()}
        heads |= {name: ("tag", number[head], None) for name, head in self.repository.tags.items()}
        ages = [(AS_OF.timestamp() - commit.created) / 86_400 for commit in commits.values()]
        parents = [[number[parent] for parent in commit.parents] for commit in commits.values()]
        drawn = {"commits": list(zip(parents, ages, strict=True)), "server": True, "refs": heads, "default": self.default_days}
        kept, _ = expected_commits({**drawn, "tags": "keep", "grace": None})
        return {name for name, position in number.items() if position in kept}

    def live_keys(self) -> set[str]:
        """Return the keys that retained commits and branches with their uncommitted changes need."""
        seen = [self.repository.resolve(branch) or {} for branch in self.repository.branches]
        trees = [*(self.repository.trees[commit] for commit in self.list_retained_commits()), *seen]
        return {item.address for tree in trees for item in tree.values()}

    def garbage(self) -> dict[str, str]:
        """Map the other keys to the reasons: expired if a commit contains them."""
        committed = {item.address for tree in self.repository.trees.values() for item in tree.values()}
        return {key: "expired" if key in committed else "uncommitted" for key in self.files() - self.live_keys()}


@dataclass
class Story:
    house: Lakehouse
    histories: list[History]


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    house = Lakehouse(spark, tmp_path_factory.mktemp("histories"), settings={"gates": {"max_delete_share": 1}})
    histories = [History(house.warehouse, seed) for seed in range(HISTORIES)]
    with FakeServer(*(history.repository for history in histories)).running() as url:
        house.lakes = [
            config_of(url, item.repository.name, name=item.repository.name, location=f"file://{item.namespace}/") for item in histories
        ]
        # The builder numbers its files, so that files of two repositories can have the same name and size.
        assert {gate.name for gate in house.plan().failed_gates} <= {"unknown_addresses"}
        yield Story(house, histories)


def test_retained_commits_of_random_repositories_equal_brute_force(story: Story) -> None:
    for history in story.histories:
        assert story.house.commits("retained", history.repository.name) == history.list_retained_commits(), history.repository.name


def test_candidates_and_reasons_of_random_repositories_equal_brute_force(story: Story) -> None:
    expected = {f"{item.repository.name}/{key}": reason for item in story.histories for key, reason in item.garbage().items()}
    assert story.house.orphans() == expected
    assert set(expected.values()) == {"expired", "uncommitted"}


def test_live_objects_of_random_repositories_equal_brute_force(story: Story) -> None:
    expected = {f"{item.repository.name}/{key}" for item in story.histories for key in item.live_keys()}
    names = tuple(f"{item.repository.name}/data/" for item in story.histories)
    assert {key for key in story.house.live() if key.startswith(names)} == expected
