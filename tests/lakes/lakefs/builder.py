"""Builder of lakeFS repositories commit by commit: namespace, metadata and server state, as in the recordings."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.lakes.lakefs.fake_server import Branch, FakeObject, FakeRepository

XID_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def xid(moment: datetime, counter: int = 0) -> str:
    """Return an xid as in object names of lakeFS: the time in seconds, then eight more bytes."""
    number = int.from_bytes(int(moment.timestamp()).to_bytes(4, "big") + counter.to_bytes(8, "big"), "big") << 4
    return "".join(XID_DIGITS[number >> shift & 31] for shift in range(95, -1, -5))


class RepositoryBuilder:
    """Builds a repository with the default branch `main` at an empty first commit. `now` is the time of new objects."""

    def __init__(self, folder: Path, now: datetime, name: str = "ml-data") -> None:
        self.repository = FakeRepository(name, folder / name)
        self.now = now
        self._count = 0
        (self.repository.namespace / "data").mkdir(parents=True, exist_ok=True)
        self.repository.branches["main"] = Branch(self.record("first", [], {}))

    @property
    def namespace(self) -> Path:
        return self.repository.namespace

    def upload(self, content: bytes = b"x", *, name: str | None = None) -> str:
        """Write a file into the storage and return its key."""
        self._count += 1
        key = f"data/{xid(self.now)}/{name or xid(self.now, self._count)}"
        self.repository.written[key] = self.now
        path = self.namespace / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (self.now.timestamp(), self.now.timestamp()))
        return key

    def stage(self, branch: str, path: str, key: str | None = None) -> str:
        """Upload an object to a path of a branch, or link a key."""
        key = key or self.upload()
        self.repository.branches[branch].staged[path] = self._fake_object(path, key)
        return key

    def delete(self, branch: str, path: str) -> None:
        self.repository.branches[branch].staged[path] = None

    def reset(self, branch: str) -> None:
        self.repository.branches[branch].staged.clear()

    def branch(self, name: str, source: str = "main", *, hidden: bool = False) -> None:
        head = self.repository.branches[source].head if source in self.repository.branches else source
        self.repository.branches[name] = Branch(head, hidden)

    def drop(self, branch: str) -> None:
        del self.repository.branches[branch]

    def commit(self, branch: str, **uploads: bytes) -> str:
        """Upload objects (with `_` for a slash in their paths) and commit the staged objects of a branch."""
        for path, content in uploads.items():
            self.stage(branch, path.replace("_", "/"), self.upload(content))
        held = self.repository.branches[branch]
        seen = self.repository.resolve(branch) or {}
        name = f"{branch}-{len(self.repository.commits)}"
        held.head = self.record(name, [held.head], {path: item.address for path, item in seen.items()})
        held.staged.clear()
        return held.head

    def record(self, name: str, parents: list[str], tree: dict[str, str], **summary: Any) -> str:
        """Write a commit with its metadata."""
        objects = {path: self._fake_object(path, address) for path, address in tree.items()}
        return self.repository.record(name, parents, objects, self.now, **summary)

    def rules(self, default: int, **branches: int) -> None:
        rows = [{"branch_id": name, "retention_days": days} for name, days in branches.items()]
        self.repository.rules = {"default_retention_days": default, "branches": rows}

    def files(self) -> set[str]:
        """Return the keys of existing objects."""
        return {str(path.relative_to(self.namespace)) for path in (self.namespace / "data").rglob("*") if path.is_file()}

    def _fake_object(self, path: str, address: str) -> FakeObject:
        return FakeObject(path, address, 1, int(self.now.timestamp()))
