"""Real Icechunk repositories for tests: the demo's builder, with virtual chunks, the document tree and random trees."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import icechunk

from gc_assets.demo import icechunk_builder
from gc_assets.demo.icechunk_builder import (
    document_history,
    field_position,
    numbers,
    payload_of,
    set_file_time,
    set_value,
    with_payload,
)

__all__ = [
    "DocumentTree",
    "RandomTree",
    "RepositoryBuilder",
    "document_tree",
    "field_position",
    "numbers",
    "payload_of",
    "random_tree",
    "set_file_time",
    "set_value",
    "with_payload",
]


class RepositoryBuilder(icechunk_builder.RepositoryBuilder):
    @classmethod
    def create(cls, path: Path, at: datetime, *, inline_below_bytes: int = 0, virtual_below: Path | None = None) -> Self:
        """Create an empty repository whose first snapshot has the time `at`.

        Chunks of at most `inline_below_bytes` are inline. Virtual references may point to files in
        `virtual_below`.
        """
        config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=inline_below_bytes)
        if virtual_below is None:
            return cls._create(path, at, config)
        prefix = f"file://{virtual_below}/"
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(f"{virtual_below}/")))
        return cls._create(path, at, config, {prefix: None})

    @property
    def location(self) -> str:
        return f"file://{self.path}"

    def reopen(self) -> icechunk.Repository:
        """Open the repository again, without cached snapshots."""
        return icechunk.Repository.open(icechunk.local_filesystem_storage(str(self.path)))


@dataclass(frozen=True)
class DocumentTree:
    """The tree of the expiration document: `ids[n]` is snapshot n. Snapshots 1 to 7 are older than `cutoff`."""

    builder: RepositoryBuilder
    ids: Mapping[int, str]
    cutoff: datetime

    def numbers_of(self, snapshots: Sequence[str] | set[str]) -> set[int]:
        """Return the numbers of snapshots in the document."""
        number = {snapshot: n for n, snapshot in self.ids.items()}
        return {number[snapshot] for snapshot in snapshots}


def document_tree(path: Path, start: datetime, step: timedelta = timedelta(days=1)) -> DocumentTree:
    """Build the history of the expiration document. Snapshot n has the time `start + n * step`."""
    builder = RepositoryBuilder.create(path, start)
    return DocumentTree(builder, document_history(builder, start, step), start + 8 * step)


@dataclass(frozen=True)
class RandomTree:
    """A random history with its expected parents and times."""

    builder: RepositoryBuilder
    parents: Mapping[str, str | None]
    times: Mapping[str, datetime]


def random_tree(path: Path, seed: int, start: datetime, *, commits: int = 14, monotonic: bool = True) -> RandomTree:
    """Build branches, tags, resets and deleted refs. Times ascend from parent to child if `monotonic`."""
    rnd = random.Random(seed)
    builder = RepositoryBuilder.create(path, start)
    repo, root = builder.repo, builder.head("main")
    parents: dict[str, str | None] = {root: None}
    times = {root: start if monotonic else start + timedelta(minutes=rnd.randint(0, 100))}
    branches = ["main"]
    for step in range(rnd.randint(2, commits)):
        act, known = rnd.random(), list(parents)
        if act < 0.2 and len(branches) < 5:
            branches.append(f"branch{step}")
            repo.create_branch(branches[-1], rnd.choice(known))
        elif act < 0.35:
            repo.create_tag(f"tag{step}", rnd.choice(known))
        else:
            branch = rnd.choice(branches)
            parent = builder.head(branch)
            at = times[parent] + timedelta(minutes=rnd.randint(1, 60)) if monotonic else start + timedelta(minutes=rnd.randint(0, 400))
            write = numbers("values", range(2)) if parent == root else set_value("values", step % 2, step)
            snapshot = builder.commit(branch, at, write)
            parents[snapshot], times[snapshot] = parent, at
    if rnd.random() < 0.3:
        repo.reset_branch(rnd.choice(branches), rnd.choice(list(parents)))
    if rnd.random() < 0.3 and len(branches) > 1:
        repo.delete_branch(branches[-1])
    if rnd.random() < 0.3 and (tags := sorted(repo.list_tags())):
        repo.delete_tag(rnd.choice(tags))
    builder.set_time(root, times[root])
    return RandomTree(builder, parents, times)
