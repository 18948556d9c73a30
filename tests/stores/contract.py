"""The guarantees of `stores/protocol.py`, as tests that every store passes.

A store joins with an entry of `STORES`: its own location for each test, and another writer that
uses no code of this project. Tests of a single store are in `tests/stores/<scheme>/`.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any, Protocol, get_args

import pyarrow as pa
import pytest

from gc_assets.config.connections import DEFAULT_CONNECTIONS, Connections
from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, ObjectChanged, StoreError, UsageError
from gc_assets.core.paths import scheme_of
from gc_assets.core.phases import Action
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.listing import INVENTORY_SCHEMA, select_unchanged_objects
from gc_assets.stores.protocol import LEASE_DURATION, RESERVED_PREFIX, Directory, Lease, PlannedAction, QuarantineMode, Store
from gc_assets.stores.store import SCHEMES, open_store
from gc_assets.stores.trash import TrashedObject, list_trash
from tests.depth import example_count
from tests.process_kills import PROCESSES
from tests.stores.azure_bench import open_azure_bench
from tests.stores.builders import CLOCK, NOW, PLAN, memory_directory
from tests.stores.gcs_bench import open_gcs_bench
from tests.stores.s3_bench import open_s3_bench

TICK = timedelta(microseconds=1)
# Keys that some store, library or shell confuses with others.
ODD_KEYS = [
    "plain",
    "t/a b",
    "t/new\nline",
    "t/tab\t",
    "t/a%20b",
    "t/a+b",
    "t/a%2Fb",
    "t/a",
    "t/A",
    "t/e\u0301",
    "t/\u00e9",
    "t/\U0001f9ca",
    "t/#?*[",
    "t/a\\b",
    "t/'\"&<>",
    "t/a;b=c,d",
    ".hidden",
    ".a/.b",
    "..a/b",
    "t/" + "n" * 255,
    "t/deep/er/x",
]


class Bench(Protocol):
    """A store under test, and another writer.

    `tick` is the resolution of the store's times. `many` objects take about a second. `refused` are
    those of the odd keys that the store does not accept.
    """

    store: Store
    connections: Connections
    mode: QuarantineMode
    tick: timedelta
    many: int
    refused: frozenset[str]

    def put(self, key: str, content: bytes) -> None: ...
    def get(self, key: str) -> bytes | None: ...
    def remove(self, key: str) -> None: ...
    def everything(self) -> set[str]:
        """Return the keys of all objects, including those under the reserved prefix."""
        ...


@dataclass(frozen=True)
class LocalBench:
    root: Path
    store: Store
    connections: Connections = DEFAULT_CONNECTIONS
    mode: QuarantineMode = "trash"
    # The kernel dates a file with the last tick of its clock.
    tick: timedelta = timedelta(milliseconds=20)
    many: int = 1000
    refused: frozenset[str] = frozenset()

    def put(self, key: str, content: bytes) -> None:
        path, staged = self.root / key, self.root.parent / f"staged-{uuid.uuid4().hex}"
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(content)
        staged.replace(path)  # both files exist for a moment, so the new one never gets the inode of the old one

    def get(self, key: str) -> bytes | None:
        path = self.root / key
        return path.read_bytes() if path.is_file() else None

    def remove(self, key: str) -> None:
        (self.root / key).unlink()

    def everything(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}


def odd_keys(bench: Bench) -> list[str]:
    return [key for key in ODD_KEYS if key not in bench.refused]


@contextmanager
def open_local_bench() -> Iterator[Bench]:
    with memory_directory() as base:
        root = base / "storage"
        root.mkdir()
        yield LocalBench(root, open_store(f"file://{root}/"))


STORES: dict[str, Callable[[], AbstractContextManager[Bench]]] = {
    "local": open_local_bench,
    "ceph": lambda: open_s3_bench("ceph"),
    "ceph_versioned": lambda: open_s3_bench("ceph", versioned=True),
    "azure": open_azure_bench,
    "gcs": open_gcs_bench,
    "gcs_versioned": lambda: open_gcs_bench(versioned=True),
}
# Stores that only the tests of quarantines use as well.
QUARANTINED = {**STORES, "ceph_suspended": lambda: open_s3_bench("ceph", suspended=True)}
# In a bucket with versions, Ceph 16 ignores conditions, and Ceph 20 lets concurrent writers succeed.
CONDITIONAL = {name: opened for name, opened in STORES.items() if name != "ceph_versioned"}
MODES_OF: dict[str, tuple[QuarantineMode, ...]] = {
    "local": ("trash", "deferred"),
    "ceph": ("trash", "deferred"),
    "ceph_versioned": ("versioned", "deferred"),
    "ceph_suspended": ("trash", "deferred"),
    "azure": ("trash", "deferred"),
    "gcs": ("trash", "deferred"),
    "gcs_versioned": ("versioned", "deferred"),
}


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with STORES[request.param]() as opened:
        yield opened


@pytest.fixture(params=CONDITIONAL)
def conditional(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A store with conditional writes, which leases and edits need."""
    with CONDITIONAL[request.param]() as opened:
        yield opened


@dataclass(frozen=True)
class QuarantineBench:
    """A bench, and a quarantine mode of its store."""

    bench: Bench
    mode: QuarantineMode

    def __call__(self, *rows: PlannedAction, resumed: Sequence[PlannedAction] = ()) -> list[str]:
        """Act on one batch and return its verdicts. Every verdict except `done` must have an error."""
        results = self.bench.store.quarantine(self.mode, PLAN).act(rows, resumed)
        assert all(bool(result.error) == (result.verdict != "done") for result in results)
        return [result.verdict for result in results]

    def plan_row(self, key: str, action: Action = "quarantine") -> PlannedAction:
        """Return the row of a plan for the current object."""
        return self.follow_up(row_of(inventory(self.bench.store)[key]), action)

    def follow_up(self, row: PlannedAction, action: Action) -> PlannedAction:
        """Return the row for an action on the same object after its quarantine."""
        return replace(row, action=action, source_plan_id=None if action == "quarantine" else PLAN)


MODES = [(store, mode) for store in QUARANTINED for mode in MODES_OF[store]]


@pytest.fixture(params=MODES, ids=["-".join(pair) for pair in MODES])
def act(request: pytest.FixtureRequest) -> Iterator[QuarantineBench]:
    store, mode = request.param
    with QUARANTINED[store]() as opened:
        yield QuarantineBench(opened, mode)


def row_of(listed: dict[str, Any]) -> PlannedAction:
    return PlannedAction(listed["key"], "quarantine", listed["size_bytes"], listed["etag"], listed["version_id"])


def address(store: Store, key: str) -> str:
    return f"{store.location}{key}"


def listing(
    store: Store, budget: int = 10**9, unchanged: frozenset[str] = frozenset(), settled_before: datetime | None = None
) -> tuple[pa.Table, list[Directory]]:
    """Run all rounds of a listing. Tasks are pickled, as for executors."""
    tasks = list(store.plan_listing(2, unchanged, settled_before))
    batches: list[pa.RecordBatch] = []
    directories: list[Directory] = []
    while tasks:
        for step in pickle.loads(pickle.dumps(tasks.pop())).run(budget):  # noqa: S301  (bytes made on this line)
            assert not step.problems
            batches.append(step.objects)
            directories += step.directories
            tasks += step.leftover
    return pa.Table.from_batches(batches, schema=INVENTORY_SCHEMA), directories


def inventory(store: Store, budget: int = 10**9) -> dict[str, dict[str, Any]]:
    """Return the listed rows by key. Each key must be listed once."""
    rows = listing(store, budget)[0].to_pylist()
    by_key = {row["key"]: row for row in rows}
    assert len(by_key) == len(rows)
    return by_key


# Listing


@pytest.mark.axiom("complete_listing")
@pytest.mark.parametrize("budget", [3, 10**9])
def test_listing_contains_every_object_that_existed_throughout(bench: Bench, budget: int) -> None:
    keys_of_test = {f"{folder}{number:02d}" for folder in ("", "t/", "t/deep/", "u/") for number in range(25)}
    for key in keys_of_test:
        bench.put(key, b"x")
    is_over = Event()

    def churn() -> None:
        for number in count():
            keys = [f"{folder}passing-{number % 40:02d}" for folder in ("", "t/", "t/deep/", "u/", f"new-{number % 7}/")]
            for key in keys:
                bench.put(key, b"passing")
            for key in keys:
                bench.remove(key)
            if is_over.is_set():
                return

    writer = Thread(target=churn)
    writer.start()
    try:
        for _ in range(example_count(1, 10)):
            listed = inventory(bench.store, budget).keys()
            assert keys_of_test <= listed
            assert all("passing-" in key for key in listed - keys_of_test)
    finally:
        is_over.set()
        writer.join()


def test_keys_are_listed_and_read_byte_for_byte(bench: Bench) -> None:
    contents = {key: key.encode() for key in odd_keys(bench)}
    for key, content in contents.items():
        bench.put(key, content)
    objects = bench.store.objects
    assert {key: row["size_bytes"] for key, row in inventory(bench.store).items()} == {key: len(c) for key, c in contents.items()}
    assert {key: objects.read(address(bench.store, key)) for key in contents} == contents
    assert {key: objects.size(address(bench.store, key)) for key in contents} == {key: len(c) for key, c in contents.items()}
    below = {name: size for name, size, _ in objects.list(bench.store.location)}
    assert below == {address(bench.store, key): len(content) for key, content in contents.items()}
    assert dict(objects.list_identities(bench.store.location)) == {name: objects.identity(name) for name in below}


def test_prefix_matches_only_complete_path_components(bench: Bench) -> None:
    for key in ("t/a", "t/deep/b", "t_2/c", "ta"):
        bench.put(key, b"x")
    assert sorted(name for name, _, _ in bench.store.objects.list(address(bench.store, "t/"))) == [
        address(bench.store, key) for key in ("t/a", "t/deep/b")
    ]
    assert list(bench.store.objects.list(address(bench.store, "nothing/"))) == []
    with pytest.raises(StoreError, match="must end in '/'"):
        list(bench.store.objects.list(address(bench.store, "t")))


def test_only_the_exact_reserved_prefix_is_excluded_from_listings(act: QuarantineBench) -> None:
    for key in (".gc-assets-not/x", "t/.gc-assets/x", "gone"):
        act.bench.put(key, b"x")
    act.bench.put(f"{RESERVED_PREFIX}anything", b"x")
    assert act(act.plan_row("gone")) == ["done"]
    left = {"gone"} if act.mode == "deferred" else set[str]()
    assert set(inventory(act.bench.store)) == {".gc-assets-not/x", "t/.gc-assets/x", *left}


def test_trash_listing_contains_quarantined_objects_with_identities(act: QuarantineBench) -> None:
    keys = ["t/a", "t/ü b%2F#.parquet"]
    for key in keys:
        act.bench.put(key, key.encode())
    rows = [act.plan_row(key) for key in keys]
    assert act(*rows) == ["done", "done"]
    listed = sorted(list_trash(act.bench.store.objects, act.bench.store.location), key=lambda item: item.key)
    moved = rows if act.mode == "trash" else []
    assert listed == [TrashedObject(PLAN, row.key, row.size_bytes) for row in moved]
    assert [act.bench.store.trashed_etag(PLAN, row.key) for row in moved] == [row.etag for row in moved]
    assert act.bench.store.trashed_etag(PLAN, "other") is None


def test_incremental_listing_finds_unchanged_and_new_objects(bench: Bench) -> None:
    for number in range(12):
        bench.put(f"data/{number % 4}/{number}", b"x")
    settled = datetime.now(UTC) + timedelta(hours=1)
    first, directories = listing(bench.store, settled_before=settled)
    bench.put("data/0/new", b"x")
    bench.remove("data/1/1")
    unchanged = bench.store.find_unchanged_directories(directories)
    found = listing(bench.store, unchanged=unchanged)[0].to_pylist()
    for batch in first.to_batches():
        found += select_unchanged_objects(batch, pa.array(sorted(unchanged), pa.string())).to_pylist()
    assert sorted(found, key=lambda row: row["key"]) == sorted(inventory(bench.store).values(), key=lambda row: row["key"])


@pytest.mark.axiom("distinct_identity")
def test_every_call_returns_the_listed_identity_of_an_object(bench: Bench) -> None:
    bench.put("a", b"one")
    first = inventory(bench.store)["a"]
    assert bench.store.objects.read_with_etag(address(bench.store, "a")) == (b"one", first["etag"])
    assert inventory(bench.store)["a"] == first
    bench.put("a", b"two")
    assert inventory(bench.store)["a"]["etag"] != first["etag"]


# Objects


def test_missing_object_raises_file_not_found(bench: Bench) -> None:
    nothing = address(bench.store, "t/nothing")
    for call in (bench.store.objects.read, bench.store.objects.size, bench.store.objects.read_with_etag):
        with pytest.raises(FileNotFoundError):
            call(nothing)


def test_find_object_returns_the_listed_identity_and_time(bench: Bench) -> None:
    bench.put("t/a", b"one")
    listed = inventory(bench.store)["t/a"]
    found = bench.store.find_object("t/a")
    assert found is not None
    assert (found.etag, found.size_bytes) == (listed["etag"], 3)
    assert abs(found.modified - listed["last_modified"]) < timedelta(seconds=1), "headers contain whole seconds"
    assert [bench.store.find_object(key) for key in ("t/nothing", "nothing/a", "t/a/b")] == [None, None, None]


@pytest.mark.axiom("visible_write")
def test_readers_see_only_complete_objects(conditional: Bench) -> None:
    name, length, is_over = address(conditional.store, "a"), 200_000, Event()
    first_bytes: set[bytes] = set()

    def read() -> None:
        while not is_over.is_set():
            with suppress(FileNotFoundError):
                content = conditional.store.objects.read(name)
                assert len(content) == length
                assert len(set(content)) == 1
                first_bytes.add(content[:1])

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in count():
                if number % 10 == 0:
                    with suppress(FileNotFoundError):
                        conditional.store.objects.remove(name, conditional.store.objects.read_with_etag(name)[1])
                    conditional.store.objects.create(name, bytes([number % 250]) * length)
                etag = conditional.store.objects.read_with_etag(name)[1]
                conditional.store.objects.replace(name, bytes([number % 250]) * length, etag)
                if (number > 30 and len(first_bytes) > 5) or any(reader.done() for reader in readers):
                    break
        finally:
            is_over.set()
        for reader in readers:
            reader.result()


def _read_everywhere(store: Store, key: str) -> tuple[bytes, int, bool, bool]:
    file = address(store, key)
    is_listed = any(name == file for name, _, _ in store.objects.list(store.location))
    return store.objects.read(file), store.objects.size(file), is_listed, key in inventory(store)


@pytest.mark.axiom("visible_write")
def test_finished_write_is_visible_to_all_processes(bench: Bench) -> None:
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as pool:
        for number in range(3):
            bench.store.objects.create(address(bench.store, f"t{number}/a"), b"seen")
            assert _read_everywhere(bench.store, f"t{number}/a") == (b"seen", 4, True, True)
            assert pool.submit(_read_everywhere, bench.store, f"t{number}/a").result(60) == (b"seen", 4, True, True)


def _create(store: Store, content: bytes) -> bool:
    try:
        store.objects.create(address(store, "t/one"), content)
    except FileExistsError:
        return False
    return True


@pytest.mark.axiom("exclusive_create")
def test_only_one_of_several_threads_creates_an_object(conditional: Bench) -> None:
    start = Barrier(8)

    def racer(number: int) -> bool:
        start.wait()
        return _create(conditional.store, bytes([number]))

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(racer, range(8)))
    assert won.count(True) == 1
    assert conditional.get("t/one") == bytes([won.index(True)])


@pytest.mark.axiom("exclusive_create")
def test_only_one_of_several_processes_creates_an_object(conditional: Bench) -> None:
    won = run_concurrently(_create, [(conditional.store, bytes([number])) for number in range(4)])
    assert won.count(True) == 1
    assert conditional.get("t/one") == bytes([won.index(True)])


def _racer(start: Any, results: Any, number: int, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    start.wait()
    results.put((number, work(*args)))


def run_concurrently(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return what `work` returns in processes that start it at the same time."""
    start, results = PROCESSES.Barrier(len(arguments)), PROCESSES.Queue()
    processes = [PROCESSES.Process(target=_racer, args=(start, results, number, work, args)) for number, args in enumerate(arguments)]
    for process in processes:
        process.start()
    answers = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return [answers[number] for number in range(len(arguments))]


@pytest.mark.axiom("conditional_change")
def test_edit_applies_only_to_the_version_that_was_read(conditional: Bench) -> None:
    editable, name = conditional.store.objects, address(conditional.store, "t/a")
    conditional.put("t/a", b"read")
    _, etag = editable.read_with_etag(name)
    conditional.put("t/a", b"newer")
    with pytest.raises(ObjectChanged):
        editable.replace(name, b"ours", etag)
    with pytest.raises(ObjectChanged):
        editable.remove(name, etag)
    assert conditional.get("t/a") == b"newer"
    conditional.remove("t/a")
    for change in (lambda: editable.replace(name, b"ours", etag), lambda: editable.remove(name, etag)):
        with pytest.raises(FileNotFoundError):
            change()
    assert conditional.get("t/a") is None


def _replace(store: Store, content: bytes, etag: str) -> bool:
    try:
        store.objects.replace(address(store, "a"), content, etag)
    except ObjectChanged:
        return False
    return True


def test_only_one_of_several_processes_replaces_an_object(conditional: Bench) -> None:
    conditional.put("a", b"read by all")
    _, etag = conditional.store.objects.read_with_etag(address(conditional.store, "a"))
    won = run_concurrently(_replace, [(conditional.store, bytes([number]), etag) for number in range(4)])
    assert won.count(True) == 1
    assert conditional.get("a") == bytes([won.index(True)])


@pytest.mark.axiom("store_clock")
def test_modification_times_follow_the_clock_of_the_store(bench: Bench) -> None:
    readings, times = [bench.store.now()], list[datetime]()
    for number in range(20):
        bench.put("again", str(number).encode())
        bench.put(f"t/{number}", b"x")
        rows = inventory(bench.store)
        times += [rows["again"]["last_modified"], rows[f"t/{number}"]["last_modified"]]
        readings.append(bench.store.now())
    assert times == sorted(times)
    assert readings == sorted(readings)
    assert all(time.tzinfo is not None for time in readings)
    for number in range(20):
        pair = times[2 * number : 2 * number + 2]
        assert all(readings[number] - bench.tick <= time <= readings[number + 1] + bench.tick for time in pair)


# Quarantine, restore, purge


def put_all(bench: Bench, keys: Sequence[str]) -> None:
    """Write objects that contain their own key."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: bench.put(key, key.encode()), keys))


def test_restore_returns_quarantined_objects(act: QuarantineBench) -> None:
    keys = odd_keys(act.bench)
    put_all(act.bench, [*keys, "t/other"])
    listed = inventory(act.bench.store)
    rows, done = [row_of(listed[key]) for key in keys], ["done"] * len(keys)
    assert act(*rows) == done
    assert [act.bench.get(key) for key in keys] == [key.encode() if act.mode == "deferred" else None for key in keys]
    assert act(*(act.follow_up(row, "restore") for row in rows)) == done
    assert {key: act.bench.get(key) for key in inventory(act.bench.store)} == {key: key.encode() for key in [*keys, "t/other"]}


def test_purge_keeps_all_other_objects(act: QuarantineBench) -> None:
    keys = odd_keys(act.bench)
    others = sorted({*(f"{key[:200]}2" for key in keys), "t/other", "u/x"})
    put_all(act.bench, [*keys, *others])
    listed = inventory(act.bench.store)
    rows, done = [row_of(listed[key]) for key in keys], ["done"] * len(keys)
    assert act(*rows) == done
    assert act(*(act.follow_up(row, "purge") for row in rows)) == done
    assert {key: act.bench.get(key) for key in inventory(act.bench.store)} == {key: key.encode() for key in others}
    assert act(*(act.follow_up(row, "restore") for row in rows)) == ["absent"] * len(keys)
    assert not [name for name in act.bench.everything() if not name.startswith(RESERVED_PREFIX) and name not in others]


@pytest.mark.parametrize("action", ["quarantine", "restore"])
def test_repeated_action_has_the_outcome_done(act: QuarantineBench, action: Action) -> None:
    act.bench.put("t/a", b"x")
    row = act.plan_row("t/a")
    assert act(row) == ["done"]
    assert [act(act.follow_up(row, action)) for _ in range(3)] == [["done"]] * 3


@pytest.mark.axiom("conditional_change")
def test_object_replaced_after_the_plan_is_left_alone(act: QuarantineBench) -> None:
    act.bench.put("t/a", b"old")
    row = act.plan_row("t/a")
    act.bench.put("t/a", b"new")
    assert act(row) == ["changed"]
    assert act.bench.get("t/a") == b"new"


@pytest.mark.axiom("no_overwrite")
@pytest.mark.parametrize("action", ["quarantine", "purge", "restore"])
def test_object_written_after_quarantine_is_never_changed(act: QuarantineBench, action: Action) -> None:
    act.bench.put("t/a", b"old")
    row = act.plan_row("t/a")
    assert act(row) == ["done"]
    act.bench.put("t/a", b"new")
    verdict = act(act.follow_up(row, action))
    assert act.bench.get("t/a") == b"new"
    if action == "restore":
        assert verdict == ["changed"]


def test_missing_object_has_the_outcome_absent(act: QuarantineBench) -> None:
    act.bench.put("t/a", b"x")
    row = act.plan_row("t/a")
    act.bench.remove("t/a")
    assert [act(act.follow_up(row, action)) for action in ("quarantine", "restore", "purge")] == [["absent"]] * 3


def test_purge_of_missing_object_is_done_only_when_resumed(act: QuarantineBench) -> None:
    for key in ("a", "b"):
        act.bench.put(key, b"x")
    rows = [act.plan_row(key) for key in ("a", "b")]
    purges = [act.follow_up(row, "purge") for row in rows]
    assert act(*rows) == ["done", "done"]
    assert act(*purges) == ["done", "done"]
    assert act(*purges, resumed=purges[:1]) == ["done", "absent"]


def test_purge_of_impossible_object_only_looks_it_up(act: QuarantineBench) -> None:
    """Closing an outdated plan looks up interrupted purges in this way, and must not repeat them."""
    act.bench.put("t/a", b"1")
    row = act.plan_row("t/a")
    assert act(row) == ["done"]
    purge = act.follow_up(row, "purge")
    for lookup in (replace(purge, etag="", size_bytes=-1), replace(purge, etag="")):
        assert act(lookup, resumed=[lookup]) in (["changed"], ["absent"])
    assert act(purge) == ["done"]
    lookup = replace(purge, etag="", size_bytes=-1)
    assert act(lookup, resumed=[lookup]) == ["done"]


def test_interrupted_batch_is_completed_by_a_retry(act: QuarantineBench) -> None:
    keys = [f"t/{number}" for number in range(6)]
    for key in keys:
        act.bench.put(key, key.encode())
    for ending in ("restore", "purge"):
        rows = [act.plan_row(key) for key in keys]
        for action in ("quarantine", ending):
            batch = [act.follow_up(row, action) for row in rows]
            assert act(*batch[:3]) == ["done"] * 3
            assert act(*batch, resumed=batch) == ["done"] * 6
    assert inventory(act.bench.store) == {}


def test_batch_returns_one_result_per_object_in_order(act: QuarantineBench) -> None:
    for key in ("a", "b", "changed"):
        act.bench.put(key, b"old")
    a, b, changed = (act.plan_row(key) for key in ("a", "b", "changed"))
    act.bench.put("changed", b"new")
    gone = replace(a, key="gone")
    nameless = replace(b, key="b", etag=None)
    assert act(gone, a, changed, nameless, b) == ["absent", "done", "changed", "denied", "done"]


def test_large_batch_is_executed(act: QuarantineBench) -> None:
    put_all(act.bench, [f"t/{number}" for number in range(act.bench.many)])
    rows = [row_of(row) for row in inventory(act.bench.store).values()]
    for action in ("quarantine", "purge"):
        assert act(*(act.follow_up(row, action) for row in rows)) == ["done"] * act.bench.many
    assert inventory(act.bench.store) == {}


@pytest.mark.parametrize("action", ["quarantine", "purge", "restore"])
def test_keys_under_reserved_prefix_are_denied(act: QuarantineBench, action: Action) -> None:
    act.bench.put(".gc-assets/lease.json", b"{}")
    act.bench.put(".gc-assets/trash/other/a", b"kept")
    act.bench.put("a", b"x")
    row, before = act.plan_row("a"), act.bench.everything()
    for key in (".gc-assets/lease.json", ".gc-assets/trash/other/a", ".gc-assets"):
        assert act(act.follow_up(replace(row, key=key), action)) == ["denied"]
        assert act.bench.everything() == before


def test_error_for_unsupported_mode_contains_the_mode(bench: Bench) -> None:
    lacking = set(get_args(QuarantineMode)) - set(SCHEMES[scheme_of(bench.store.location)].quarantines)
    for mode in lacking:
        with pytest.raises(UsageError, match=mode):
            bench.store.quarantine(mode, PLAN)


@pytest.mark.axiom("distinct_identity")
def test_identity_contains_the_modification_time(bench: Bench) -> None:
    bench.put("t/a", b"x")
    listed = inventory(bench.store)["t/a"]
    (modified,) = bench.store.modification_times(pa.array([listed["etag"]])).to_pylist()
    assert timedelta(0) <= listed["last_modified"] - modified < timedelta(seconds=1)
    assert bench.store.modification_times(pa.array([None, "nothing"], pa.string())).null_count == 2


# Lease


def at(moment: timedelta) -> Clock:
    return Clock(NOW + moment)


def take(bench: Bench, clock: Clock = CLOCK, owner: str = "nightly run") -> Lease:
    return bench.store.acquire(PLAN, owner, clock)


def later(lease: Lease, moment: timedelta) -> Any:
    """Return the same lease at another time."""
    return replace(lease, clock=at(moment))


def test_error_for_a_held_lease_contains_the_holder(bench: Bench) -> None:
    assert bench.store.holder() is None
    lease = take(bench)
    with pytest.raises(GateRefused, match="nightly run") as refusal:
        take(bench, at(LEASE_DURATION - TICK), "another user")
    times = (f"{time:%Y-%m-%d %H:%M:%S}Z" for time in (NOW, NOW + LEASE_DURATION))
    for text in (PLAN, *times):
        assert text in str(refusal.value)
    holder = bench.store.holder()
    assert holder is not None
    assert (holder.owner, holder.plan_id, holder.token) == ("nightly run", PLAN, lease.token)
    assert holder.is_live(NOW)
    assert not holder.is_live(NOW + LEASE_DURATION)
    lease.release()
    assert bench.store.holder() is None


def test_fencing_token_grows_after_release(bench: Bench) -> None:
    assert bench.store.last_token() == 0
    tokens: list[int] = []
    for _ in range(3):
        lease = take(bench)
        tokens.append(lease.token)
        lease.release()
        assert bench.store.last_token() == lease.token
    assert tokens == sorted(set(tokens))


def test_expired_lease_is_taken_over(bench: Bench) -> None:
    first = take(bench)
    second = take(bench, at(LEASE_DURATION), "another user")
    assert second.token > first.token
    for stopped in (first.check, first.renew):
        with pytest.raises(GateRefused, match="another user"):
            stopped()
    first.release()
    second.check()


def test_expired_lease_stays_valid_until_taken_over(bench: Bench) -> None:
    late = later(take(bench), LEASE_DURATION * 3)
    late.check()
    with pytest.raises(GateRefused):
        take(bench, at(LEASE_DURATION * 3))


def test_released_lease_frees_the_storage(bench: Bench) -> None:
    lease = take(bench)
    lease.release()
    with pytest.raises(GateRefused, match="no lease"):
        lease.check()
    take(bench)


@pytest.mark.parametrize(
    "passed, expires", [(LEASE_DURATION / 2, LEASE_DURATION), (LEASE_DURATION / 2 + TICK, LEASE_DURATION * 1.5 + TICK)]
)
def test_check_extends_the_lease_after_half_the_duration(bench: Bench, passed: timedelta, expires: timedelta) -> None:
    later(take(bench), passed).check()
    holder = bench.store.holder()
    assert holder is not None
    assert holder.expires_at == (NOW + expires).isoformat()


def test_held_lease_is_renewed_until_released(bench: Bench) -> None:
    duration = timedelta(milliseconds=30)
    lease = later(bench.store.acquire(PLAN, "slow", CLOCK, duration), LEASE_DURATION)
    renewed, deadline = (NOW + LEASE_DURATION + duration).isoformat(), time.monotonic() + 60
    with hold_lease(lease):
        while (holder := bench.store.holder()) is None or holder.expires_at != renewed:
            assert time.monotonic() < deadline, holder
        with pytest.raises(GateRefused, match="slow"):
            take(bench, at(LEASE_DURATION))
    assert bench.store.holder() is None


def _take(store: Store, clock: Clock, owner: str) -> int | None:
    try:
        return store.acquire(PLAN, owner, clock).token
    except GateRefused:
        return None


@pytest.mark.axiom("exclusive_create")
@pytest.mark.parametrize("before", ["free", "expired"])
def test_only_one_of_several_processes_acquires_the_lease(bench: Bench, before: str) -> None:
    old = take(bench).token if before == "expired" else 0
    won = list[int]()
    for _ in range(5):  # on a slow store each process may step back for the others
        won = won or [
            token for token in run_concurrently(_take, [(bench.store, at(LEASE_DURATION), str(number)) for number in range(4)]) if token
        ]
    assert len(won) == 1
    assert won[0] > old


# Values, and the checks of doctor


def test_values_sent_to_executors_can_be_pickled(bench: Bench) -> None:
    bench.put("t/a", b"x")
    lease = take(bench)
    modes = SCHEMES[scheme_of(bench.store.location)].quarantines
    for value in (
        bench.store,
        lease,
        *(bench.store.quarantine(mode, PLAN) for mode in modes),
        *bench.store.plan_listing(2),
    ):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301  (bytes made on this line)
    pickle.loads(pickle.dumps(lease)).check()  # noqa: S301  (bytes made on this line)


def test_opening_a_store_does_not_change_it(bench: Bench) -> None:
    reopened = open_store(bench.store.location, bench.connections)
    assert reopened == bench.store
    assert bench.everything() == set()


def test_probe_returns_traits_and_removes_canaries(conditional: Bench) -> None:
    conditional.put("t/a", b"x")
    traits = conditional.store.probe()
    assert (traits.create_if_absent, traits.broken_axioms) == (True, frozenset())
    assert traits == conditional.store.probe()
    assert conditional.everything() == {"t/a"}


def storage(bench: Bench, **keys: Any) -> StorageConfig:
    return StorageConfig.model_validate({"name": "s", "location": bench.store.location, "quarantine": bench.mode, **keys})


def test_doctor_changes_nothing_in_plan_mode(bench: Bench) -> None:
    bench.put("t/a", b"x")
    findings = list(bench.store.examine(storage(bench), NOW))
    assert {finding.verdict for finding in findings} == {"ok"}
    assert {finding.subject for finding in findings} == {"s"}
    assert bench.everything() == {"t/a"}


def test_doctor_checks_store_guarantees_in_apply_mode(conditional: Bench) -> None:
    findings = {finding.check: finding for finding in conditional.store.examine(storage(conditional, mode="apply"), NOW)}
    assert findings["traits"].verdict == "ok"
    assert conditional.everything() == set()


def test_doctor_reports_the_holder_of_the_lease(bench: Bench) -> None:
    take(bench, owner="ada")
    for moment in (NOW, NOW + LEASE_DURATION):
        found = {finding.check: finding for finding in bench.store.examine(storage(bench), moment)}["lease"]
        assert (found.verdict, "ada" in found.found, bool(found.todo)) == ("warn", True, True)
