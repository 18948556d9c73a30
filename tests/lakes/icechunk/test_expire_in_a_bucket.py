"""Expiry that is killed after any request to an S3 server: the repository is valid, and another expiry completes it."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gc_assets.config.connections import Connections
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.stores.store import open_objects
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.builder import DocumentTree, document_tree
from tests.lakes.icechunk.icechunk_lakes import expire, parents_now, plan_actions, verdicts
from tests.lakes.icechunk.test_expire_kill import AS_OF, START
from tests.process_kills import PROCESSES
from tests.s3.proxy import Rule, call_after, nth, run_proxy
from tests.s3.servers import shared_server
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = in_turn


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> DocumentTree:
    built = document_tree(tmp_path_factory.mktemp("killed") / "repo", START)
    built.builder.repo.create_branch("old", built.ids[7])
    return built


def lake_in(bench: S3Bench, connections: Connections, tree: DocumentTree) -> IcechunkLake:
    retention = {"default": {"keep": tree.cutoff.isoformat()}, "tags": "policy"}
    expiry = {"delete_expired_tags": True, "delete_expired_branches": True}
    location = f"s3://{bench.bucket}/{bench.prefix}"
    settings = {"name": "weather", "kind": "icechunk", "location": location, "retention": retention, "expiry": expiry}
    return IcechunkLake(IcechunkLakeConfig.model_validate(settings), open_objects(connections))


def put(bench: S3Bench, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            bench.put(path.relative_to(folder).as_posix(), path.read_bytes())


def content(bench: S3Bench) -> dict[str, bytes | None]:
    return {key: bench.get(key) for key in bench.everything()}


def test_expiry_killed_at_any_request_is_completed_by_next_run(tree: DocumentTree) -> None:
    """Kill at every 25th request, with `make test DEPTH=all` at every request."""
    with open_s3_bench("versity") as bench:
        put(bench, tree.builder.path)
        lake = lake_in(bench, bench.connections, tree)
        plan = plan_actions(lake, AS_OF)
        assert verdicts(expire(lake, AS_OF, plan)) == {"done"}
        wanted = content(bench)
    for step in count(1, example_count(25, 1)):
        with open_s3_bench("versity") as bench:
            put(bench, tree.builder.path)
            lake, children = lake_in(bench, bench.connections, tree), list[Any]()
            killing = call_after(lambda children=children: os.kill(children[0].pid, signal.SIGKILL))
            with run_proxy(shared_server("versity"), Rule(nth(step), killing)) as proxy:
                proxied_lake = lake_in(bench, Connections.of(proxy.server.settings), tree)
                children.append(PROCESSES.Process(target=expire, args=(proxied_lake, AS_OF, plan)))
                children[0].start()
                children[0].join(60)
            assert children[0].exitcode in {0, -signal.SIGKILL}
            assert parents_now(lake, AS_OF), "every snapshot reads"
            assert verdicts(expire(lake, AS_OF, plan)) <= {"done", "absent"}
            assert content(bench) == wanted, step
        if children[0].exitcode == 0:
            break
    assert step > 20
