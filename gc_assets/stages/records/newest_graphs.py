"""Find the commit graphs that the next run of a lake is based on."""

from __future__ import annotations

from gc_assets.config.models import Config
from gc_assets.state.index import PastRun
from gc_assets.state.journal import State
from gc_assets.state.schemas import COMMIT_GRAPH
from gc_assets.state.summaries import GraphBases


def list_newest_graphs(state: State, lake_name: str) -> list[PastRun]:
    """Return the graphs that together contain the commits of all earlier graphs.

    These are the graphs from which no other graph was continued, usually a single one. If runs
    overlapped, there are several. Times do not give the order, because a rehearsal, or a clock that
    was ahead, publishes a graph in the future.

    Earlier releases did not record on which graphs a graph is based. Of their graphs, only the
    newest one is considered.
    """
    runs = sorted(state.history(lake_name, COMMIT_GRAPH.name), key=lambda run: run.entry.created_at)
    bases = {run.run_id: run.summary(GraphBases).bases for run in runs}
    included = {run_id for of_run in bases.values() for run_id in of_run or ()}
    unrecorded = [run for run in runs if bases[run.run_id] is None]
    return [run for run in runs if run.run_id not in included and (bases[run.run_id] is not None or run in unrecorded[-1:])]


def find_newest_graphs(config: Config) -> frozenset[str]:
    """Return the run ids of the graphs that the next run of each lake is based on."""
    state = State.of(config)
    return frozenset(run.run_id for lake in config.lakes for run in list_newest_graphs(state, lake.name))
