"""Expiry of a repository of spec version 2 on an S3 server: a commit before any request, and a kill after any request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gc_assets.config.connections import Connections
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.icechunk.repo_info import RepoInfo, parse_repo
from gc_assets.stores.store import open_objects
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.icechunk_lakes import expire, plan_actions, verdicts
from tests.lakes.icechunk.v2.builder import DocumentTree, document_tree, set_value
from tests.lakes.icechunk.v2.library import Library
from tests.process_kills import PROCESSES
from tests.s3.proxy import Rule, call_after, call_before, nth, run_proxy
from tests.s3.servers import REGION, shared_server
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def tree(icechunk2: Library, tmp_path_factory: pytest.TempPathFactory) -> DocumentTree:
    return document_tree(icechunk2, tmp_path_factory.mktemp("bucket") / "repo", START)


def lake_in(bench: S3Bench, connections: Connections, tree: DocumentTree) -> IcechunkLake:
    at = tree.cutoff.isoformat()
    settings = {
        "name": "weather",
        "kind": "icechunk",
        "location": f"s3://{bench.bucket}/{bench.prefix}",
        "retention": {"default": {"keep": at}, "dangling": at},
    }
    return IcechunkLake(IcechunkLakeConfig.model_validate(settings), open_objects(connections))


def put(bench: S3Bench, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            bench.put(path.relative_to(folder).as_posix(), path.read_bytes())


def repo_of(bench: S3Bench) -> RepoInfo:
    return parse_repo("repo", bench.get("repo") or b"")


def target_of(bench: S3Bench) -> dict[str, Any]:
    server = bench.server
    return {
        "bucket": bench.bucket,
        "prefix": bench.prefix.rstrip("/"),
        "endpoint_url": server.endpoint,
        "allow_http": True,
        "force_path_style": True,
        "region": REGION,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
    }


def commit(library: Library, target: dict[str, Any], committed: list[str]) -> None:
    committed.append(library.call(target, "commit", writes=[set_value("values", 1, 5)], message="during"))


def test_expiry_loses_no_commit_made_before_any_request(icechunk2: Library, tree: DocumentTree) -> None:
    for step in count(1, example_count(4, 1)):
        with open_s3_bench("versity", prefix="lake/") as bench:
            put(bench, tree.builder.path)
            target = target_of(bench)
            plan = plan_actions(lake_in(bench, bench.connections, tree), AS_OF)
            committed: list[str] = []
            writing = call_before(partial(commit, icechunk2, target, committed))
            with run_proxy(shared_server("versity"), Rule(nth(step), writing)) as proxy:
                outcomes = expire(lake_in(bench, Connections.of(proxy.server.settings), tree), AS_OF, plan)
            assert verdicts(outcomes) == {"done"}
            info = repo_of(bench)
            assert not {action.snapshot_id for action in plan if action.action == "remove_snapshot"} & info.snapshots.keys()
            if committed:
                assert info.branches["main"] == committed[0]
                icechunk2.call(target, "open")
                ancestry = icechunk2.call(target, "ancestry", snapshot=committed[0])
                assert [item[3] for item in ancestry[:2]] == ["during", "snapshot 14"]
            assert all(isinstance(value, int) for chunks in icechunk2.call(target, "contents").values() for value in chunks.values())
        if not committed:
            break
    assert step > 8


def test_expiry_killed_at_any_request_is_completed_by_next_run(tree: DocumentTree) -> None:
    with open_s3_bench("versity") as bench:
        put(bench, tree.builder.path)
        lake = lake_in(bench, bench.connections, tree)
        before, plan = repo_of(bench), plan_actions(lake, AS_OF)
        assert verdicts(expire(lake, AS_OF, plan)) == {"done"}
        wanted = repo_of(bench).snapshots
    for step in count(1, example_count(4, 1)):
        with open_s3_bench("versity") as bench:
            put(bench, tree.builder.path)
            lake, children = lake_in(bench, bench.connections, tree), list[Any]()
            killing: Callable[..., Any] = call_after(lambda children=children: os.kill(children[0].pid, signal.SIGKILL))
            with run_proxy(shared_server("versity"), Rule(nth(step), killing)) as proxy:
                proxied = lake_in(bench, Connections.of(proxy.server.settings), tree)
                children.append(PROCESSES.Process(target=expire, args=(proxied, AS_OF, plan)))
                children[0].start()
                children[0].join(60)
            assert children[0].exitcode in {0, -signal.SIGKILL}
            assert repo_of(bench).snapshots in (before.snapshots, wanted)
            assert verdicts(expire(lake, AS_OF, plan)) in ({"done"}, {"absent"})
            assert repo_of(bench).snapshots == wanted
        if children[0].exitcode == 0:
            break
    assert step > 8
