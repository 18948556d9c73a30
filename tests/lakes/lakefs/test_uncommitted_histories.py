"""Incremental listings find the same garbage as one full listing, on random histories of a repository."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.lakefs.lake import LakeFsLake
from gc_assets.lakes.protocol import Container
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import example_count
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import commits_of, config_of, graph_of, retained_ids
from tests.stores.local.test_incremental_listing import IncrementalListing, list_etags, tick

START = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["upload", "overwrite", "commit", "delete", "reset", "branch", "drop", "lose", "link", "copy", "run"]),
        st.sampled_from(["main", "dev", "exp"]),
        st.sampled_from(["a", "b/c", "d"]),
    ),
    min_size=3,
    max_size=18,
)


class World:
    """A repository, its incremental listings, and addresses that were created and never linked."""

    def __init__(self, lake: LakeFsLake, builder: RepositoryBuilder) -> None:
        self.root, self.lake, self.builder = builder.namespace, lake, builder
        self.runs = IncrementalListing(self.root, "data/")
        self.decoded: dict[str, pa.RecordBatch] = {}
        self.found: set[str] = set()
        self.unlinked: list[str] = []
        self.reused = 0
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
        elif verb == "copy" and (seen := builder.repository.resolve(branch)):
            builder.stage(branch, f"{path}-copy", min(item.address for item in seen.values()))
        elif verb == "run":
            self.run()

    def run(self) -> None:
        """Compare an incremental run with a full listing and the expected live files of the builder."""
        tick(self.root, self.clock, self.times)
        self.reused += len(self.runs.list())
        dead = {key for key in self.runs.etags() if key.startswith("data/")} - self.live()
        self.found |= dead

        on_disk, truth = set(list_etags(self.root)[0]), self.truth()
        clean = {key for key in on_disk if key.startswith("data/")} - truth
        assert dead == clean
        # Garbage of an earlier run that is live again was linked since then. A restore returns it.
        assert self.found - truth == clean

    def live(self) -> set[str]:
        prefix = f"file://{self.root}/"
        refs = self.lake.freeze(START)
        commits = commits_of(self.lake, refs)
        keep = retained_ids(self.lake.retain(refs, graph_of(commits), START, START))
        roots = [root for commit in commits if commit.commit_id in keep for root in commit.content_roots]
        committed = {address for root in roots for address in self.objects_below(Container(root.address, root.kind))}
        return {address.removeprefix(prefix) for address in (*committed, *(item.address for item in refs.pinned))}

    def objects_below(self, container: Container) -> Iterator[str]:
        """Yield the objects of a container. Each container is decoded once."""
        if container.address not in self.decoded:
            raw = LocalObjects().read(container.address)
            self.decoded[container.address] = self.lake.decode(container, raw)
        for row in self.decoded[container.address].select(["address", "kind", "is_container", "expected_entries"]).to_pylist():
            if row["is_container"]:
                yield from self.objects_below(Container(row["address"], row["kind"], None, row["expected_entries"]))
            else:
                yield row["address"]

    def truth(self) -> set[str]:
        repository = self.builder.repository
        seen = [repository.resolve(branch) or {} for branch in repository.branches]
        return {item.address for tree in (*repository.trees.values(), *seen) for item in tree.values()}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeServer, str]]:
    """A server for all histories, which have one repository each."""
    server = FakeServer()
    with server.running() as url:
        yield server, url


def world(folder: Path, server: tuple[FakeServer, str]) -> World:
    builder = RepositoryBuilder(folder, START)
    server[0].repositories = {builder.repository.name: builder.repository}
    return World(LakeFsLake(config_of(server[1], "ml-data", location=f"file://{builder.namespace}"), LocalObjects()), builder)


@settings(max_examples=example_count(40, 200), deadline=None)
@given(STEPS)
def test_incremental_listing_finds_the_same_garbage_as_full_listing(
    server: tuple[FakeServer, str], steps: list[tuple[str, str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = world(Path(folder), server)
        for verb, branch, path in steps:
            history.step(verb, branch, path)
        history.run()


def test_random_history_steps_cover_garbage_and_listing_reuse(tmp_path: Path, server: tuple[FakeServer, str]) -> None:
    history = world(tmp_path, server)
    for verb in ("upload", "overwrite", "run", "lose", "commit", "run", "link", "reset"):
        history.step(verb, "main", "a")
    history.run()
    assert len(history.found) == 2
    assert history.reused > 0
