"""Nights that list only what changed find together what one clean run finds, on random histories of a repository."""

from __future__ import annotations

import itertools
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.lakefs.lake import LakeFsLake
from gc_assets.stores.listing import unchanged_directories
from gc_assets.stores.local import LocalObjects
from gc_assets.stores.protocol import Directory
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.support import commits_of, config_of, graph_of, retained
from tests.stores.test_incremental_listing import folder_of, listed, tick

START = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["upload", "overwrite", "commit", "delete", "reset", "branch", "drop", "lose", "link", "copy", "night"]),
        st.sampled_from(["main", "dev", "exp"]),
        st.sampled_from(["a", "b/c", "d"]),
    ),
    min_size=3,
    max_size=18,
)


class World:
    """A repository, what is known of its storage from incremental listings, and addresses that were handed out and never linked."""

    def __init__(self, folder: Path, lake: LakeFsLake, builder: RepositoryBuilder) -> None:
        self.root, self.lake, self.builder = folder, lake, builder
        self.known: dict[str, str] = {}
        self.directories: list[Directory] = []
        self.found: set[str] = set()
        self.unlinked: list[str] = []
        self.clock, self.times = itertools.count(1_000), dict[Path, int]()

    def step(self, verb: str, branch: str, path: str) -> None:
        builder, branches = self.builder, self.builder.repository.branches
        builder.now += timedelta(hours=7)
        if verb == "branch" and branch not in branches:
            builder.branch(branch)
        if branch not in branches:
            return
        if verb in {"upload", "overwrite"}:
            builder.stage(branch, path)
        elif verb == "commit":
            builder.commit(branch)
        elif verb == "delete":
            builder.delete(branch, path)
        elif verb == "reset":
            builder.reset(branch)
        elif verb == "drop" and branch != "main":
            builder.drop(branch)
        elif verb == "lose":
            self.unlinked.append(builder.upload())
        elif verb == "link" and self.unlinked:
            builder.stage(branch, path, self.unlinked.pop())
        elif verb == "copy" and (seen := builder.repository.seen(branch)):
            builder.stage(branch, f"{path}-copy", min(item.address for item in seen.values()))
        elif verb == "night":
            self.night()

    def night(self) -> None:
        """The optimized run of a night, beside a clean run that lists everything and knows the truth from the builder's own books."""
        tick(self.root, self.clock, self.times)
        carried = unchanged_directories(str(self.root), self.directories)
        found, read = listed(self.root, carried)
        self.known = {key: etag for key, etag in self.known.items() if folder_of(key) in carried} | found
        self.directories = [item for item in self.directories if item.key in carried] + read
        dead = {key for key in self.known if key.startswith("data/")} - self.live()
        self.found |= dead

        on_disk, truth = set(listed(self.root)[0]), self.truth()
        clean = {key for key in on_disk if key.startswith("data/")} - truth
        assert dead == clean
        # What was found on some night and is needed again by now was linked since: quarantine gives it back.
        assert self.found - truth == clean

    def live(self) -> set[str]:
        prefix = f"file://{self.root}/"
        refs = self.lake.freeze(START)
        commits = commits_of(self.lake, refs)
        keep = retained(self.lake.retain(refs, graph_of(commits), START, START))
        trees = self.builder.repository.trees
        committed = {item.address for commit in keep for item in trees[commit].values()}
        return committed | {item.address.removeprefix(prefix) for item in refs.pinned}

    def truth(self) -> set[str]:
        repository = self.builder.repository
        seen = [repository.seen(branch) or {} for branch in repository.branches]
        return {item.address for tree in (*repository.trees.values(), *seen) for item in tree.values()}


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_clean_run_finds_exactly_what_the_optimized_runs_found_together(steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        builder = RepositoryBuilder(Path(folder), START)
        server = FakeServer(builder.repository)
        with server.running() as url:
            lake = LakeFsLake(config_of(url, "ml-data", location=f"file://{builder.namespace}"), LocalObjects())
            world = World(builder.namespace, lake, builder)
            for verb, branch, path in steps:
                world.step(verb, branch, path)
            world.night()


def test_the_histories_do_find_garbage(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path, START)
    with FakeServer(builder.repository).running() as url:
        lake = LakeFsLake(config_of(url, "ml-data", location=f"file://{builder.namespace}"), LocalObjects())
        world = World(builder.namespace, lake, builder)
        for verb in ("upload", "overwrite", "night", "lose", "commit", "night", "link", "reset"):
            world.step(verb, "main", "a")
        world.night()
        assert len(world.found) == 2
