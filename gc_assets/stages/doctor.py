"""Looks at a configuration before a night does: is every lake readable, is every storage safe to sweep and to change.

Reads lakes and storages and changes neither; the one file it writes is a probe in the state, removed at once. Decides nothing.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from gc_assets.config import StorageConfig
from gc_assets.core.errors import GcError
from gc_assets.core.files import Files
from gc_assets.core.paths import overlapping
from gc_assets.core.units import format_duration
from gc_assets.lakes.protocol import GrowingLake
from gc_assets.stages.approvals import unfinished
from gc_assets.stages.commit_graph import commit_rows
from gc_assets.stages.night import Night
from gc_assets.stores.lease import Holder
from gc_assets.stores.local import local_path
from gc_assets.stores.protocol import RESERVED_PREFIX
from gc_assets.stores.quarantine import open_quarantine

Verdict = Literal["ok", "warn", "fail"]
OK: Verdict = "ok"
WARN: Verdict = "warn"
FAIL: Verdict = "fail"
# Far below the 24 h floor of the grace period, far above what a network file system's clock should be off.
MAX_SKEW: Final = timedelta(minutes=5)
# Directories looked at for mount points; a deeper mount is found by the quarantine, which refuses to cross it.
MAX_DIRECTORIES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one subject. `todo` is what to do about it, empty where all is well."""

    subject: str
    check: str
    verdict: Verdict
    found: str
    todo: str = ""


def doctor(night: Night) -> Iterator[Finding]:
    """Every finding, as it is made. What a check cannot look at is its finding, not an error."""
    yield from _environment(night)
    yield from _looked("state", "clock", lambda: _clock(night))
    for lake in night.config.lakes:
        yield from _looked(lake.name, "readable", lambda name=lake.name: _lake(night, name))
        yield from _looked(lake.name, "visible", lambda name=lake.name: _visible(night, name))
    yield _overlaps(night)
    for storage in night.config.storages:
        yield from _looked(storage.name, "listable", lambda item=storage: _listable(item))
        yield from _looked(storage.name, "quarantine", lambda item=storage: _quarantine(item))
        yield from _looked(storage.name, "lease", lambda item=storage: _lease(item, night))
        yield from _looked(storage.name, "interrupted", lambda item=storage: _interrupted(item, night))


def _looked(subject: str, check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except (GcError, OSError) as error:
        yield Finding(subject, check, FAIL, str(error), "Mend this first: no plan can be made, or none applied, until it is.")


def _environment(night: Night) -> Iterator[Finding]:
    for text in night.unsafe:
        yield Finding("environment", "limits", WARN, text, "Unset the variable for nights that count.")


def _clock(night: Night) -> Iterator[Finding]:
    """The state's own time against ours, by a file that is written and removed."""
    files = night.state.files
    name = f".doctor-{uuid.uuid4().hex}"
    files.replace(name, b"probe")
    try:
        ours, theirs = datetime.now(UTC), _written_at(files, name)
    finally:
        files.delete(name)
    skew = abs(theirs - ours)
    found = f"{files.root} is writable, its clock differs by {skew.total_seconds():.1f} s"
    if skew <= MAX_SKEW:
        yield Finding("state", "clock", OK, found)
    else:
        limit = format_duration(MAX_SKEW)
        yield Finding("state", "clock", FAIL, found, f"Set the clocks: up to {limit} is harmless, more eats into the grace period.")


def _written_at(files: Files, name: str) -> datetime:
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(files.uri(name).replace("s3a://", "s3://"))
    return filesystem.get_file_info(path).mtime.astimezone(UTC)


def _lake(night: Night, name: str) -> Iterator[Finding]:
    refs = night.lake(name).freeze(night.clock.now())
    yield Finding(name, "readable", OK, f"{len(refs.refs):,} refs, {len(refs.claims):,} claimed prefixes")
    for note in refs.notes:
        yield Finding(name, "note", WARN, note)
    resolver = night.resolver()
    outside = [claim.address for claim in refs.claims if resolver.resolve_one(claim.address) is None]
    if outside:
        examples = ", ".join(sorted(outside)[:3])
        yield Finding(
            name,
            "storages",
            WARN,
            f"{len(outside):,} claimed prefixes lie in no storage: {examples}",
            "Add their storage to have them swept.",
        )


def _visible(night: Night, name: str) -> Iterator[Finding]:
    """Whether all of a history is shown to us, where a lake can tell: reads it whole, as a first night does."""
    lake = night.lake(name)
    if not isinstance(lake, GrowingLake):
        return
    refs = lake.freeze(night.clock.now())
    commits = [commit for source in refs.sources for commit in lake.commits(source)]
    if commits:
        graph = pa.Table.from_batches([commit_rows(commits, night.resolver())])
        lake.retain(refs, graph, night.clock.now(), night.clock.now())
    found = f"{len(commits):,} commits: no log is shorter, and no head's state other, than the server says"
    yield Finding(name, "visible", OK, found)


def _overlaps(night: Night) -> Finding:
    pairs = overlapping([(storage.name, storage.location) for storage in night.config.storages])
    if pairs:
        return Finding("storages", "overlaps", FAIL, ", ".join(f"{a} contains {b}" for a, b in pairs), "Make one storage of them.")
    return Finding("storages", "overlaps", OK, "no storage contains another")


def _listable(storage: StorageConfig) -> Iterator[Finding]:
    root = Path(local_path(storage.location))
    if not root.is_dir():
        yield Finding(storage.name, "listable", FAIL, f"there is no directory {root}", "Mount it, or mend `location`.")
        return
    with os.scandir(root) as entries:
        count = sum(1 for _ in entries)
    yield Finding(storage.name, "listable", OK, f"{root} has {count:,} entries at its top")


def _quarantine(storage: StorageConfig) -> Iterator[Finding]:
    open_quarantine(storage.quarantine, storage.location, "doctor")
    root = Path(local_path(storage.location))
    if not os.access(root, os.W_OK | os.X_OK):
        verdict: Verdict = FAIL if storage.mode == "apply" else WARN
        yield Finding(storage.name, "quarantine", verdict, f"{root} is not writable for this user", "Plans can be made, and not applied.")
        return
    days = f"{storage.quarantine_days} days"
    if storage.quarantine == "deferred":
        yield Finding(storage.name, "quarantine", OK, f"deferred: nothing moves, purged after {days}; mode {storage.mode}")
        return
    elsewhere = sorted(_other_file_systems(root))
    if elsewhere:
        found = f"{len(elsewhere):,} directories are on another file system than the trash: {', '.join(elsewhere[:3])}"
        yield Finding(storage.name, "quarantine", WARN, found, "Make each mount a storage of its own, or use `quarantine: deferred`.")
    else:
        yield Finding(storage.name, "quarantine", OK, f"trash on the same file system, purged after {days}; mode {storage.mode}")


def _other_file_systems(root: Path) -> Iterator[str]:
    """Directories below the root (and the trash) where another file system begins, of the first `MAX_DIRECTORIES` met."""
    device = root.stat().st_dev
    pending, met = [root], 0
    while pending and met < MAX_DIRECTORIES:
        with os.scandir(pending.pop(0)) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                met += 1
                if entry.stat(follow_symlinks=False).st_dev != device:
                    yield entry.path
                else:
                    pending.append(Path(entry.path))


def _lease(storage: StorageConfig, night: Night) -> Iterator[Finding]:
    path = Path(local_path(storage.location)) / RESERVED_PREFIX / "lease.json"
    try:
        holder = Holder(**json.loads(path.read_bytes()))
        live = holder.is_live(night.clock.now())
    except FileNotFoundError:
        yield Finding(storage.name, "lease", OK, "nobody is changing the storage")
        return
    except (ValueError, TypeError) as error:
        yield Finding(
            storage.name, "lease", FAIL, f"{path} is no lease ({error})", "Make sure that nothing changes the storage, then remove it."
        )
        return
    if live:
        yield Finding(
            storage.name, "lease", WARN, f"held by {holder}", "An apply is running, or one died within the last minutes: wait for it."
        )
    else:
        yield Finding(storage.name, "lease", WARN, f"left behind by {holder}", "The next apply takes it over.")


def _interrupted(storage: StorageConfig, night: Night) -> Iterator[Finding]:
    plans = unfinished(night.state, storage.name)
    if plans:
        names = ", ".join(plan[:12] for plan in plans[:3])
        yield Finding(
            storage.name, "interrupted", FAIL, f"{len(plans):,} plans began and did not finish: {names}", f"gc-assets apply {plans[0][:12]}"
        )
    else:
        yield Finding(storage.name, "interrupted", OK, "no plan is half applied")
