"""Random histories of repositories of spec version 2, some of them upgraded, with the values that each snapshot must have.

The library executes every operation. The values are tracked independently of it.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.lakes.icechunk import builder as builder_of_v1
from tests.lakes.icechunk.v2.builder import Write, numbers, set_value, virtual_chunk
from tests.lakes.icechunk.v2.library import Library

DATA_FILES, NUMBERS_IN_A_FILE = 12, 4
Values = dict[str, int]


def write_data_files(folder: Path) -> None:
    """Write files for virtual chunks. Number `i` of file `n` is `1000 * n + i`."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(DATA_FILES):
        (folder / f"file-{n}.bin").write_bytes(struct.pack(f"<{NUMBERS_IN_A_FILE}q", *(1000 * n + i for i in range(NUMBERS_IN_A_FILE))))


@dataclass
class History:
    """A random history, played with `play`.

    Attributes:
        version_1: If True, the repository keeps spec version 1 until `upgrade`.
        values: Values by chunk of each snapshot that was ever written.
        counts: Number of executed operations by name.
    """

    library: Library
    path: Path
    data: Path
    seed: int
    version_1: bool = False
    values: dict[str, Values] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self.rnd = random.Random(self.seed)
        self.clock = self.seed * 1000
        self.retired_tags: set[str] = set()

    def call(self, operation: str, **arguments: Any) -> Any:
        return self.library.call(self.path, operation, **arguments)

    def play(self, steps: int) -> None:
        """Create the repository and execute random operations."""
        self._create()
        self.play_more(steps)

    def copy(self, path: Path) -> History:
        """Return the history of a copy of the repository, which continues with other operations and names."""
        copied = replace(self, path=path)
        copied.rnd.seed(-self.seed)
        copied.clock = self.clock + 500
        return copied

    def play_more(self, steps: int) -> None:
        operations: dict[Callable[[], None], int] = {
            self._commit: 10,
            self._amend: 2,
            self._flush: 1,
            self._rewrite_manifests: 1,
            self._create_branch: 2,
            self._create_tag: 2,
            self._reset_branch: 1,
            self._delete_branch: 1,
            self._delete_tag: 1,
            self._abandon_session: 1,
            self._commit_concurrently: 1,
            self._expire: 1,
            self._collect: 1,
            self._configure: 1,
        }
        if self.version_1:
            operations = {operation: weight for operation, weight in operations.items() if operation not in (self._amend, self._flush)}
        for operation in self.rnd.choices(list(operations), list(operations.values()), k=steps):
            operation()
            self.counts[operation.__name__.strip("_")] += 1

    # Creation.

    def _create(self) -> None:
        start = self.rnd.random()
        if not self.version_1 and start < 0.7:
            root = self.call("create", **self._settings())
            self.values[root] = {}
            return
        if self.rnd.random() < 0.5 and version("icechunk").startswith("1."):
            self._write_with_library_1()
            if self.version_1:
                self._configure()
        else:
            root = self.call("create", spec_version=1, **self._settings())
            self.values[root] = {}
            for _ in range(self.rnd.randint(1, 4)):
                self.rnd.choice([self._commit, self._commit, self._create_branch, self._create_tag])()
            self.counts["version 1 by library 2"] += 1
        if not self.version_1:
            self.upgrade()

    def upgrade(self) -> None:
        """Upgrade the repository to spec version 2. Sometimes the files of version 1 are kept, as if a writer were active."""
        self.call("upgrade", delete_v1_files=self.rnd.random() < 0.7)
        self._configure()
        self.counts["upgrade"] += 1

    def _write_with_library_1(self) -> None:
        """Write a repository with the library of this environment, without zarr data types that differ."""
        at = datetime(2026, 1, 1, tzinfo=UTC)
        builder = builder_of_v1.RepositoryBuilder.create(self.path, at, inline_below_bytes=self.rnd.choice([0, 8]))
        self.values[builder.head("main")] = {}
        values: Values = {}
        for step in range(self.rnd.randint(1, 3)):
            if step == 0:
                values = {f"a/c/{i}": self._number() for i in range(3)}
                write = builder_of_v1.numbers("a", [values[f"a/c/{i}"] for i in range(3)])
            else:
                values = {**values, f"a/c/{step}": self._number()}
                write = builder_of_v1.set_value("a", step, values[f"a/c/{step}"])
            self.values[snapshot := builder.commit("main", at, write)] = values
            if self.rnd.random() < 0.3:
                builder.tag(f"old{step}", snapshot)
        self.counts["version 1 by library 1"] += 1

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "inline_below_bytes": self.rnd.choice([0, 8, 8]),
            "containers": [["box", f"file://{self.data}/", str(self.data)]],
        }
        if self.rnd.random() < 0.4:
            settings["split"] = self.rnd.choice([1, 2, 3])
        if self.rnd.random() < 0.6:
            settings["compress_locations_from"] = self.rnd.choice([1, 4])
        if self.rnd.random() < 0.3:
            settings["updates_in_a_file"] = self.rnd.choice([2, 5])
        return settings

    def _configure(self) -> None:
        self.call("configure", **self._settings())

    # Commits.

    def _commit(self) -> None:
        branch = self._branch()
        writes, values = self._writes(self.values[self._head(branch)])
        self.values[self.call("commit", branch=branch, writes=writes, allow_empty=True)] = values

    def _amend(self) -> None:
        branch = self._branch()
        head = self._head(branch)
        if self.call("ancestry", snapshot=head)[0][1] is not None:  # the first snapshot cannot be amended
            writes, values = self._writes(self.values[head])
            self.values[self.call("commit", branch=branch, writes=writes, how="amend", allow_empty=True)] = values

    def _flush(self) -> None:
        branch = self._branch()
        writes, values = self._writes(self.values[self._head(branch)])
        writes.append(numbers(array := f"flushed{self._number()}", [self._number()]))  # without a change, there is no snapshot
        self.values[self.call("commit", branch=branch, writes=writes, how="flush")] = {**values, f"{array}/c/0": writes[-1]["values"][0]}

    def _rewrite_manifests(self) -> None:
        branch = self._branch()
        head = self._head(branch)
        amend = self.rnd.random() < 0.3 and not self.version_1 and self.call("ancestry", snapshot=head)[0][1] is not None
        if self.values[head]:
            self.values[self.call("rewrite_manifests", branch=branch, how="amend" if amend else "new_commit")] = self.values[head]

    def _abandon_session(self) -> None:
        branch = self._branch()
        writes, _ = self._writes(self.values[self._head(branch)])
        self.library.run(self.path, [("start_session", {"branch": branch}), ("write", {"writes": writes})])

    def _commit_concurrently(self) -> None:
        """Commit a session on top of a commit that was made after its start."""
        branch, name = self._branch(), f"new{self._number()}"
        head = self.values[self._head(branch)]
        if not head:
            return  # both would create the root group, which is a conflict
        others, values = self._writes(head)
        array = numbers(name, [self._number()])
        steps = [
            ("start_session", {"branch": branch, "name": "first"}),
            ("write", {"name": "first", "writes": [array]}),
            ("commit", {"branch": branch, "writes": others, "allow_empty": True}),
            ("rebase_and_finish", {"name": "first"}),
        ]
        _, _, second, rebased = self.library.run(self.path, steps)
        self.values[second] = values
        self.values[rebased] = {**values, f"{name}/c/0": array["values"][0]}

    def _writes(self, before: Values) -> tuple[list[Write], Values]:
        """Return random changes of a snapshot, and its values after them."""
        values, writes = dict(before), []
        arrays = sorted({key.partition("/c/")[0] for key in values})
        for _ in range(self.rnd.randint(1, 3)):
            action = self.rnd.choice(["create", "set", "set", "set", "virtual", "unset", "delete", "resize"])
            array = self.rnd.choice(arrays) if arrays else None
            if array is None or action == "create":
                # A new name each time, because the changes of one session must not depend on their order.
                array = f"{self.rnd.choice(['', '', 'group/'])}array{self._number()}"
                arrays.append(array)
                new = [self._number() if self.rnd.random() < 0.8 else None for _ in range(self.rnd.randint(1, 6))]
                writes.append(numbers(array, new, self.rnd.choice([8, 8, 20])))
                values |= {f"{array}/c/{i}": value for i, value in enumerate(new) if value is not None}
            elif action == "set":
                index, value = self.rnd.randrange(4), self._number()
                writes += [{"resize": array, "length": 8}, set_value(array, index, value, self.rnd.choice([8, 20]))]
                values[f"{array}/c/{index}"] = value
            elif action == "virtual":
                writes += [{"resize": array, "length": 8}, *self._virtual_chunks(array, values)]
            elif action == "unset":
                index = self.rnd.randrange(4)
                writes += [{"resize": array, "length": 8}, {"unset": array, "index": index}]
                values.pop(f"{array}/c/{index}", None)
            elif action == "delete":
                arrays.remove(array)
                writes.append({"delete": array})
                values = {key: value for key, value in values.items() if not key.startswith(f"{array}/")}
            else:
                writes.append({"resize": array, "length": 8 + self.rnd.randrange(3)})
        return writes, values

    def _virtual_chunks(self, array: str, values: Values) -> list[Write]:
        """Return references to data files by name of the container or by address, and add their values."""
        writes = []
        for index in self.rnd.sample(range(8), self.rnd.randint(1, 6)):
            file, number = self.rnd.randrange(DATA_FILES), self.rnd.randrange(NUMBERS_IN_A_FILE)
            place = self.rnd.choice(["vcc://box/", f"file://{self.data}/"])
            writes.append(virtual_chunk(array, index, f"{place}file-{file}.bin", 8 * number, 8))
            values[f"{array}/c/{index}"] = 1000 * file + number
        return writes

    # Refs.

    def _create_branch(self) -> None:
        self.call("create_branch", name=f"branch{self._number()}", snapshot=self._snapshot())

    def _create_tag(self) -> None:
        self.call("create_tag", name=f"tag{self._number()}", snapshot=self._snapshot())

    def _reset_branch(self) -> None:
        self.call("reset_branch", name=self._branch(), snapshot=self._snapshot())

    def _delete_branch(self) -> None:
        if others := sorted(self.call("refs")["branches"].keys() - {"main"}):
            self.call("delete_branch", name=self.rnd.choice(others))

    def _delete_tag(self) -> None:
        if tags := sorted(self.call("refs")["tags"]):
            self.call("delete_tag", name=self.rnd.choice(tags))

    # Maintenance by the library.

    def _expire(self) -> None:
        """Expire what is older than a random snapshot."""
        deletes = {"delete_branches": self.rnd.random() < 0.2, "delete_tags": self.rnd.random() < 0.2}
        self.call("expire", older_than=self._snapshot(), **deletes)

    def _collect(self) -> None:
        self.call("garbage_collect")

    # Choices.

    def _number(self) -> int:
        self.clock += 1
        return self.clock

    def _branch(self) -> str:
        return self.rnd.choice(sorted(self.call("refs")["branches"]))

    def _head(self, branch: str) -> str:
        return self.call("refs")["branches"][branch]

    def _snapshot(self) -> str:
        """Return a snapshot in the history of a random ref."""
        refs = self.call("refs")
        head = self.rnd.choice([*refs["branches"].values(), *refs["tags"].values()])
        return self.rnd.choice(self.call("ancestry", snapshot=head))[0]
