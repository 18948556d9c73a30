"""Why one file is kept, planned or gone, read back from the published tables of a run date. Arrow lookups, no Spark, no lake.

The witness of a live file is walked up: file, containers, commit, and down the history from a ref that reaches the commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import Claims, Owner
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.parts import read_parts
from gc_assets.core.receipts import Published
from gc_assets.schemas import (
    CLAIMS,
    COMMIT_GRAPH,
    DELETION_LOG,
    DELETION_PLAN,
    LAKE_REFS,
    LIVE_FILES,
    ORPHAN_FILES,
    REACHABLE_SNAPSHOTS,
    STORAGE_INVENTORY,
)
from gc_assets.stages.browse import rows_where
from gc_assets.stages.night import Night

CLAIMS_SIDE: Final = "_claims"
EXPIRED_SIDE: Final = "_expired"
DANGLING_SIDE: Final = "_dangling"
EXTERNAL_SIDE: Final = "_external"
# No format nests deeper; a longer walk would be a circle.
MAX_CONTAINERS: Final = 8


@dataclass(frozen=True, slots=True)
class Link:
    """A step of the chain from a ref to the file: `what` it is, its `name`, and what is known of it."""

    what: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the tables of a run date say of one key.

    `verdict` is one of live, planned, refused, expired, waiting, quarantined, restored, purged, young, unowned, external, unknown.
    """

    storage: str | None
    key: str
    verdict: str
    sentence: str
    chain: tuple[Link, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    history: tuple[dict[str, Any], ...] = ()


def is_address(text: str) -> bool:
    """True for a URI or an absolute path; a canonical key is neither."""
    return text.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) is not None


def explain(night: Night, text: str, storage: str | None = None) -> list[Explanation]:
    """One explanation, or with a key and several storages one for each that knows the key (all, if none does).

    Raises `StateError` where the run date has no tables, `UsageError` for a storage there is not.
    """
    if is_address(text):
        place = night.resolver().resolve_one(text)
        if place is None:
            external = [row for lake in night.config.lakes for row in _lake_rows(night, lake.name, "key", text, EXTERNAL_SIDE)]
            why = "no configured storage holds this address, so it is never swept"
            if external:
                why += f"; lake {external[0]['lake']} needs it"
            return [Explanation(None, text, "external", why + ".")]
        if storage not in {None, place[0]}:
            raise UsageError(f"{text} lies in storage {place[0]}, not in {storage}")
        return [_explain(night, *place)]
    names = [item.name for item in night.config.storages] if storage is None else [night.storage(storage).name]
    found = [_explain(night, name, text) for name in names]
    return [item for item in found if item.verdict != "unknown"] or found


def _explain(night: Night, storage: str, key: str) -> Explanation:
    published = [table for lake in night.config.lakes if (table := night.state.current(lake.name, LIVE_FILES.name, night.run_date))]
    if not published:
        raise StateError(f"there is nothing to explain by for {night.run_date}; run `gc-assets run --run-date {night.run_date}` first")
    history = tuple(_history(night, storage, key))
    facts = _facts(night, storage, key)
    for lake in night.config.lakes:
        for row in _lake_rows(night, lake.name, "key", key):
            if row["storage"] == storage:
                chain = tuple(_chain(night, lake.name, row))
                sentence = f"It is live: {_because(chain)}."
                last = _last_act(facts, history)
                if last is not None and last["phase"] == "quarantine":
                    sentence += f" But it {_done(storage, key, last)[1].removeprefix('It ')}"
                return Explanation(storage, key, "live", sentence, chain, facts, history)
    verdict, sentence = _not_live(night, storage, key, facts, history)
    chain = _last_chain(night, storage, key)
    return Explanation(storage, key, verdict, sentence, chain, facts, history)


def _because(chain: tuple[Link, ...]) -> str:
    first = chain[0]
    return f"{first.what} {first.name} needs it" + (f" ({first.detail})" if first.detail else "")


def _not_live(night: Night, storage: str, key: str, facts: dict[str, Any], history: tuple[dict[str, Any], ...]) -> tuple[str, str]:
    plan, orphan, listed = facts.get("plan"), facts.get("orphan"), facts.get("inventory")
    last = _last_act(facts, history)
    if last is not None:
        return _done(storage, key, last)
    if plan is not None:
        refused = facts["plan_refused_by"]
        sentence = f"No live commit needs it ({plan['reason']}): plan {facts['plan_id'][:12]} would {plan['action']} it."
        return ("refused", f"{sentence} The plan is refused by {', '.join(refused)}.") if refused else ("planned", sentence)
    if orphan is not None and orphan["reason"] == "expired":
        commit = orphan["last_commit_id"]
        return "expired", f"Only expired history needs it, last commit {commit}: held out of the plan until that history is expired."
    if orphan is not None:
        return "waiting", f"It is garbage ({orphan['reason']}) and in no plan of this date: it is quarantined already, or no plan was made."
    if listed is None:
        return "unknown", f"Storage {storage} had no such object when it was listed for {night.run_date}, and no lake names it."
    claim = facts.get("claimed_by")
    if claim is None:
        return "unowned", "No lake claims the place where it lies, so it is counted and left alone."
    cutoff = facts.get("grace_cutoff")
    if cutoff is not None and listed["last_modified"] >= cutoff:
        return (
            "young",
            f"No live commit needs it, but it is younger than the grace period (last modified {listed['last_modified'].isoformat()}).",
        )
    return "unknown", f"Lake {claim} claims its place and no table of this date says more; run the date again to the end."


def _last_act(facts: dict[str, Any], history: tuple[dict[str, Any], ...]) -> dict[str, Any] | None:
    """The last thing that was done to the key, unless the storage was listed since and the listing shows it."""
    last = next((row for row in reversed(history) if row["outcome"] == "done" or row["phase"] == "purge"), None)
    seen_since = facts.get("inventory") is not None and last is not None and last["at"] < facts["listed_at"]
    return None if seen_since else last


def _done(storage: str, key: str, act: dict[str, Any]) -> tuple[str, str]:
    when, by = act["at"].isoformat(), act["plan_id"][:12]
    if act["phase"] == "purge":
        return "purged", f"It was purged at {when} by plan {by}."
    if act["phase"] == "restore":
        return "restored", f"It was put back at {when}; the next night judges it afresh."
    return "quarantined", f"It is in quarantine since {when}, by plan {by}. Undo: gc-assets restore --storage {storage} --key {key}"


def _chain(night: Night, lake: str, row: dict[str, Any], side: str | None = None) -> Iterator[Link]:
    """Ref, commit, containers outermost first, file."""
    links = [Link(row["kind"], row["key"], _size(row))]
    top, commit, table = row["container"], row["commit_id"], row["table_uuid"]
    for _ in range(MAX_CONTAINERS):
        if top is None:
            break
        above = _container(night, lake, top, side)
        if above is None:
            links.append(Link("container", top, "outside all storages"))
            break
        links.append(Link(above["kind"], above["key"], _size(above)))
        top, commit, table = above["container"], above["commit_id"], above["table_uuid"]
    if commit is None:
        yield Link("lake", lake, "part of its present state: current metadata, refs or configuration")
    else:
        yield from _commit_links(night, lake, commit, table)
    yield from reversed(links)


def _container(night: Night, lake: str, address: str, side: str | None) -> dict[str, Any] | None:
    place = night.resolver().resolve_one(address)
    if place is None:
        return None
    sides = (None,) if side is None else (side, None)  # a container of expired history may be live itself
    for name in sides:
        for row in _lake_rows(night, lake, "key", place[1], name):
            if row["storage"] == place[0]:
                return row
    return None


def _commit_links(night: Night, lake: str, commit: str, table: str | None) -> Iterator[Link]:
    state, day = night.state, night.run_date
    reachable = state.require(lake, REACHABLE_SNAPSHOTS.name, day)
    said = _one_of(_where(night, REACHABLE_SNAPSHOTS.schema, reachable, "commit_id", commit), table)
    refs = state.require(lake, LAKE_REFS.name, day)
    if said is not None and said["refs"]:
        name = said["refs"][0]
        ref = _one_of(_where(night, LAKE_REFS.schema, refs, "ref_name", name), table)
        more = f", one of {said['refs_count']:,} refs that reach it" if said["refs_count"] > 1 else ""
        steps = _steps_back(night, lake, ref["head_commit_id"], commit, table) if ref is not None else None
        back = "" if steps is None else ", its head" if steps == 0 else f", {steps:,} commits before its head"
        where = f" of {ref['table_name']}" if ref is not None and ref["table_name"] else ""
        yield Link(ref["ref_type"] if ref is not None else "ref", name, f"in lake {lake}{where}{back}{more}")
    graph = _one_of(_where(night, COMMIT_GRAPH.schema, state.require(lake, COMMIT_GRAPH.name, day), "commit_id", commit), table)
    at = f"{graph['committed_at'].isoformat()}" if graph is not None and graph["committed_at"] is not None else ""
    why = f"{said['state']}: {said['reason']}" if said is not None else ""
    until = f"; kept until {said['keep_until'].isoformat()}" if said is not None and said["keep_until"] is not None else ""
    yield Link("commit", commit, "; ".join(part for part in (at, why) if part) + until)


def _steps_back(night: Night, lake: str, head: str | None, commit: str, table: str | None) -> int | None:
    """Length of the shortest way from `head` to `commit` by parents; null where there is none."""
    graph = night.state.require(lake, COMMIT_GRAPH.name, night.run_date)
    rows = read_parts(night.state.files, graph.paths(), COMMIT_GRAPH.schema, ["table_uuid", "commit_id", "parents"])
    same = pc.is_null(rows.column("table_uuid")) if table is None else pc.equal(rows.column("table_uuid"), table)
    rows = rows.filter(same)
    parents = dict(zip(rows.column("commit_id").to_pylist(), rows.column("parents").to_pylist(), strict=True))
    level, seen, steps = {head}, {head}, 0
    while level:
        if commit in level:
            return steps
        level = {parent for child in level for parent in parents.get(child) or ()} - seen
        seen |= level
        steps += 1
    return None


def _last_chain(night: Night, storage: str, key: str) -> tuple[Link, ...]:
    """For a file that is not live: the history that last needed it."""
    for side in (EXPIRED_SIDE, DANGLING_SIDE):
        for lake in night.config.lakes:
            for row in _lake_rows(night, lake.name, "key", key, side):
                if row["storage"] == storage:
                    return tuple(_chain(night, lake.name, row, side))
    return ()


def _facts(night: Night, storage: str, key: str) -> dict[str, Any]:
    """The key's rows in the storage's tables of the run date, those that were published."""
    state, day = night.state, night.run_date
    facts: dict[str, Any] = {}
    inventory = state.current(storage, STORAGE_INVENTORY.name, day)
    if inventory is not None:
        facts["listed_at"] = inventory.receipt.created_at
        facts["inventory"] = _first(_where(night, STORAGE_INVENTORY.schema, inventory, "key", key))
    orphans = state.current(storage, ORPHAN_FILES.name, day)
    if orphans is not None:
        facts["grace_cutoff"] = datetime.fromisoformat(orphans.receipt.facts["grace_cutoff"])
        facts["orphan"] = _first(_where(night, ORPHAN_FILES.schema, orphans, "key", key))
    plan = state.current(storage, DELETION_PLAN.name, day)
    if plan is not None:
        facts["plan"] = _first(_where(night, DELETION_PLAN.schema, plan, "key", key))
        facts["plan_id"] = plan.receipt.facts["plan_id"]
        facts["plan_refused_by"] = [gate["name"] for gate in plan.receipt.facts["header"]["gates"] if not gate["passed"]]
    owner = _claims(night, storage).owner(key[: key.rfind("/") + 1])
    facts["claimed_by"] = owner.lake if owner is not None else None
    return facts


def _claims(night: Night, storage: str) -> Claims:
    rows: list[tuple[str, Owner, bool]] = []
    for lake in night.config.lakes:
        refs = night.state.current(lake.name, LAKE_REFS.name, night.run_date)
        if refs is not None:
            claims = read_parts(night.state.files, refs.paths(CLAIMS_SIDE), CLAIMS).to_pylist()
            mine = [row for row in claims if row["storage"] == storage]
            rows += [(row["key"], Owner(lake.name, row["table_uuid"]), row["collect"]) for row in mine]
    return Claims.of(rows)


def _history(night: Night, storage: str, key: str) -> list[dict[str, Any]]:
    """What was ever done to the key, oldest first."""
    paths = [path for run in night.state.runs(storage, DELETION_LOG.name) for path in run.paths()]
    rows = rows_where(night.state, DELETION_LOG.schema, paths, "key", [key]).to_pylist()
    return sorted(rows, key=lambda row: row["at"])


def _lake_rows(night: Night, lake: str, column: str, value: str, side: str | None = None) -> list[dict[str, Any]]:
    live = night.state.current(lake, LIVE_FILES.name, night.run_date)
    return [] if live is None else rows_where(night.state, LIVE_FILES.schema, live.paths(side), column, [value]).to_pylist()


def _where(night: Night, schema: pa.Schema, published: Published, column: str, value: str) -> list[dict[str, Any]]:
    return rows_where(night.state, schema, published.paths(), column, [value]).to_pylist(maps_as_pydicts="lossy")


def _one_of(rows: list[dict[str, Any]], table: str | None) -> dict[str, Any] | None:
    return next((row for row in rows if row["table_uuid"] == table), None)


def _first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return rows[0] if rows else None


def _size(row: dict[str, Any]) -> str:
    return f"{row['size_bytes']:,} bytes" if row["size_bytes"] is not None and row["size_bytes"] >= 0 else ""
