"""Looks at a configuration before a night does: is every lake readable, is every storage safe, is
what the books say whole.

Reads lakes and storages and changes neither. It writes only probes, which it removes at once: one
in the state, and canaries below the collector's own prefix of storages of mode `apply`. Decides
nothing, and needs no Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.findings import FAIL, OK, WARN, Finding, run_check
from gc_assets.core.units import format_duration
from gc_assets.engine.progress import set_activity, track
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import FrozenRefs
from gc_assets.stages.read import doctor_lakes as lakes
from gc_assets.stages.read import doctor_records as books
from gc_assets.stores.store import examine_state

# A subject, what is checked of it, and how.
Check = tuple[str, str, Callable[[], Iterator[Finding]]]


def doctor(context: RunContext) -> Iterator[Finding]:
    """Yields every finding as it is made.

    What a check cannot look at becomes its finding, not an error.
    """
    yield from _environment(context)
    checks = list(_checks(context))
    for subject, check, look in track(checks, "checks", len(checks)):
        set_activity(f"{subject}: {check}")
        yield from run_check(subject, check, look)


def _checks(context: RunContext) -> Iterator[Check]:
    frozen: dict[str, FrozenRefs] = {}
    yield "state", "clock", lambda: _clock(context)
    yield "state", "conditions", lambda: _conditions(context)
    yield "state", "index", lambda: _indexed(context)
    yield "state", "lifecycle", lambda: examine_state(f"{context.config.state.rstrip('/')}/", context.config.places())
    yield "state", "leftovers", lambda: books.leftovers(context)
    for lake in context.config.lakes:
        yield lake.name, "readable", partial(_lake, context, lake.name, frozen)
        yield lake.name, "visible", partial(_visible, context, lake.name, frozen)
    yield "storages", "overlaps", lambda: _overlaps(context)
    for storage in context.config.storages:
        yield storage.name, "store", lambda item=storage: context.store(item.name).examine(item, context.clock.now())
        yield storage.name, "inventory", lambda item=storage: context.lister(item.name).examine(item, context.clock.now())
        yield storage.name, "claims", partial(lakes.places, context, storage.name, frozen)
        yield storage.name, "lakes", partial(books.lakes_present, context, storage, frozen)
        yield storage.name, "night", partial(books.last_night, context, storage, frozen)
        yield storage.name, "plans", partial(books.sealed_plans, context, storage)
        yield storage.name, "interrupted", partial(books.interrupted, context, storage)
        yield storage.name, "ledger", partial(books.ledger, context, storage)


def _lake(context: RunContext, name: str, frozen: dict[str, FrozenRefs]) -> Iterator[Finding]:
    frozen[name] = context.lake(name).freeze(context.clock.now())
    yield from lakes.readable(context, name, frozen[name])


def _visible(context: RunContext, name: str, frozen: dict[str, FrozenRefs]) -> Iterator[Finding]:
    if name in frozen:  # what cannot be read is a finding already
        yield from lakes.visible(context, name, frozen[name])


def _environment(context: RunContext) -> Iterator[Finding]:
    for text in context.unsafe:
        yield Finding("environment", "limits", WARN, text, "Unset the variable for nights that count.")


def _clock(context: RunContext) -> Iterator[Finding]:
    """Compares the state's own time with ours, by a file that is written and removed."""
    files = context.state.files
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


def _conditions(context: RunContext) -> Iterator[Finding]:
    """Tries whether of several writers one succeeds. Everything that is published rests on it."""
    yield Finding("state", "conditions", OK, context.state.files.check_conditions())


def _indexed(context: RunContext) -> Iterator[Finding]:
    """Checks that every run with a receipt is in its index.

    A log that is in no index lets its files be forgotten.
    """
    wrong = context.state.find_index_errors()
    for sentence in wrong:
        yield Finding("state", "index", FAIL, sentence, "gc-assets doctor --repair")
    if not wrong:
        yield Finding("state", "index", OK, "every run with a receipt is in the index of its asset")


def _overlaps(context: RunContext) -> Iterator[Finding]:
    pairs = context.overlapping_storages()
    if pairs:
        found = "these are one place, or one holds the other: " + ", ".join(f"{a} and {b}" for a, b in pairs)
        yield Finding("storages", "overlaps", FAIL, found, "Make one storage of them; leave a directory that is mounted twice one name.")
    else:
        yield Finding("storages", "overlaps", OK, "no storage contains another, and no directory of one has a second name by a mount")
