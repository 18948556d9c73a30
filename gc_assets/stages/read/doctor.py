"""Looks at a configuration before a night does: is every lake readable, is every storage safe.

Reads lakes and storages and changes neither. It writes only probes, which it removes at once: one
in the state, and canaries below the collector's own prefix of storages of mode `apply`. Decides
nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.findings import FAIL, OK, WARN, Finding, looked
from gc_assets.core.units import format_duration
from gc_assets.lakes.protocol import growing
from gc_assets.stages.books.plans import unfinished
from gc_assets.stages.mark.commit_graph import commit_rows
from gc_assets.stages.night import Night
from gc_assets.stores.store import examine_state


def doctor(night: Night) -> Iterator[Finding]:
    """Yields every finding as it is made.

    What a check cannot look at becomes its finding, not an error.
    """
    yield from _environment(night)
    yield from looked("state", "clock", lambda: _clock(night))
    yield from looked("state", "conditions", lambda: _conditions(night))
    yield from looked("state", "index", lambda: _indexed(night))
    yield from looked("state", "lifecycle", lambda: examine_state(f"{night.config.state.rstrip('/')}/", night.config.places()))
    for lake in night.config.lakes:
        yield from looked(lake.name, "readable", lambda name=lake.name: _lake(night, name))
        yield from looked(lake.name, "visible", lambda name=lake.name: _visible(night, name))
    yield _overlaps(night)
    for storage in night.config.storages:
        yield from looked(storage.name, "store", lambda item=storage: night.store(item.name).examine(item, night.clock.now()))
        yield from looked(storage.name, "inventory", lambda item=storage: night.lister(item.name).examine(item, night.clock.now()))
        yield from looked(storage.name, "interrupted", lambda item=storage: _interrupted(item, night))


def _environment(night: Night) -> Iterator[Finding]:
    for text in night.unsafe:
        yield Finding("environment", "limits", WARN, text, "Unset the variable for nights that count.")


def _clock(night: Night) -> Iterator[Finding]:
    """Compares the state's own time with ours, by a file that is written and removed."""
    files = night.state.files
    name = f".doctor-{uuid.uuid4().hex}"
    files.replace(name, b"probe")
    try:
        ours, theirs = datetime.now(UTC), files.modified_at(name)
    finally:
        files.delete(name)
    skew = abs(theirs - ours)
    found = f"{files.root} is writable, its clock differs by {skew.total_seconds():.1f} s"
    if skew <= MAX_SKEW:
        yield Finding("state", "clock", OK, found)
    else:
        limit = format_duration(MAX_SKEW)
        yield Finding("state", "clock", FAIL, found, f"Set the clocks: up to {limit} is harmless, more eats into the grace period.")


def _conditions(night: Night) -> Iterator[Finding]:
    """Tries whether of several writers one succeeds. Everything that is published rests on it."""
    yield Finding("state", "conditions", OK, night.state.files.prove())


def _indexed(night: Night) -> Iterator[Finding]:
    """Checks that every run with a receipt is in its index.

    A log that is in no index lets its files be forgotten.
    """
    wrong = night.state.unindexed()
    for sentence in wrong:
        yield Finding("state", "index", FAIL, sentence, "gc-assets doctor --repair")
    if not wrong:
        yield Finding("state", "index", OK, "every run with a receipt is in the index of its asset")


def _lake(night: Night, name: str) -> Iterator[Finding]:
    refs = night.lake(name).freeze(night.clock.now())
    yield Finding(name, "readable", OK, f"{len(refs.refs):,} refs, {len(refs.claims):,} claimed prefixes")
    for item in refs.unread:
        yield Finding(name, "sick", FAIL, item.why, "Nothing below its claims is touched and nothing is purged until it can be read.")
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
    """Checks that a lake shows us all of its history, where it can tell.

    Reads the history whole, as a first night does.
    """
    lake = night.lake(name)
    if growing(lake) is None:
        return
    refs = lake.freeze(night.clock.now())
    commits = [commit for source in refs.sources for commit in lake.commits(source)]
    if commits:
        graph = pa.Table.from_batches([commit_rows(commits, night.resolver())])
        lake.retain(refs, graph, night.clock.now(), night.clock.now())
    found = f"{len(commits):,} commits: no log is shorter, and no head's state other, than the server says"
    yield Finding(name, "visible", OK, found)


def _overlaps(night: Night) -> Finding:
    pairs = night.overlapping_storages()
    if pairs:
        found = "these are one place, or one holds the other: " + ", ".join(f"{a} and {b}" for a, b in pairs)
        return Finding("storages", "overlaps", FAIL, found, "Make one storage of them; leave a directory that is mounted twice one name.")
    return Finding("storages", "overlaps", OK, "no storage contains another, and no directory of one has a second name by a mount")


def _interrupted(storage: StorageConfig, night: Night) -> Iterator[Finding]:
    plans = unfinished(night.state, storage.name)
    if plans:
        names = ", ".join(plan[:12] for plan in plans[:3])
        yield Finding(
            storage.name, "interrupted", FAIL, f"{len(plans):,} plans began and did not finish: {names}", f"gc-assets apply {plans[0][:12]}"
        )
    else:
        yield Finding(storage.name, "interrupted", OK, "no plan is half applied")
