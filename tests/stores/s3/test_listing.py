"""Ranges of keys, and listings of a bucket that are divided into them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gc_assets.core.errors import StoreError
from gc_assets.stores.conditional.listing import Range, common_prefix
from gc_assets.stores.protocol import RESERVED_PREFIX, ListingTask, Problem, Store
from tests.depth import in_turn
from tests.s3.proxy import Rule, error_answer, lists
from tests.stores.contract import inventory
from tests.stores.s3.bucket_actions import open_through_proxy
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = in_turn

NEAR = [".gc-assets", ".gc-assets-x", ".gc-assets.", ".gc-assets0", ".gc-assets0/x", ".gc-assetsx", ".gc-asset", ".gc-assetz/x"]
RESERVED = [".gc-assets/", ".gc-assets/x", ".gc-assets/~", ".gc-assets/~~", ".gc-assets/\u00e9", ".gc-assets/a/b/c"]
bytes_of_keys = st.binary(max_size=4) | st.text("/0a.~", max_size=6).map(str.encode)
keys = st.lists(st.text("/0a-\u00e9+ %\x7f", min_size=1, max_size=8), max_size=30, unique=True)


def is_in(key: bytes, part: Range) -> bool:
    return (not part.after or key > part.after) and (part.end is None or key <= part.end)


@given(bytes_of_keys, st.none() | bytes_of_keys, st.lists(bytes_of_keys, max_size=6), st.lists(bytes_of_keys, max_size=20))
def test_divided_range_covers_every_key_once(after: bytes, end: bytes | None, split_keys: list[bytes], found: list[bytes]) -> None:
    key_range = Range(after, end)
    parts = key_range.split(split_keys)
    for key in [*found, *split_keys, after, *([end] if end is not None else [])]:
        assert sum(is_in(key, part) for part in parts) == is_in(key, key_range)


def list_storage(store: Store, budget: int) -> tuple[list[str], list[Problem]]:
    return run_rounds(store.plan_listing(2), budget)


def run_rounds(planned: Sequence[ListingTask], budget: int) -> tuple[list[str], list[Problem]]:
    tasks, found, problems = list(planned), list[str](), list[Problem]()
    while tasks:
        for step in pickle.loads(pickle.dumps(tasks.pop())).run(budget):  # noqa: S301  (bytes made on this line)
            found += step.objects.column("key").to_pylist()
            problems += step.problems
            tasks += step.leftover
    return found, problems


def put_all(bench: S3Bench, names: Sequence[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: bench.put(key, b"x"), names))


def list_with_boto3(bench: S3Bench) -> list[str]:
    """Return the keys in byte order, without reserved ones."""
    found = bench.everything() - {""}
    return sorted((key for key in found if not key.startswith(RESERVED_PREFIX)), key=str.encode)


@pytest.mark.parametrize("versioned", [False, True])
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(found=keys)
def test_listing_with_small_budgets_equals_that_of_boto3(found: list[str], versioned: bool) -> None:
    with open_s3_bench("ceph", versioned=versioned) as bench:
        put_all(bench, [*found, *NEAR])
        for budget in (1, 3):
            met, problems = list_storage(bench.store, budget)
            assert sorted(met, key=str.encode) == list_with_boto3(bench)
            assert not problems


@pytest.fixture(scope="module", params=[False, True])
def odd_bucket(request: pytest.FixtureRequest) -> Iterator[tuple[S3Bench, list[str]]]:
    with open_s3_bench("ceph", versioned=request.param) as bench:
        put_all(bench, [*NEAR, *RESERVED, "a", "a/", "a/b", "a0", "é", "é/ü", "zz", "z%2F", "z+", "z ", "\U0001f333", "\uff5e"])
        yield bench, list_with_boto3(bench)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(split_keys=st.lists(st.text("/0az.-g~\u00e9\uff5e\U0001f333", max_size=4) | st.sampled_from([*NEAR, *RESERVED]), max_size=12))
def test_each_key_is_listed_once_for_any_split_keys(odd_bucket: tuple[S3Bench, list[str]], split_keys: list[str]) -> None:
    bench, expected = odd_bucket
    met, problems = run_rounds(bench.store.plan_listing(3, split_keys=split_keys), 10**9)
    assert sorted(met, key=str.encode) == expected
    assert not problems


def test_split_keys_divide_a_flat_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.stores.conditional.listing.SPLIT_KEY_EVERY", 10)
    monkeypatch.setattr("gc_assets.s3.pages.PAGE_KEYS", 10)
    with open_s3_bench("ceph") as bench:
        names = [f"k{number:03d}" for number in range(95)]
        put_all(bench, names)
        (first,) = bench.store.plan_listing(2)
        split_keys = [cut for step in first.run(10**9) for cut in step.split_keys]
        assert split_keys == [f"k{number:03d}" for number in range(5, 95, 10)]
        shares = [sum(step.objects.num_rows for step in task.run(10**9)) for task in bench.store.plan_listing(2, split_keys=split_keys)]
        assert sum(shares) == len(names)
        assert max(shares) < 25


def test_storage_with_few_split_keys_is_listed_in_one_task() -> None:
    with open_s3_bench("ceph") as bench:
        put_all(bench, ["a/1", "b/1", "c/1"])
        assert len(bench.store.plan_listing(2)) > 1
        assert len(bench.store.plan_listing(2, split_keys=[])) == len(bench.store.plan_listing(2, split_keys=["b/1"])) == 1
        met, problems = run_rounds(bench.store.plan_listing(2, split_keys=["b/1"]), 10**9)
        assert (sorted(met), problems) == (["a/1", "b/1", "c/1"], [])


@pytest.mark.parametrize("versioned", [False, True])
def test_names_similar_to_the_reserved_prefix_are_listed(versioned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.s3.pages.PAGE_KEYS", 2)
    nested = [f"{'d/' * depth}{name}" for depth in range(6) for name in ("a", "d0", "z", "d-/x")]
    with open_s3_bench("ceph", versioned=versioned) as bench:
        put_all(bench, [*NEAR, *RESERVED, *nested])
        met, problems = list_storage(bench.store, 3)
        assert sorted(met) == sorted([*NEAR, *nested])
        assert not problems


@pytest.mark.parametrize("versioned", [False, True])
def test_directory_marker_object_is_listed_once(versioned: bool) -> None:
    with open_s3_bench("ceph", versioned=versioned) as bench:
        names = [f"{name}{end}" for name in ("a/", "b/", "b/c/", "d//") for end in ("", "x", "y")]
        for _ in range(3):
            put_all(bench, names)
        met, problems = list_storage(bench.store, 3)
        assert sorted(met) == sorted(names)
        assert not problems


def test_object_with_the_key_of_the_storage_prefix_is_reported_and_kept() -> None:
    with open_s3_bench("ceph") as bench:
        put_all(bench, ["", "a"])
        met, problems = list_storage(bench.store, 3)
        assert met == ["a"]
        assert [(problem.kind, problem.is_incomplete) for problem in problems] == [("special", False)]


@pytest.mark.parametrize("versioned", [False, True])
def test_denied_page_makes_the_listing_incomplete(versioned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.s3.pages.PAGE_KEYS", 4)
    with open_s3_bench("ceph", versioned=versioned) as bench:
        names = [f"k{number:02d}" for number in range(20)] + [f"d/{number}" for number in range(9)]
        put_all(bench, names)
        with open_through_proxy(bench) as (store, proxy):
            assert sorted(list_storage(store, 10**9)[0]) == sorted(names)
            planner = len(proxy.requests)
        denied = 0
        for number in range(1, planner + 1):
            rule = Rule(lambda request, number=number: request.number >= number and lists(request), _deny)
            with open_through_proxy(bench, rule) as (store, _):
                try:
                    met, problems = list_storage(store, 3)
                except StoreError:  # from the planner
                    continue
            incomplete = [problem for problem in problems if problem.is_incomplete]
            assert incomplete or sorted(met) == sorted(names)
            denied += bool(incomplete)
        assert denied


@pytest.mark.parametrize("versioned", [False, True])
def test_listing_task_returns_remaining_range_beyond_the_budget(versioned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest version of a page's last key may be on the next page, so that key is left over
    too.
    """
    monkeypatch.setattr("gc_assets.s3.pages.PAGE_KEYS", 4)
    with open_s3_bench("ceph", versioned=versioned) as bench:
        names = [f"k{number:02d}" for number in range(20)]
        for _ in range(3):
            put_all(bench, names)
        task = replace(next(iter(bench.store.plan_listing(2))), ranges=(Range(),))
        *_, last = (step for step in task.run(8) if step.leftover)
        assert sum(step.objects.num_rows for step in task.run(8)) < len(names)
        left = [step for leftover in last.leftover for step in leftover.run(10**9)]
        met = [key for step in (*task.run(8), *left) for key in step.objects.column("key").to_pylist()]
        assert sorted(met) == names


def test_remaining_range_is_not_divided_if_directories_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.s3.pages.PAGE_KEYS", 4)
    with open_s3_bench("ceph") as bench:
        names = [f"{name}/{number}" for name in "abc" for number in range(9)]
        put_all(bench, names)
        deny_directories = Rule(lambda request: "delimiter" in request.query, _deny, times=10**9)
        tasks = bench.store.plan_listing(2)
        with open_through_proxy(bench, deny_directories) as (store, proxy):
            tasks = [replace(task, bucket=store.bucket) for task in tasks]
            met, problems = run_rounds(tasks, 3)
        assert any("delimiter" in request.query for request in proxy.requests)
        assert sorted(met) == names
        assert not problems


def _deny(exchange: Any) -> None:
    exchange.reply(error_answer(403, "AccessDenied"))


def test_inventory_rows_are_the_newest_versions() -> None:
    with open_s3_bench("ceph", versioned=True) as bench:
        for key in ("a", "b", "c"):
            bench.put(key, b"one")
            bench.put(key, b"newest")
        bench.client.delete_object(Bucket=bench.bucket, Key=bench.prefix + "b")
        listed = inventory(bench.store)
        assert {key: row["size_bytes"] for key, row in listed.items()} == {"a": 6, "c": 6}


@pytest.mark.parametrize(
    "one, other, shared",
    [
        (b"a/b1", b"a/b2", "a/b"),
        ("aé1".encode(), "aé2".encode(), "aé"),
        ("aé".encode(), "aè".encode(), "a"),
        (b"a\xffb1", b"a\xffb2", "a"),
        (b"", b"a", ""),
    ],
)
def test_common_prefix_has_complete_characters(one: bytes, other: bytes, shared: str) -> None:
    assert common_prefix(one, other) == shared
