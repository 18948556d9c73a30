"""A fake lakeFS server over HTTP, with state and a storage namespace on the disk.

It responds to the requests of the collector with the format and the faults of the recordings (tests/data/lakefs): full addresses with
a doubled root of the store, hidden branches only on request, `"branches": null`, and staged entries that `prepare_uncommited` misses.
Bytes of paths that are not UTF-8 are lone surrogates in its state (`surrogateescape`), and U+FFFD in its responses, as with Go's
`json.Marshal`. It responds to unknown requests with 501, so that no test passes without a response.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tests.lakes.lakefs.tables import (
    Entry,
    Table,
    encode_value,
    metarange_record,
    metarange_table,
    number,
    range_table,
    table,
    text,
    to_bytes,
)

# Bytes that are not UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")
HEXADECIMAL = re.compile(r"[a-fA-F0-9]{1,64}")
KEY_ID, SECRET = "AKIAIOSFOLKFSSAMPLES", "not-a-real-secret-but-searched-for-in-every-output"


@dataclass
class Commit:
    """A commit of the server. `created` is in seconds."""

    id: str
    parents: list[str]
    created: int
    metarange_id: str
    version: int = 1
    generation: int = 1
    message: str = ""
    nanos: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeObject:
    """An object of a ref, with the full or relative address of its entry."""

    path: str
    address: str
    size_bytes: int
    mtime: int
    checksum: str = "0" * 32
    # For the server, identical content at the same path is no change, even at another address (H5).
    is_change: bool = True

    @property
    def is_full(self) -> bool:
        return "://" in self.address


@dataclass
class Branch:
    head: str
    hidden: bool = False
    # Staged object by path, None for a deletion.
    staged: dict[str, FakeObject | None] = field(default_factory=dict)


@dataclass
class FakeRepository:
    """The state of a repository. `trees` contains the objects of each commit."""

    name: str
    namespace: Path
    root: str = "/lakefs-blockstore"
    read_only: bool = False
    created: int = 0
    branches: dict[str, Branch] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    trees: dict[str, dict[str, FakeObject]] = field(default_factory=dict)
    rules: dict[str, Any] | None = None
    # Patterns of the branch protection rules.
    protected: list[str] = field(default_factory=list)
    default_branch: str = "main"
    storage_namespace: str | None = None
    # Servers before December 2022 resolve a name that begins one commit id to that commit, even if it is a branch (lakeFS #4743).
    prefix_wins: bool = False
    # Ids of an existing dump in the namespace. If None, each request writes a new one.
    dumped: dict[str, str] | None = None
    # Time of the entries of an address in ranges, if it is not that of their commit.
    written: dict[str, datetime] = field(default_factory=dict)

    def resolve(self, ref: str) -> dict[str, FakeObject] | None:
        """Return the objects of a commit, branch or tag, in the order of `resolve_ref.go`.

        `NAME$` are the staged objects of a branch, and None for any other name.
        """
        name = ref.removesuffix("$")
        commit = self._find_commit(name)
        is_branch = name in self.branches and (commit is None or (commit != name and not self.prefix_wins))
        if is_branch:
            branch = self.branches[name]
            merged = {**({} if ref.endswith("$") else self.trees[branch.head]), **branch.staged}
            return {path: item for path, item in merged.items() if item is not None}
        if ref.endswith("$"):
            return None
        if name in self.tags and commit != name and not self.prefix_wins:
            return self.trees.get(self.tags[name])
        return self.trees[commit] if commit is not None else self.trees.get(self.tags.get(name, ""))

    def _find_commit(self, ref: str) -> str | None:
        """Return the only commit whose id begins with the name."""
        if ref in self.trees:
            return ref
        found = [commit for commit in self.trees if HEXADECIMAL.fullmatch(ref) and commit.startswith(ref.lower())]
        return found[0] if len(found) == 1 else None

    def listed_address(self, item: FakeObject) -> str:
        """Return the address in the REST listing of a local block store."""
        if item.is_full:
            scheme, path = item.address.split("://", 1)
            return f"local://{self.root}{path}" if scheme == "local" else item.address
        return f"local://{self.root}/{self.name}/{item.address}"

    def write_metadata(self, table: Table) -> str:
        folder = self.namespace / "_lakefs"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / table.object_id).write_bytes(table)
        return table.object_id

    def record(self, name: str, parents: list[str], tree: dict[str, FakeObject], now: datetime, **summary: Any) -> str:
        """Write a commit with its metadata."""
        entries = [
            Entry(path, item.address, 1, self.written.get(item.address, now), 2 if item.is_full else 1)
            for path, item in sorted(tree.items(), key=lambda pair: to_bytes(pair[0]))
        ]
        metarange = ""
        if entries:
            ranges = []
            for first in range(0, len(entries), 3):  # small ranges, so that commits share them
                part = entries[first : first + 3]
                range_id = self.write_metadata(range_table(part))
                ranges.append((range_id, to_bytes(part[0].path), to_bytes(part[-1].path), len(part)))
            metarange = self.write_metadata(metarange_table(ranges))
        self.commits[name] = Commit(name, parents, int(now.timestamp()), metarange, **summary)
        self.trees[name] = dict(tree)
        return name

    def log(self, ref: str) -> list[Commit]:
        """Return the commits of the first-parent line of a branch or commit, newest first."""
        found, commit = [], self.commits.get(self.branches[ref].head if ref in self.branches else ref)
        while commit is not None:
            found.append(commit)
            commit = self.commits[commit.parents[0]] if commit.parents else None
        return found

    def is_protected(self, branch: str) -> bool:
        return any(fnmatchcase(branch, pattern) for pattern in self.protected)

    def changes(self, branch: str) -> dict[str, str]:
        """Return the type of each uncommitted change by path."""
        held = self.branches[branch]
        before = self.trees[held.head]
        return {
            path: "removed" if item is None else "changed" if path in before else "added"
            for path, item in sorted(held.staged.items())
            if (path in before if item is None else item.is_change)
        }

    def dump(self) -> dict[str, str]:
        if self.dumped is not None:
            return self.dumped
        commits = [(c.id.encode(), encode_value(c.metarange_id.encode(), self._commit(c))) for c in self.commits.values()]
        branches = [(n.encode(), encode_value(b.head.encode(), text(1, n) + text(2, b.head))) for n, b in self.branches.items()]
        tags = [(n.encode(), encode_value(c.encode(), text(1, n) + text(2, c))) for n, c in self.tags.items()]
        return {
            "commits_meta_range_id": self._dump_table("commit", commits),
            "branches_meta_range_id": self._dump_table("branch", branches),
            "tags_meta_range_id": self._dump_table("tag", tags),
        }

    def _commit(self, commit: Commit) -> bytes:
        moment = number(1, commit.created) + (number(2, commit.nanos) if commit.nanos else b"")
        out = text(1, commit.id) + text(2, "tester") + text(3, commit.message) + text(4, moment) + text(5, commit.metarange_id)
        out += b"".join(text(6, text(1, key) + text(2, value)) for key, value in sorted(commit.metadata.items()))
        out += b"".join(text(7, parent) for parent in commit.parents)
        return out + (number(8, commit.version) if commit.version else b"") + number(9, commit.generation)

    def _dump_table(self, entity: str, records: list[tuple[bytes, bytes]]) -> str:
        ranges = []
        ordered = sorted(records)
        for first in range(0, len(ordered), 1000):
            part = ordered[first : first + 1000]
            range_id = self.write_metadata(table(part, "ranges", entity=entity))
            ranges.append(metarange_record(range_id, part[0][0], part[-1][0], len(part)))
        return self.write_metadata(table(ranges, "metaranges", entity=entity))

    def prepare_uncommitted(self, run_id: str) -> str:
        """Write the uncommitted objects of the server, without full addresses and identical uploads (H5)."""
        found = [
            item for branch in self.branches.values() for item in branch.staged.values() if item and item.is_change and not item.is_full
        ]
        if not found:
            return ""
        rows = pa.table({"physical_address": [i.address for i in found], "creation_date": pa.array([i.mtime for i in found], pa.int64())})
        relative = f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted"
        (self.namespace / relative).mkdir(parents=True, exist_ok=True)
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="gzip")
        (self.namespace / relative / "part").write_bytes(sink.getvalue())
        return f"local://{self.root}/{self.name}/{relative}"


# As Go's `strconv.ParseBool`, which the server uses for queries. The SDK sends `True`.
TRUE = {"1", "t", "T", "TRUE", "true", "True"}
Answer = tuple[int, Any]
# Receives (method, path, query). A result other than None replaces the response of the server.
Fault = Callable[[str, str, Mapping[str, str]], Answer | None]


class FakeServer:
    """Serves repositories over HTTP. `requests` are all requests, `fault` can replace responses."""

    def __init__(self, *repositories: FakeRepository) -> None:
        self.repositories = {repository.name: repository for repository in repositories}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.fault: Fault = lambda method, path, query: None
        self.grace_period = 86_400
        self.page = 1000
        self.date: str | None = None
        # Time of commits by requests. If None, that of the clock.
        self.now: datetime | None = None
        self.installation: str | None = None
        # None for servers that do not state their edition.
        self.edition: str | None = "lakeFS"
        self.tasks: dict[str, dict[str, str] | None] = {}
        self.pages_of_uncommitted: list[tuple[str, str]] | None = None
        # Continuation tokens of requests for these pages.
        self.tokens: list[str | None] = []
        self._listed: dict[str, tuple[dict[str, FakeObject], list[str]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run the server and yield its base URL."""
        http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)  # time to stop
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            http.server_close()
            thread.join()

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        with self._lock:
            self.requests.append((method, path, query))
            found = self.fault(method, path, query)
            return found if found is not None else self._answer(method, [unquote(step) for step in path.split("/")[1:]], query, body)

    def _answer(self, method: str, steps: list[str], query: dict[str, str], body: dict[str, Any]) -> Answer:  # noqa: C901 - one branch per route
        if (method, steps) == ("GET", ["config"]):
            edition = {} if self.edition is None else {"version_context": self.edition}
            return 200, {"version_config": {"version": "1.84.0", **edition}}
        if (method, steps) == ("GET", ["config", "garbage-collection"]):
            return 200, {"grace_period": self.grace_period}
        if (method, steps) == ("GET", ["repositories"]):
            return 200, self._paginate({name: self._describe(item) for name, item in self.repositories.items()}, query)
        if (method, steps) == ("GET", ["usage-report", "summary"]):
            return (200, {"installation_id": self.installation, "reports": []}) if self.installation else (404, {"message": "not enabled"})
        if steps[:1] != ["repositories"] or len(steps) < 2:
            return 501, {"message": "unknown to the fake server"}
        repository = self.repositories.get(steps[1])
        if repository is None:
            return 404, {"message": "repository not found"}
        match method, steps[2:]:
            case "GET", []:
                return 200, self._describe(repository)
            case "GET", ["branches"]:
                shown = {n: b for n, b in repository.branches.items() if not b.hidden or query.get("show_hidden") in TRUE}
                shown = {n: b for n, b in shown.items() if n.startswith(query.get("prefix", ""))}
                return 200, self._paginate({n: {"id": n, "commit_id": b.head} for n, b in shown.items()}, query)
            case "POST", ["branches"]:
                return self._create_branch(repository, body)
            case "GET" | "DELETE", ["branches", name]:
                return self._branch(repository, method, name)
            case "GET", ["branches", name, "diff"]:
                return self._diff(repository, name)
            case "POST", ["branches", name, *action] if name in repository.branches:
                return self._edit_branch(repository, name, "/".join(action), body)
            case "POST", ["branches", _, "commits"]:
                return 404, {"message": "branch not found"}
            case "GET", ["refs", ref, "commits"]:
                return self._log(repository, ref, query)
            case "GET", ["settings", "branch_protection"]:
                return 200, [{"pattern": pattern} for pattern in repository.protected]
            case "GET", ["tags"]:
                return 200, self._paginate({n: {"id": n, "commit_id": c} for n, c in repository.tags.items()}, query)
            case "GET", ["refs", ref, "objects", "ls"]:
                return self._objects(repository, ref, query)
            case "GET", ["settings", "gc_rules"]:
                return self._rules(repository)
            case "POST", ["dump"]:
                task = f"DR{len(self.tasks)}"
                self.tasks[task] = None
                return 202, {"id": task}
            case "GET", ["dump"]:
                return self._dump(repository, query["task_id"])
            case "POST", ["gc", "prepare_uncommited"]:
                return self._prepare_uncommitted(repository, body)
        return 501, {"message": "unknown to the fake server"}

    def _describe(self, repository: FakeRepository) -> dict[str, Any]:
        return {
            "creation_date": repository.created,
            "default_branch": repository.default_branch,
            "id": repository.name,
            "read_only": repository.read_only,
            "storage_id": "",
            "storage_namespace": repository.storage_namespace or f"local://{repository.name}",
        }

    def _paginate(self, items: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
        amount = min(int(query.get("amount", "100")), self.page)
        names, pagination = _page(sorted(items, key=to_bytes), query.get("after", ""), amount)
        return {"pagination": pagination, "results": [items[name] for name in names]}

    def _branch(self, repository: FakeRepository, method: str, name: str) -> Answer:
        if name not in repository.branches:
            return 404, {"message": "branch not found"}
        if method == "GET":
            return 200, {"id": name, "commit_id": repository.branches[name].head}
        if name == repository.default_branch:
            return 403, {"message": "cannot delete repository default branch"}
        del repository.branches[name]
        return 204, b""

    def _create_branch(self, repository: FakeRepository, body: Mapping[str, Any]) -> Answer:
        if body["name"] in repository.branches:
            return 409, {"message": "branch already exists: not unique"}
        if body["source"] not in repository.trees:
            return 404, {"message": f"source reference '{body['source']}': not found"}
        repository.branches[body["name"]] = Branch(body["source"], bool(body.get("hidden")))
        return 201, body["source"].encode()

    def _edit_branch(self, repository: FakeRepository, name: str, action: str, body: Mapping[str, Any]) -> Answer:
        branch = repository.branches[name]
        tree = repository.trees[branch.head]
        if action == "objects/delete":
            return self._delete_objects(repository, name, body["paths"])
        if action == "commits":
            if repository.is_protected(name):
                return 403, {"message": "cannot commit to protected branch"}
            if not repository.changes(name):
                return 400, {"message": "commit: no changes"}
            staged = repository.resolve(name) or {}
            return self._add_commit(repository, name, staged, body["message"], body.get("metadata") or {})
        if action not in {"cherry-pick", "revert"}:
            return 501, {"message": "unknown to the fake server"}
        commit = repository.commits.get(body["ref"])
        if commit is None:
            return 404, {"message": f"get commit from ref {body['ref']}: not found"}
        if repository.changes(name):
            return 400, {"message": "uncommitted changes (dirty branch)"}
        before, after = repository.trees[commit.parents[0]], repository.trees[commit.id]
        base, source = (before, after) if action == "cherry-pick" else (after, before)
        merged = _merge(base, source, tree)
        if merged is None:
            return 409, {"message": "update branch: conflict found"}
        if action == "cherry-pick":  # the commit may be empty
            origin = {"cherry-pick-origin": commit.id, "cherry-pick-committer": "tester"}
            metadata = (body.get("commit_overrides") or {}).get("metadata") or commit.metadata
            return self._add_commit(repository, name, merged, commit.message, metadata | origin)
        if merged == tree:
            return 400, {"message": "update branch: no changes"}
        self._add_commit(repository, name, merged, f"Revert {commit.id}", {})
        return 204, b""

    def _delete_objects(self, repository: FakeRepository, name: str, paths: list[str]) -> Answer:
        if len(paths) > 1000:
            return 400, {"message": "request size exceeded, max paths is set to 1000"}
        branch = repository.branches[name]
        if repository.is_protected(name):
            message = "cannot write to protected branch"
            return 200, {"errors": [{"status_code": 403, "message": message, "path": path} for path in paths]}
        for path in paths:
            branch.staged.pop(path, None)
            if path in repository.trees[branch.head]:
                branch.staged[path] = None
        return 200, {"errors": []}

    def _add_commit(
        self, repository: FakeRepository, name: str, tree: dict[str, FakeObject], message: str, metadata: dict[str, str]
    ) -> Answer:
        branch = repository.branches[name]
        commit_id = hashlib.sha256(f"{len(repository.commits)} {branch.head} {message} {metadata}".encode()).hexdigest()
        now = self.now or datetime.now(UTC)
        repository.record(commit_id, [branch.head], tree, now, message=message, metadata=dict(metadata))
        branch.head = commit_id
        branch.staged.clear()
        return 201, _describe_commit(repository.commits[commit_id])

    def _log(self, repository: FakeRepository, ref: str, query: Mapping[str, str]) -> Answer:
        if ref not in repository.branches and ref not in repository.commits:
            return 404, {"message": "ref: not found"}
        commits = repository.log(ref)
        ids = [commit.id for commit in commits]
        start = ids.index(query["after"]) + 1 if query.get("after") else 0
        page = commits[start : start + min(int(query.get("amount", "100")), self.page)]
        more = start + len(page) < len(commits)
        pagination = {"has_more": more, "max_per_page": 1000, "next_offset": page[-1].id if more else "", "results": len(page)}
        return 200, {"pagination": pagination, "results": [_describe_commit(commit) for commit in page]}

    def _diff(self, repository: FakeRepository, name: str) -> Answer:
        if name not in repository.branches:
            return 404, {"message": "branch not found"}
        types = repository.changes(name)
        sizes = {path: item.size_bytes for path, item in repository.branches[name].staged.items() if item is not None}
        rows = [{"path": path, "path_type": "object", "size_bytes": sizes.get(path, 0), "type": kind} for path, kind in types.items()]
        return 200, {"pagination": _page(list(types), "", 1000)[1], "results": rows}

    def _objects(self, repository: FakeRepository, ref: str, query: Mapping[str, str]) -> Answer:
        seen = repository.resolve(ref)
        if seen is None:
            return 404, {"message": "branch not found"}
        before, paths = self._listed.get(ref, ({}, []))
        if before != seen:
            paths = sorted(seen, key=to_bytes)
            self._listed[ref] = seen, paths
        names, pagination = _page(paths, query.get("after", ""), min(int(query.get("amount", "100")), self.page))
        return 200, {"pagination": pagination, "results": [_stats(repository, seen[path]) for path in names]}

    def _rules(self, repository: FakeRepository) -> Answer:
        rules = repository.rules
        if rules is None or not (rules["default_retention_days"] or rules["branches"]):  # stored, but read as missing (H19)
            return 404, {"message": "no rules were found"}
        return 200, {"branches": rules["branches"] or None, "default_retention_days": rules["default_retention_days"]}

    def _dump(self, repository: FakeRepository, task: str) -> Answer:
        if task not in self.tasks:
            return 404, {"message": "not found"}
        status: dict[str, Any] = {"id": task, "done": False, "update_time": "2026-06-01T00:00:02.670648914Z"}
        if self.tasks[task] is None:
            self.tasks[task] = repository.dump()
            return 200, status
        return 200, status | {"done": True, "refs": self.tasks[task]}

    def _prepare_uncommitted(self, repository: FakeRepository, body: Mapping[str, Any]) -> Answer:
        run_id = f"g0{len(self.requests):018}"
        self.tokens.append(body.get("continuation_token"))
        if self.pages_of_uncommitted is not None:
            location, token = self.pages_of_uncommitted.pop(0)
            return 201, {"run_id": run_id, "gc_uncommitted_location": location} | ({"continuation_token": token} if token else {})
        if body.get("continuation_token"):
            return 400, {"message": "invalid continuation token"}
        return 201, {"run_id": run_id, "gc_uncommitted_location": repository.prepare_uncommitted(run_id)}


def _merge(
    base: Mapping[str, FakeObject], source: Mapping[str, FakeObject], destination: Mapping[str, FakeObject]
) -> dict[str, FakeObject] | None:
    """Return the three-way merge, or None for a conflict. Objects of builders differ by their addresses only."""
    found: dict[str, FakeObject] = {}
    for path in sorted({*base, *source, *destination}):
        old, theirs, ours = (_identity(tree.get(path)) for tree in (base, source, destination))
        if theirs not in {old, ours} and ours != old:
            return None
        item = (source if ours == old else destination).get(path)
        if item is not None:
            found[path] = item
    return found


def _identity(item: FakeObject | None) -> tuple[object, ...] | None:
    return None if item is None else (item.address, item.size_bytes, item.checksum)


def _describe_commit(commit: Commit) -> dict[str, Any]:
    return {
        "committer": "tester",
        "creation_date": commit.created,
        "generation": commit.generation,
        "id": commit.id,
        "message": commit.message,
        "meta_range_id": commit.metarange_id,
        "metadata": commit.metadata,
        "parents": commit.parents,
        "version": commit.version,
    }


def _page(names: list[str], after: str, amount: int) -> tuple[list[str], dict[str, Any]]:
    start = bisect_right(names, to_bytes(after), key=to_bytes)
    page = names[start : start + amount]
    more = len(names) > start + amount
    return page, {"has_more": more, "max_per_page": 1000, "next_offset": page[-1] if more else "", "results": len(page)}


def _stats(repository: FakeRepository, item: FakeObject) -> dict[str, Any]:
    return {
        "checksum": item.checksum,
        "content_type": "application/octet-stream",
        "mtime": item.mtime,
        "path": item.path,
        "path_type": "object",
        "physical_address": repository.listed_address(item),
        "size_bytes": item.size_bytes,
    }


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    expected = "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet, otherwise each response waits 40 ms for an acknowledgement
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_DELETE(self) -> None:
            self._serve("DELETE")

        def _serve(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            url = urlsplit(self.path)
            if self.headers.get("Authorization") != expected:
                status, body = 401, {"message": "error authenticating request"}
            else:
                query = dict(parse_qsl(url.query, errors="surrogateescape"))
                status, body = server.answer(method, url.path.removeprefix("/api/v1"), query, json.loads(raw) if raw else {})
            if status == 0:  # the connection is lost
                self.close_connection = True
                self.connection.close()
                return
            content = body if isinstance(body, bytes) else _ESCAPED.sub("\ufffd", json.dumps(body, ensure_ascii=False)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return server.date or super().date_time_string(timestamp)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
