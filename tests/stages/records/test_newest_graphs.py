"""Which earlier graphs the next commit graph is based on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.stages.records.newest_graphs import find_newest_graphs, list_newest_graphs
from gc_assets.state.journal import State
from gc_assets.state.schemas import COMMIT_GRAPH
from tests.state.publisher import DAY, NOW, publish_empty

LAKE = "sales"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    lake = IcechunkLakeConfig(name=LAKE, kind="icechunk", location=f"file://{tmp_path}/repository")
    storage = StorageConfig(name="warehouse", location=f"file://{tmp_path}/")
    return Config(state=str(tmp_path / "state"), storages=(storage,), lakes=(lake,))


@pytest.fixture
def state(config: Config) -> State:
    return State.of(config)


def publish(state: State, *bases: str, days: int = 0) -> str:
    return publish_empty(state, COMMIT_GRAPH.name, DAY, LAKE, at=NOW + timedelta(days=days), commits=0, bases=bases)


def publish_without_bases(state: State, days: int = 0) -> str:
    return publish_empty(state, COMMIT_GRAPH.name, DAY, LAKE, at=NOW + timedelta(days=days), commits=0)


def newest(state: State) -> set[str]:
    return {run.run_id for run in list_newest_graphs(state, LAKE)}


def test_lake_without_runs_has_no_commit_graph(state: State) -> None:
    assert newest(state) == set()


def test_last_commit_graph_of_chain_is_newest_at_any_time(state: State) -> None:
    first = publish(state)
    in_future = publish(state, first, days=25)
    last = publish(state, in_future, days=1)
    assert newest(state) == {last}


def test_graphs_of_overlapping_runs_stay_newest_until_run_merges_them(state: State) -> None:
    first = publish(state)
    second = publish(state, first, days=1)
    third, slow = publish(state, second, days=3), publish(state, first, days=2)
    assert newest(state) == {third, slow}
    last = publish(state, third, slow, days=4)
    assert newest(state) == {last}


def test_graph_of_earlier_release_is_newest_until_run_builds_on_it(state: State) -> None:
    publish_without_bases(state)
    last = publish_without_bases(state, days=1)
    assert newest(state) == {last}
    next_one = publish(state, last, days=2)
    assert newest(state) == {next_one}


def test_commit_graph_is_newest_again_if_its_successor_is_missing(state: State) -> None:
    first = publish(state)
    second = publish(state, first, days=1)
    state.files.delete_directory(f"{LAKE}/{COMMIT_GRAPH.name}/run_date={DAY}/{second}")
    state.files.delete(f"{LAKE}/{COMMIT_GRAPH.name}/_index.json")
    assert newest(state) == {first}


def test_prune_keeps_the_newest_graphs_of_overlapping_runs(config: Config, state: State) -> None:
    first = publish(state)
    third, slow = publish(state, first, days=2), publish(state, first, days=1)
    removed = state.prune(0, Clock(NOW + timedelta(days=400)), used=find_newest_graphs(config))
    assert [Path(path).name for path in removed] == [first]
    assert newest(state) == {third, slow}
