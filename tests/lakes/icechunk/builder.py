"""Real Icechunk repositories for tests: the builder that the demo uses too, and random trees."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from gc_assets.demo.icechunk_builder import (
    DocumentTree,
    RepositoryBuilder,
    document_tree,
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


@dataclass(frozen=True)
class RandomTree:
    """A random history with its true parents and times, known from how it was built."""

    builder: RepositoryBuilder
    parents: Mapping[str, str | None]
    times: Mapping[str, datetime]


def random_tree(path: Path, seed: int, start: datetime, *, commits: int = 14, monotonic: bool = True) -> RandomTree:
    """Branches, tags, resets, deleted refs, and times that grow from parent to child, or do not. One step of time is a minute."""
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
