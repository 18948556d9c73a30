"""Random histories of a lake, written directly as the input tables of `live_files`.

Many histories share a lake: each is a table, which sometimes adds files and containers of another
table. `expected_rows` computes the live files by brute force.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config, LakeConfig, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.hashing import xxhash64
from gc_assets.engine import tasks
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.file_kinds import FILE_KINDS, Kind
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED
from gc_assets.stages.mark import live_hashes, live_set
from gc_assets.stages.mark.content_roots import RELEASED, SPARED
from gc_assets.stages.mark.file_entries import build_hashes
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.mark.manifest_entries import cache_fingerprint
from gc_assets.state import compaction
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import (
    COMMIT_GRAPH,
    EXPIRY_PLAN,
    LAKE_REFS,
    LIVE_CONTENTS,
    LIVE_FILES,
    MANIFEST_ENTRIES,
    REACHABLE_SNAPSHOTS,
    Table,
)
from gc_assets.state.side_tables import (
    CLAIMS,
    CLAIMS_SIDE,
    CONTAINERS,
    CONTAINERS_SIDE,
    DANGLING_SIDE,
    EDGES,
    EDGES_SIDE,
    EXPIRED_SIDE,
    EXTERNAL_SIDE,
    HASHES,
    HASHES_SIDE,
    LIFECYCLE_SIDE,
    PINNED,
    PINNED_SIDE,
    ROUTED_SIDES,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
)

NOW: Final = datetime(2026, 11, 20, 3, tzinfo=UTC)
LAKE: Final = "lake"
LAKES: Final[dict[str, LakeConfig]] = {
    "iceberg": IcebergLakeConfig.model_validate({"name": LAKE, "kind": "iceberg", "catalog": {"type": "sql"}}),
    "icechunk": IcechunkLakeConfig.model_validate({"name": LAKE, "kind": "icechunk", "location": "file:///w/weather/"}),
    "nessie": NessieLakeConfig.model_validate({"name": LAKE, "kind": "nessie", "uri": "http://localhost:19120/api/v2"}),
    "lakefs": LakeFsLakeConfig.model_validate(
        {
            "name": LAKE,
            "kind": "lakefs",
            "endpoint": "http://localhost:8000",
            "repository": "ml",
            "access_key_id": "a",
            "secret_access_key": "b",
            "rules": "/rules.json",
        }
    ),
}
COMMIT_STATES: Final = (RETAINED, RETAINED, RETAINED, EXPIRED, DANGLING)
FILES: Final = (Kind.DATA, Kind.DATA, Kind.POSITION_DELETES, Kind.POSSIBLE_OBJECT)
Row = dict[str, Any]
# Events and their weights.
EVENTS: Final = {
    "commit": 6,
    "change state": 4,
    "drop": 3,
    "come back": 2,
    "must": 2,
    "decode again": 2,
    "decode the same again": 1,
    "other content of equal length": 1,
    "files and containers change places": 2,
    "pin": 1,
    "release": 1,
}


def build_context(root: Path, lake: LakeConfig, now: datetime = NOW, state: str = "state", **more: Any) -> RunContext:
    """Return the context of a run. The lake and its storages need not exist, because nothing opens them."""
    storages = more.pop("storages", ("one", "two"))
    config = Config(
        state=str(root / state),
        storages=tuple(StorageConfig(name=name, location=f"file:///{name}/") for name in storages),
        lakes=(lake,),
    )
    return RunContext.of(config, Clock(now), more.pop("run_date", now.date()), **more)


@dataclass
class Commit:
    table: str
    roots: list[Row]
    state: str = RETAINED
    refs: int = 1
    removed: bool = False


@dataclass
class World:
    """The input tables of a run.

    Attributes:
        named: Entries of each container when it was decoded last.
        pending: Containers that the next run decodes.
        history: All containers that were ever decoded.
        unread: For how many runs a table cannot be read, by table.
        torn: For how many runs a container cannot be read, by address.
        has_never_read: True if the next run finds a table that no run ever read.
    """

    chance: random.Random
    commits: dict[str, Commit] = field(default_factory=dict)
    gone: dict[str, Commit] = field(default_factory=dict)
    pinned: list[Row] = field(default_factory=list)
    named: dict[str, list[Row]] = field(default_factory=dict)
    pending: list[tuple[str, int, list[Row]]] = field(default_factory=list)
    history: list[tuple[str, int, list[Row]]] = field(default_factory=list)
    released: dict[tuple[str, str], bool] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    torn: dict[str, int] = field(default_factory=dict)
    has_never_read: bool = False
    counter: int = 0

    def name(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter:05}"

    def location(self, path: str) -> Row:
        """Return a location, mostly in the first storage, sometimes in the second or in none."""
        storage = self.chance.choices(("one", "two", None), (8, 2, 1))[0]
        return {"address": f"file:///{storage or 'external'}/{path}", "storage": storage, "key": path if storage else None}

    def file(self, table: str) -> Row:
        return {**self.location(self.name(f"{table}/d")), "kind": self.chance.choice(FILES), "must_exist": self.chance.random() < 0.9}

    def known_files(self) -> list[Row]:
        return [row for rows in self.named.values() for row in rows if not row["is_container"]]

    def container(self, table: str, kind: str, children: list[Row]) -> Row:
        row = {**self.location(self.name(f"{table}/m")), "kind": kind, "is_container": True, "must_exist": self.chance.random() < 0.9}
        self.decode(row["address"], children)
        return {**row, "size_bytes": None}

    def decode(self, address: str, children: list[Row], length: int | None = None) -> None:
        self.named[address] = children
        self.counter += 1
        self.history.append((address, 10 + self.counter if length is None else length, children))
        self.pending.append(self.history[-1])

    def end_run(self) -> None:
        """Reset what only concerns one run."""
        self.pending, self.has_never_read = [], False
        self.unread, self.torn = ({name: left - 1 for name, left in runs.items() if left > 1} for runs in (self.unread, self.torn))

    def tables(self) -> set[str]:
        return {commit.table for commit in (*self.commits.values(), *self.gone.values())}

    def entry(self, row: Row) -> Row:
        size, status = self.chance.choice((None, 7, 9)), self.chance.choice((None, "added", "existing", "deleted"))
        return {**row, "is_container": False, "size_bytes": size, "entry_status": status}

    def commit(self, table: str) -> None:
        """Add a commit with a manifest of new and shared files, and some manifests of earlier commits."""
        chance = self.chance
        lists = [root for commit in self.commits.values() for root in commit.roots if root["is_container"]]
        own = [root for commit in self.commits.values() if commit.table == table for root in commit.roots if root["is_container"]]
        inner = [row for root in own[-2:] for row in self.named[root["address"]] if row["is_container"]]
        others = [row for root in chance.sample(lists, min(2, len(lists))) for row in self.named[root["address"]] if row["is_container"]]
        known = self.known_files()
        files = [self.entry(self.file(table)) for _ in range(chance.randint(0, 3))]
        files += [self.entry(row) for row in (chance.sample(known, min(2, len(known))) if chance.random() < 0.4 else [])]
        manifests = [self.container(table, Kind.MANIFEST, files), *(row for row in inner if chance.random() < 0.8)]
        manifests += others[:1] if chance.random() < 0.3 else []
        direct = [self.entry(self.file(table))] if chance.random() < 0.3 else []
        unique = list({row["address"]: row for row in manifests}.values())
        roots = [self.container(table, Kind.MANIFEST_LIST, [*unique, *direct])]
        if chance.random() < 0.3:  # a file that a container also references, or a new one
            leaf = chance.choice(known) if known and chance.random() < 0.5 else self.file(table)
            roots.append({**leaf, "is_container": False, "size_bytes": 5, "must_exist": chance.random() < 0.5})
        number = f"{chance.getrandbits(40):013}"
        self.commits[number] = Commit(table, [{name: row[name] for name in ROOT} for row in roots])

    def replace_files(self, address: str, commit: Commit) -> None:
        """Rewrite a container with as many containers as it had files, and change the state of its commit."""
        files = [row for row in self.named.get(address, ()) if not row["is_container"]]
        if files:
            self.decode(address, [self.container(commit.table, Kind.MANIFEST, []) for _ in files])
        commit.state, commit.refs = self.chance.choice(COMMIT_STATES), self.chance.randint(0, 1)

    def damage(self, kind: str, count: int) -> None:
        """Make tables and containers unreadable for one or two runs. In a Nessie lake, these are only containers."""
        chance = self.chance
        for _ in range(count):
            what, runs = chance.choice(("table", "container", "container", "never read")), chance.randint(1, 2)
            commit = self.commits[chance.choice(sorted(self.commits))]
            lists = [root["address"] for root in commit.roots if root["is_container"]]
            if what == "never read":
                self.has_never_read = True
            elif what == "container" or kind == "nessie":
                manifests = [row["address"] for address in lists for row in self.named[address] if row["is_container"]]
                self.torn[chance.choice([*lists, *manifests])] = runs
            else:
                self.unread[commit.table] = runs

    def pass_a_day(self, changes: int) -> Counter[str]:
        events = Counter[str]()
        for _ in range(changes):
            events[self.change()] += 1
        return events

    def change(self) -> str:
        chance = self.chance
        commit_id = chance.choice(sorted(self.commits))
        commit = self.commits[commit_id]
        what = chance.choices(list(EVENTS), list(EVENTS.values()))[0]
        if what == "commit":
            self.commit(commit.table)
        elif what == "change state":
            commit.state, commit.refs, commit.removed = chance.choice(COMMIT_STATES), chance.randint(0, 1), chance.random() < 0.2
        elif what == "drop" and len(self.commits) > 3:
            self.gone[commit_id] = self.commits.pop(commit_id)
        elif what == "come back" and self.gone:
            back = chance.choice(sorted(self.gone))
            self.commits[back] = self.gone.pop(back)
        elif what == "must":
            root = chance.choice(commit.roots)
            root["must_exist"] = not root["must_exist"]
        elif what == "decode again":
            address = chance.choice(sorted(self.named))
            children = [row for row in self.named[address] if chance.random() < 0.7]
            moved = [{**row, **self.location(row["address"].split("/", 4)[-1])} if not row["is_container"] else row for row in children[:1]]
            self.decode(address, [*moved, *children[1:], self.entry(self.file(commit.table))])
        elif what == "decode the same again":
            address, length, children = chance.choice(self.history)
            self.decode(address, children, length)
        elif what == "other content of equal length":
            address, length, _ = chance.choice(self.history)
            self.decode(
                address, [self.entry(row) for row in chance.sample(self.known_files(), 1)] + [self.entry(self.file(commit.table))], length
            )
        elif what == "files and containers change places":
            self.replace_files(chance.choice(commit.roots)["address"], commit)
        elif what == "pin":
            known = self.known_files()
            rows = chance.sample(known, min(2, len(known)))
            self.pinned = [{**{name: row[name] for name in ROOT}, "size_bytes": 3} for row in rows]
        elif what == "release":
            locations = sorted({(row["storage"], row["key"]) for row in self.known_files() if row["storage"]})
            self.released = {location: chance.random() < 0.3 for location in chance.sample(locations, min(30, len(locations)))}
        else:
            return "nothing"
        return what


ROOT: Final = ("address", "kind", "is_container", "size_bytes", "must_exist", "storage", "key")


def _publish(
    run_context: RunContext, table: Table, rows: list[Row], side: dict[str, pa.Table] | None = None, **summary: Any
) -> PublishedTable:
    run = run_context.state.start(run_context.group(LAKE), table.name, run_context.run_date, run_context.clock)
    shuffled = list(rows)
    random.Random(run.run_id).shuffle(shuffled)  # no row may depend on the order of others
    written = write_rows(pa.Table.from_pylist(shuffled, table.schema), table, run, run_context.state.files, side)
    return publish(run_context.state, run, written, run_context.clock, summary=summary)


def write(world: World, run_context: RunContext) -> None:
    """Publish the input tables of `live_files`. Containers decoded since the last run are a new segment."""
    kind = run_context.kind(LAKE)
    refs = {
        "kind": run_context.config.lake(LAKE).kind,
        "as_of": run_context.as_of.isoformat(),
        "frozen_at": run_context.clock.now().isoformat(),
    }
    refs |= {"historical": False, "rehearsal": False, "policy_digest": "", "refs_digest": "", "claims": 0, "pinned": 0, "notes": []}
    unread = [*world.unread, *(["never"] if world.has_never_read else [])]
    refs["unread"] = [{"table_name": name, "why": "it is torn", "address": None} for name in unread]
    sides = {PINNED_SIDE: pa.Table.from_pylist(world.pinned, PINNED), CLAIMS_SIDE: CLAIMS.empty_table()}
    tables = [] if kind.has_live_contents else sorted(world.tables() - world.unread.keys())
    heads = [{"table_uuid": name, "table_name": name, "ref_name": "main", "ref_type": "branch"} for name in tables]
    _publish(run_context, LAKE_REFS, heads, sides, min_age_seconds=0, **refs)
    found = {name: commit for name, commit in world.commits.items() if commit.table not in world.unread}
    uuids = {name: None if kind.has_live_contents else commit.table for name, commit in found.items()}
    commits = [
        {"table_uuid": uuids[name], "commit_id": name, "parents": [], "content_roots": commit.roots, "summary": []}
        for name, commit in found.items()
    ]
    _publish(run_context, COMMIT_GRAPH, commits, commits=len(commits))
    states = [
        {"table_uuid": uuids[name], "commit_id": name, "state": commit.state, "refs": [], "refs_count": commit.refs, "reason": ""}
        for name, commit in found.items()
    ]
    _publish(run_context, REACHABLE_SNAPSHOTS, states, retained=0, expired=0, dangling=0)
    removed = [
        {"table_uuid": uuids[name], "snapshot_id": name, "action": "remove_snapshot", "reason": ""}
        for name, commit in found.items()
        if commit.removed
    ]
    _publish(run_context, EXPIRY_PLAN, removed, actions=len(removed))
    if kind.has_live_contents:
        contents = [
            {
                "content_id": commit.table,
                "metadata_location": root["address"],
                "commit_id": name,
                "ref_name": "main" if commit.refs else None,
                "at_head": bool(commit.refs),
                "on_branch": True,
            }
            for name, commit in found.items()
            if commit.state == RETAINED
            for root in commit.roots
        ]
        _publish(run_context, LIVE_CONTENTS, contents, contents=len(contents))
    if run_context.config.lake(LAKE).has_lifecycle:
        _publish(
            run_context,
            LIFECYCLE_OBJECTS,
            [
                {"storage": at, "key": key, "paths": [], "matched_rules": [], "deduplicated": dup}
                for (at, key), dup in world.released.items()
            ],
        )
    _publish_segment(world, run_context)


def _publish_segment(world: World, run_context: RunContext) -> None:
    entries: list[Row] = []
    containers: list[Row] = []
    for address, length, children in world.pending:
        entries += [
            {"entry_status": None, **child, "container": address, "container_size_bytes": length, "must_exist": child["must_exist"]}
            for child in children
        ]
        files = sum(is_file(child) for child in children)
        containers.append({"container": address, "kind": "m", "container_size_bytes": length, "entries": len(children), "files": files})
    inner = [row for row in entries if row["is_container"]]
    sides = {
        CONTAINERS_SIDE: pa.Table.from_pylist(containers, CONTAINERS),
        EDGES_SIDE: pa.Table.from_pylist([{name: row.get(name) for name in EDGES.names} for row in inner], EDGES),
    }
    if world.torn:
        rows = [{"address": address, "kind": "m", "error": "it is torn", "absent": False} for address in world.torn]
        sides[UNREADABLE_CONTAINERS_SIDE] = pa.Table.from_pylist(rows, UNREADABLE_CONTAINERS)
    summary = {
        "decoded": len(containers),
        "entries": len(entries),
        "unreadable": len(world.torn),
        "container_bytes": 0,
        "levels": 1,
        "segments": 1,
    }
    external = sum(row["storage"] is None for row in entries)
    run = run_context.state.start(LAKE, MANIFEST_ENTRIES.name, run_context.run_date, run_context.clock)
    rows = pa.Table.from_pylist(
        [{name: row.get(name) for name in MANIFEST_ENTRIES.schema.names} for row in entries], MANIFEST_ENTRIES.schema
    )
    sides[HASHES_SIDE] = pa.Table.from_batches([build_hashes(batch) for batch in rows.to_batches()], HASHES)
    written = write_rows(rows, MANIFEST_ENTRIES, run, run_context.state.files, sides)
    publish(
        run_context.state,
        run,
        written,
        run_context.clock,
        summary={
            **summary,
            "external": external,
            "decoded_as": cache_fingerprint(run_context, LAKE),
            "resolved_as": run_context.resolver().settings_digest,
        },
    )


def is_file(entry: Row) -> bool:
    return not entry["is_container"] and entry.get("entry_status") != "deleted"


def read_rows_by_route(spark: SparkSession, live: LiveSet, *, with_spark: bool = False) -> dict[str, list[Row]]:
    """Return all rows of all routes, sorted."""
    found: dict[str, list[Row]] = {}
    for route in ("", *ROUTED_SIDES):
        rows = live.read(spark, route).toArrow() if with_spark else pa.Table.from_batches(live.batches(route), LIVE_FILES.schema)
        found[route] = sort_rows(rows.to_pylist())
    return found


def sort_rows(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["storage"] or "", row["key"]))


# A witness is stronger than another one if these columns are smaller. None is larger than any value.
_STRENGTH: Final = ("rank", "commit_id", "table_uuid", "container", "expands", "must_exist", "kind")


def expected_rows(world: World, states: list[Row], *, released: Collection[tuple[str | None, str]] = ()) -> dict[str, list[Row]]:
    """Compute the rows of all routes by brute force.

    Args:
        world: Its history has the entries of all containers.
        states: The published states.
        released: Storage and key of files that the owner releases.
    """
    named: dict[tuple[str | None, str], list[tuple[Row, Row]]] = {}
    for state in states:
        size = state["container_size_bytes"] if state["size_bytes"] is None else state["size_bytes"]
        _add(named, {**state, "expands": False}, {**state, "size_bytes": size})
        if state["expands"]:
            needed_by = {**state, "container": state["address"]}
            for entry in (row for address, _, rows in world.history if address == state["address"] for row in rows if is_file(row)):
                must_exist = entry["must_exist"] and state["must_exist"]
                _add(named, needed_by, {**entry, "must_exist": must_exist, "container_size_bytes": None})
    found: dict[str, list[Row]] = {route: [] for route in ("", *ROUTED_SIDES)}
    for (storage, key), pairs in named.items():
        witness, file = min(pairs, key=lambda pair: (_strength(pair[0]), FILE_KINDS.index(pair[1]["kind"])))
        largest = {
            name: max((row[name] for _, row in pairs if row[name] is not None), default=None)
            for name in ("size_bytes", "container_size_bytes")
        }
        columns = {name: witness[name] for name in ("commit_id", "container", "table_uuid")} | largest
        columns |= {"must_exist": any(row["must_exist"] for _, row in pairs), "key_hash": int(xxhash64(pa.array([key]))[0])}
        row = {"storage": storage, "key": key, "kind": file["kind"], "lake": LAKE, **columns}
        found[_route(storage, key, witness["rank"], released)].append({name: row[name] for name in LIVE_FILES.schema.names})
    return {route: sort_rows(rows) for route, rows in found.items()}


def _add(named: dict[tuple[str | None, str], list[tuple[Row, Row]]], witness: Row, file: Row) -> None:
    key = file["address"] if file["key"] is None else file["key"]
    named.setdefault((file["storage"], key), []).append((witness, file))


def _strength(witness: Row) -> tuple[tuple[bool, Any], ...]:
    return tuple((witness[name] is None, witness[name]) for name in _STRENGTH)


def _route(storage: str | None, key: str, rank: int, released: Collection[tuple[str | None, str]]) -> str:
    if storage is None:
        return EXTERNAL_SIDE
    if rank <= SPARED:
        return LIFECYCLE_SIDE if (storage, key) in released else ""
    return EXPIRED_SIDE if rank <= RELEASED else DANGLING_SIDE


def count_by(rows: list[Row], column: str) -> dict[str, dict[str, int]]:
    """Return the number and bytes of files by a column, as in a summary."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        amount = found.setdefault(row[column], {"files": 0, "bytes": 0})
        amount["files"] += 1
        amount["bytes"] += row["size_bytes"] or 0
    return found


@contextmanager
def large_lake() -> Generator[None]:
    """Read entries and hashes on executors, as in a lake of millions of files."""
    with pytest.MonkeyPatch.context() as bounds:
        bounds.setattr(live_hashes, "MAX_IN_PROCESS_HASHES", 0)
        bounds.setattr(live_hashes, "MAX_LOCAL_HASHES", 0)
        bounds.setattr(live_set, "MAX_IN_PROCESS_ENTRIES", 0)
        for limit in ("MAX_IN_PROCESS_ROWS", "MAX_LOCAL_TASK_ROWS"):
            bounds.setattr(tasks, limit, 0)
        yield


@contextmanager
def frequent_compaction() -> Generator[None]:
    """Compact old and new segments together."""
    with pytest.MonkeyPatch.context() as bounds:
        bounds.setattr(compaction, "MIN_SEGMENTS", 2)
        yield
