"""Execute commands on repositories with icechunk 2.x. Run by an interpreter of its own, so it imports nothing of this project.

Each line of standard input is a request `{"target": ..., "steps": [[operation, arguments], ...]}`, and each line of standard output
the results of its steps. `target` is a directory, or a dictionary with the arguments of `icechunk.s3_storage`. A step that fails ends
the request, unless its arguments contain `"may_fail": true`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import icechunk
from zarr.core.buffer import default_buffer_prototype

FAR_FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOLDERS = ("snapshots", "manifests", "transactions", "chunks", "overwritten")
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
LOOP = asyncio.new_event_loop()
PROTOTYPE = default_buffer_prototype()


def buffer(raw: bytes) -> Any:
    return PROTOTYPE.buffer.from_bytes(raw)


def array_metadata(length: int) -> bytes:
    """Return the metadata of an array of integers, one per chunk."""
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "attributes": {},
        "shape": [length],
        "data_type": "int64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": -1,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "storage_transformers": [],
    }
    return json.dumps(metadata).encode()


def chunk_of(value: int, size: int = 8) -> bytes:
    return value.to_bytes(8, "little", signed=True).ljust(size, b"\0")


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def time_at(value: Any) -> datetime:
    return FAR_FUTURE if value is None else EPOCH + timedelta(microseconds=value)


def configuration(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a configuration of the library and the access to its containers.

    Args:
        settings: `inline_below_bytes`, `split` (chunks in a manifest), `compress_locations_from` (number of virtual chunks),
            `updates_in_a_file`, and `containers` ([name or None, url_prefix, directory or None for a bucket]).
    """
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=settings.get("inline_below_bytes", 0))
    if "updates_in_a_file" in settings:
        config.num_updates_per_repo_info_file = settings["updates_in_a_file"]
    manifest = {}
    if settings.get("split"):
        sizes = {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Any(): settings["split"]}}
        manifest["splitting"] = icechunk.ManifestSplittingConfig.from_dict(sizes)
    if "compress_locations_from" in settings:
        compression = icechunk.ManifestVirtualChunkLocationCompressionConfig(settings["compress_locations_from"])
        manifest["virtual_chunk_location_compression"] = compression
    if manifest:
        config.manifest = icechunk.ManifestConfig(**manifest)
    access = {}
    for name, prefix, directory in settings.get("containers", ()):
        store = icechunk.s3_store(region="us-east-1") if directory is None else icechunk.local_filesystem_store(directory)
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, **({"name": name} if name else {})))
        access[prefix] = icechunk.Credentials.S3(icechunk.s3_anonymous_credentials()) if directory is None else local_access()
    return config, access


def local_access() -> Any:
    """Return the access to a local directory. The first releases of 2.0 need no object for it."""
    return getattr(icechunk.credentials, "LocalFileSystemAccess", None)


class Target:
    """A repository with its open sessions.

    Attributes:
        known: The files of a local repository that earlier steps wrote.
    """

    def __init__(self, target: str | dict[str, Any]) -> None:
        self.path = Path(target) if isinstance(target, str) else None
        self.storage = icechunk.local_filesystem_storage(target) if isinstance(target, str) else icechunk.s3_storage(**target)
        self.access: dict[str, Any] = {}
        self.sessions: dict[str, Any] = {}
        self.known: set[str] = set()
        self._repo: Any = None

    @property
    def repo(self) -> Any:
        if self._repo is None:
            self.open({})
        return self._repo

    # Repositories.

    def create(self, *, spec_version: int = 2, **settings: Any) -> str:
        config, self.access = configuration(settings)
        self._repo = icechunk.Repository.create(
            self.storage, config=config, spec_version=spec_version, authorize_virtual_chunk_access=self.access or None
        )
        if settings:
            self._repo.save_config()
        return self._repo.lookup_branch("main")

    def open(self, settings: dict[str, Any] | None = None) -> None:
        """Open the repository again, without cached objects. `settings` replace its stored configuration in this process only."""
        config = None
        if settings:
            config, self.access = configuration(settings)
        self._repo = icechunk.Repository.open(self.storage, config=config, authorize_virtual_chunk_access=self.access or None)

    def configure(self, **settings: Any) -> None:
        """Store another configuration."""
        self.open(settings)
        self._repo.save_config()

    def upgrade(self, *, delete_v1_files: bool = True) -> None:
        self._repo = icechunk.upgrade_icechunk_repository(self.repo, dry_run=False, delete_unused_v1_files=delete_v1_files)

    def set_status(self, *, availability: str = "online", reason: str | None = None) -> None:
        self.repo.set_status(icechunk.RepoStatus(getattr(icechunk.RepoAvailability, availability), None, reason))

    def set_feature_flag(self, *, name: str, setting: bool | None) -> None:
        self.repo.set_feature_flag(name, setting)

    def set_metadata(self, **metadata: Any) -> None:
        self.repo.set_metadata(metadata)

    # Sessions.

    def start_session(self, *, branch: str = "main", name: str = "session", rearrange: bool = False) -> None:
        self.sessions[name] = self.repo.rearrange_session(branch) if rearrange else self.repo.writable_session(branch)

    def write(self, *, writes: Iterable[dict[str, Any]], name: str = "session") -> None:
        session = self.sessions[name]
        for write in writes:
            if "move" in write:
                session.move(*write["move"])
            else:
                LOOP.run_until_complete(apply_write(session.store, **write))

    def finish(self, *, name: str = "session", how: str = "commit", message: str = "", **more: Any) -> str:
        """End a session by `commit`, `amend` or `flush`, and return its snapshot."""
        session = self.sessions.pop(name)
        return getattr(session, how)(message or how, **more)

    def rebase_and_finish(self, *, name: str = "session", message: str = "") -> str:
        session = self.sessions.pop(name)
        session.rebase(icechunk.BasicConflictSolver(on_chunk_conflict=icechunk.VersionSelection.UseOurs))
        return session.commit(message or "rebased")

    def commit(
        self, *, branch: str = "main", writes: Sequence[dict[str, Any]] = (), how: str = "commit", message: str = "", **more: Any
    ) -> str:
        self.start_session(branch=branch, name="", rearrange=any("move" in write for write in writes))
        self.write(writes=writes, name="")
        return self.finish(name="", how=how, message=message, **more)

    def rewrite_manifests(self, *, branch: str = "main", how: str = "new_commit", message: str = "rewrite") -> str:
        return self.repo.rewrite_manifests(message, branch=branch, commit_method=how)

    # Refs.

    def create_branch(self, *, name: str, snapshot: str) -> None:
        self.repo.create_branch(name, snapshot)

    def create_tag(self, *, name: str, snapshot: str) -> None:
        self.repo.create_tag(name, snapshot)

    def reset_branch(self, *, name: str, snapshot: str) -> None:
        self.repo.reset_branch(name, snapshot)

    def delete_branch(self, *, name: str) -> None:
        self.repo.delete_branch(name)

    def delete_tag(self, *, name: str) -> None:
        self.repo.delete_tag(name)

    def refs(self) -> dict[str, dict[str, str]]:
        branches, tags = sorted(self.repo.list_branches()), sorted(self.repo.list_tags())
        return {
            "branches": {name: self.repo.lookup_branch(name) for name in branches},
            "tags": {name: self.repo.lookup_tag(name) for name in tags},
        }

    # Maintenance.

    def expire(self, *, older_than: Any = None, delete_branches: bool = False, delete_tags: bool = False) -> list[str]:
        """Expire snapshots before a time, or before that of a snapshot. Return the released snapshots."""
        at = self.repo.lookup_snapshot(older_than).written_at if isinstance(older_than, str) else time_at(older_than)
        return sorted(self.repo.expire_snapshots(at, delete_expired_branches=delete_branches, delete_expired_tags=delete_tags))

    def garbage_collect(self, *, older_than: int | None = None, dry_run: bool = False) -> dict[str, int]:
        summary = self.repo.garbage_collect(time_at(older_than), dry_run=dry_run)
        return {kind: getattr(summary, f"{kind}_deleted") for kind in ("snapshots", "manifests", "chunks", "transaction_logs")}

    # Reports.

    def ancestry(self, *, snapshot: str) -> list[list[Any]]:
        """Return id, parent, time in microseconds and message of each snapshot, from the newest."""
        return [[info.id, info.parent_id, microseconds(info.written_at), info.message] for info in self.repo.ancestry(snapshot_id=snapshot)]

    def ancestries(self) -> dict[str, list[list[Any]]]:
        refs = self.refs()
        heads = {f"{kind} {name}": head for kind, key in (("branch", "branches"), ("tag", "tags")) for name, head in refs[key].items()}
        return {ref: self.ancestry(snapshot=head) for ref, head in heads.items()}

    def repo_info(self) -> dict[str, Any]:
        return json.loads(inspector(self.repo).inspect_repo_info(pretty=False))

    def ops_log(self) -> list[list[Any]]:
        return [[type(update.kind).__name__, microseconds(update.updated_at), update.backup_path] for update in self.repo.ops_log()]

    def diff(self, *, before: str, after: str) -> dict[str, Any]:
        """Return new and deleted nodes, and the number of changed chunks by array."""
        found = self.repo.diff(from_snapshot_id=before, to_snapshot_id=after)
        names = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays")
        chunks = {path: len(indexes) for path, indexes in sorted(found.updated_chunks.items())}
        return {name: sorted(getattr(found, name)) for name in names} | {"updated_chunks": chunks}

    def report(self) -> dict[str, Any]:
        """Return refs, snapshots, ancestries, manifests and the garbage that a collection of all ages would find.

        `garbage` is None if the library refuses to collect.
        """
        info, inspect = self.repo_info(), inspector(self.repo)
        snapshots, manifests = {}, {}
        for snapshot in (entry["id"] for entry in info["snapshots"]):
            listed = sorted([item.id, item.size_bytes, item.num_chunk_refs] for item in self.repo.list_manifest_files(snapshot))
            locations = self.repo.readonly_session(snapshot_id=snapshot).all_virtual_chunk_locations()
            snapshots[snapshot] = {"manifests": listed, "virtual_locations": sorted(set(locations))}
            for manifest in {item[0] for item in listed} - manifests.keys():
                found = json.loads(inspect.inspect_manifest(manifest, pretty=False))
                manifests[manifest] = {kind: found[f"total_{kind}"] for kind in ("inline", "native", "virtual")}
        try:
            garbage = self.garbage_collect(dry_run=True)
        except icechunk.IcechunkError:
            garbage = None
        return {
            "repo": info,
            "ancestry": self.ancestries(),
            "snapshots": snapshots,
            "manifests": manifests,
            "garbage": garbage,
        }

    def contents(self, *, snapshot: str | None = None) -> dict[str, Any]:
        """Return the integer in each chunk of a snapshot, or of all snapshots that refs reach.

        A chunk that cannot be read has the text of the error.
        """
        if snapshot is not None:
            return LOOP.run_until_complete(read_chunks(self.repo.readonly_session(snapshot_id=snapshot).store))
        reached = {entry[0] for ancestry in self.ancestries().values() for entry in ancestry}
        return {item: self.contents(snapshot=item) for item in sorted(reached)}

    def new_files(self) -> list[str]:
        """Return the files that were written since the last call."""
        if self.path is None:
            return []
        files = {
            f"{folder}/{entry.name}" for folder in FOLDERS if (self.path / folder).is_dir() for entry in os.scandir(self.path / folder)
        }
        new = sorted(files - self.known)
        self.known = files
        return new


def inspector(repo: Any) -> Any:
    """Return the object whose reports are JSON. Those of `repo` are missing in 2.0, and text for people in 2.3."""
    return repo._repository


async def read_chunks(store: Any) -> dict[str, Any]:
    async def value(key: str) -> Any:
        try:
            found = await store.get(key, PROTOTYPE)
        except Exception as error:  # noqa: BLE001  (it is the result)
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return None if found is None else int.from_bytes(found.to_bytes()[:8], "little", signed=True)

    keys = sorted([key async for key in store.list_prefix("")])
    chunks = [key for key in keys if not key.endswith("zarr.json")]
    return dict(zip(chunks, await asyncio.gather(*map(value, chunks)), strict=True))


async def apply_write(store: Any, **write: Any) -> None:
    """Apply one change.

    It is one of `{"array": path, "values": [...], "bytes": n}` (a new array with one chunk per value that is not None), `{"set": path,
    "index": i, "value": v, "bytes": n}`, `{"unset": path, "index": i}`, `{"virtual": path, "index": i, "location": uri, "offset": n,
    "length": n}`, `{"resize": path, "length": n}`, `{"delete": path}` and `{"group": path}`.
    """
    if "array" in write:
        await create_array(store, write["array"], write["values"], write.get("bytes", 8))
    elif "set" in write:
        await store.set(f"{write['set']}/c/{write['index']}", buffer(chunk_of(write["value"], write.get("bytes", 8))))
    elif "unset" in write:
        await store.delete(f"{write['unset']}/c/{write['index']}")
    elif "virtual" in write:
        key, place = f"{write['virtual']}/c/{write['index']}", {"offset": write.get("offset", 0), "length": write.get("length", 8)}
        await store.set_virtual_ref_async(key, write["location"], validate_container=False, **place)
    elif "resize" in write:
        await store.set(f"{write['resize']}/zarr.json", buffer(array_metadata(write["length"])))
    elif "delete" in write:
        await store.delete_dir(write["delete"])
    else:
        await store.set(f"{write['group']}/zarr.json".lstrip("/"), buffer(json.dumps(GROUP).encode()))


async def create_array(store: Any, path: str, values: list[int | None], size: int) -> None:
    for parent in ("", *[str(parent) for parent in reversed(Path(path).parents) if str(parent) != "."]):
        key = f"{parent}/zarr.json".lstrip("/")
        if not await store.exists(key):
            await store.set(key, buffer(json.dumps(GROUP).encode()))
    if await store.exists(f"{path}/zarr.json"):
        await store.delete_dir(path)
    await store.set(f"{path}/zarr.json", buffer(array_metadata(len(values))))
    chunks = ((index, value) for index, value in enumerate(values) if value is not None)
    await asyncio.gather(*(store.set(f"{path}/c/{index}", buffer(chunk_of(value, size))) for index, value in chunks))


def execute(targets: dict[str, Target], target: Any, steps: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    key = json.dumps(target, sort_keys=True)
    results: list[Any] = []
    for operation, arguments in steps:
        if operation == "forget":
            targets.pop(key, None)
            results.append(None)
            continue
        method: Callable[..., Any] = getattr(targets.setdefault(key, Target(target)), operation)
        may_fail = arguments.pop("may_fail", False)
        try:
            results.append(method(**arguments))
        except BaseException as error:  # a panic of Rust is no Exception
            if not may_fail:
                raise
            results.append({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    return results


def main() -> None:
    # Hides the warning about concurrent commits on a local disk. Only one process writes here.
    icechunk.set_logs_filter("error")
    targets: dict[str, Target] = {}
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"results": execute(targets, request["target"], request["steps"])}
        except BaseException as error:  # noqa: BLE001  (it is the reply)
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
