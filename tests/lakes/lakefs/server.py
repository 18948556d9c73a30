"""Run a real lakeFS server on loopback, with its local block store and key-value store.

`python -m tests.lakes.lakefs.server` builds it with Go, in a few minutes. With
`GC_ASSETS_TEST_LAKEFS=required`, tests fail instead of being skipped. With `none`, they are skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.debian import Unavailable, run_command, run_fetch, skip_or_fail
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET
from tests.ports import free_port
from tests.s3.daemons import daemons
from tests.s3.servers import REGION, S3Server

# The version of the recordings in tests/data/lakefs.
VERSION = "v1.84.0"
MODULE = f"github.com/treeverse/lakefs@{VERSION}"
WITHOUT = "or run the suite without it: GC_ASSETS_TEST_LAKEFS=none"
PAGE = 1000
TASK_SECONDS = 60


class Repository:
    """A repository of a server, as a user of its REST API writes it."""

    def __init__(self, server: LakeFs, name: str, namespace: str) -> None:
        self.name, self.uri, self.folder = name, server.uri, server.blocks / name
        self._api = httpx.Client(base_url=f"{self.uri}/api/v1/", auth=(KEY_ID, SECRET), trust_env=False, timeout=60)
        creation = {"name": name, "storage_namespace": namespace, "default_branch": "main"}
        self.request("POST", "repositories", json=creation)

    def request(self, method: str, path: str, **content: Any) -> Any:
        """Send a request. Return the JSON of the response, or its bytes. Raise an error if the server refuses it."""
        response = self._api.request(method, path, **content)
        if response.is_error:
            raise RuntimeError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json() if response.headers.get("Content-Type", "").startswith("application/json") else response.content

    def on(self, path: str) -> str:
        return f"repositories/{self.name}/{path}"

    def upload(self, branch: str, path: str, content: bytes) -> None:
        self.request("POST", self.on(f"branches/{branch}/objects"), params={"path": path}, files={"content": content})

    def delete(self, branch: str, path: str) -> None:
        self.request("DELETE", self.on(f"branches/{branch}/objects"), params={"path": path})

    def reset(self, branch: str) -> None:
        self.request("PUT", self.on(f"branches/{branch}"), json={"type": "reset"})

    def commit(self, branch: str, at: datetime | None = None) -> str:
        """Commit the staged objects of a branch, with a date of now or in the past. Return the id."""
        date = {} if at is None else {"date": int(at.timestamp())}
        creation = {"message": f"on {branch}", "allow_empty": True, **date}
        return self.request("POST", self.on(f"branches/{branch}/commits"), json=creation)["id"]

    def branch(self, name: str, source: str = "main") -> None:
        self.request("POST", self.on("branches"), json={"name": name, "source": source})

    def drop(self, branch: str) -> None:
        self.request("DELETE", self.on(f"branches/{branch}"))

    def tag(self, name: str, ref: str) -> None:
        self.request("POST", self.on("tags"), json={"id": name, "ref": ref})

    def merge(self, source: str, target: str) -> str:
        """Merge a branch into another one. Return the id of the commit."""
        body = {"strategy": "source-wins", "allow_empty": True, "force": True}
        return self.request("POST", self.on(f"refs/{source}/merge/{target}"), json=body)["reference"]

    def rules(self, default: int, **branches: int) -> None:
        rows = [{"branch_id": name, "retention_days": days} for name, days in branches.items()]
        self.request("PUT", self.on("settings/gc_rules"), json={"default_retention_days": default, "branches": rows})

    def remove(self) -> None:
        """Delete the repository. The server keeps its files."""
        self.request("DELETE", f"repositories/{self.name}", params={"force": True})

    def wait_until_missing(self) -> None:
        """Wait until the server has no entry of the removed repository in its cache."""
        deadline = time.monotonic() + TASK_SECONDS
        while self._api.get(f"repositories/{self.name}").status_code != httpx.codes.NOT_FOUND:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server still finds {self.name} after {TASK_SECONDS} s")
            time.sleep(0.1)

    def list_pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the results of all pages of a list."""
        after: str | None = ""
        while after is not None:
            page = self.request("GET", self.on(path), params={**params, "amount": PAGE, "after": after})
            yield from page["results"]
            after = page["pagination"]["next_offset"] if page["pagination"]["has_more"] else None

    def refs(self, kind: str) -> dict[str, str]:
        """Map the branches or tags (`kind`) to their commits."""
        return {row["id"]: row["commit_id"] for row in self.list_pages(kind)}

    def log(self, ref: str) -> list[dict[str, Any]]:
        return list(self.list_pages(f"refs/{ref}/commits"))

    def keys(self, ref: str) -> dict[str, str]:
        """Map the paths that a reader of a ref sees, staged objects too, to keys below the namespace."""
        rows = self.list_pages(f"refs/{ref}/objects/ls")
        return {row["path"]: row["physical_address"].rpartition(f"/{self.name}/")[2] for row in rows}

    def contents(self, ref: str) -> dict[str, bytes]:
        """Read all objects of a ref through the server."""
        return {path: self.request("GET", self.on(f"refs/{ref}/objects"), params={"path": path}) for path in self.keys(ref)}

    def files(self) -> set[str]:
        """Return the keys of the objects on the disk."""
        return {str(path.relative_to(self.folder)) for path in (self.folder / "data").rglob("*") if path.is_file()}

    def list_active_commits(self) -> set[str]:
        """Return the commits that the server's own garbage collection keeps (`prepare_commits`)."""
        task = self.request("POST", self.on("gc/prepare_commits/async"))["id"]
        deadline = time.monotonic() + TASK_SECONDS
        while not (status := self.request("GET", self.on("gc/prepare_commits/status"), params={"id": task}))["completed"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"prepare_commits of {self.name} takes more than {TASK_SECONDS} s")
            time.sleep(0.05)
        table = Path(status["result"]["gc_commits_location"].rpartition(f"{self.name}/")[2])
        rows = (self.folder / table).read_text().splitlines()[1:]
        return {commit for commit, _, expired in (row.split(",")[:3] for row in rows) if expired == "false"}


@dataclass(frozen=True)
class LakeFs:
    """A running server. `blocks` is the folder of its local block store."""

    uri: str
    blocks: Path

    def create(self, name: str, namespace: str | None = None) -> Repository:
        """Create a repository, in the local block store unless it has a namespace in a bucket."""
        return Repository(self, name, namespace or f"local://{name}")


@contextmanager
def running(blocks: Path, folder: Path, bucket: S3Server | None = None) -> Iterator[LakeFs]:
    """Run a server for a test. Skip or fail the test if this machine cannot run one.

    Args:
        blocks: Folder of its block store.
        folder: Folder for its own files.
        bucket: The S3 server that is its block store instead.
    """
    if os.environ.get("GC_ASSETS_TEST_LAKEFS") == "none":
        pytest.skip("GC_ASSETS_TEST_LAKEFS=none: the lakeFS server is disabled")
    program = _program()
    if not program.is_file():
        skip_or_fail(f"there is no lakeFS server: python -m tests.lakes.lakefs.server, {WITHOUT}", "GC_ASSETS_TEST_LAKEFS")
    for path in (blocks, folder):
        path.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "DATABASE_TYPE": "local",
        "DATABASE_LOCAL_PATH": str(folder / "kv"),
        "AUTH_ENCRYPT_SECRET_KEY": "only for tests",
        "LISTEN_ADDRESS": address,
        "INSTALLATION_USER_NAME": "ada",
        "INSTALLATION_ACCESS_KEY_ID": KEY_ID,
        "INSTALLATION_SECRET_ACCESS_KEY": SECRET,
        # The server must not contact other machines.
        "STATS_ENABLED": "false",
        "SECURITY_CHECK_LATEST_VERSION": "false",
        "COMMITTED_LOCAL_CACHE_DIR": str(folder / "cache"),
        "COMMITTED_LOCAL_CACHE_SIZE_BYTES": str(64 << 20),
        **({"BLOCKSTORE_TYPE": "local", "BLOCKSTORE_LOCAL_PATH": str(blocks)} if bucket is None else _build_s3_settings(bucket)),
    }
    with daemons(folder / "log", {f"LAKEFS_{name}": value for name, value in settings.items()}) as group:
        # The server creates a folder `gc.db` in its working directory.
        group.start("env", "--chdir", str(folder), str(program), "run")
        group.wait(lambda: _answers(f"http://{address}/_health"))
        yield LakeFs(f"http://{address}", blocks)


def _build_s3_settings(server: S3Server) -> dict[str, str]:
    return {
        "BLOCKSTORE_TYPE": "s3",
        "BLOCKSTORE_S3_ENDPOINT": server.endpoint,
        "BLOCKSTORE_S3_REGION": REGION,
        "BLOCKSTORE_S3_FORCE_PATH_STYLE": "true",
        "BLOCKSTORE_S3_DISCOVER_BUCKET_REGION": "false",
        "BLOCKSTORE_S3_CREDENTIALS_ACCESS_KEY_ID": server.access_key,
        "BLOCKSTORE_S3_CREDENTIALS_SECRET_ACCESS_KEY": server.secret_key,
    }


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).is_success
    except httpx.TransportError:
        return False


def _program() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gc-assets" / f"lakefs-{VERSION}" / "lakefs"


def fetch() -> None:
    """Build the server if it is missing.

    `go install` refuses this module because it replaces another one. The module contains all
    generated sources, except the page.

    Raises:
        Unavailable: This machine cannot build it.
    """
    program, go = _program(), shutil.which("go")
    if program.is_file():
        return
    if go is None:
        raise Unavailable(f"the lakeFS server is missing, and there is no go to build it; {WITHOUT}")
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may build it now
        if program.is_file():
            return
        downloaded = run_command([go, "mod", "download", "-json", MODULE])
        if downloaded.returncode:
            raise Unavailable(f"go mod download {MODULE} failed: {downloaded.stdout.strip()[-2000:]}; {WITHOUT}")
        folder = json.loads(downloaded.stdout[downloaded.stdout.index("{") :])["Dir"]
        building = program.with_name("building")
        built = run_command([go, "build", "-C", folder, "-o", str(building), "./cmd/lakefs"])
        if built.returncode:
            raise Unavailable(f"go build of {MODULE} failed: {built.stdout.strip()[-2000:]}; {WITHOUT}")
        building.replace(program)


if __name__ == "__main__":
    run_fetch(fetch)
