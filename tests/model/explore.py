"""Explore a model breadth-first. Each state is visited once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Exploration(Generic[S]):
    """The number of visited states, and the trace to the first broken promise."""

    states: int
    trace: tuple[str, ...] = ()
    promise: str | None = None


@contextmanager
def without_collector() -> Generator[None]:
    """Disable Python's garbage collector, which would scan millions of live states repeatedly."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@without_collector()
def explore(
    start: S,
    successors: Callable[[S], Iterable[tuple[str, S | str]]],
    find_broken_promise: Callable[[S], str | None],
    limit: int = 10**9,
) -> Exploration[S]:
    """Visit every state reachable from `start`, nearest first, until a promise breaks or `limit`
    states are visited.
    """
    origins: dict[int, tuple[int, str]] = {hash(start): (0, "")}
    level = [start]

    def build_trace(state: S, *last: str) -> tuple[str, ...]:
        events, at = list(last), hash(state)
        while origins[at][1]:
            before, event = origins[at]
            events.insert(0, event)
            at = before
        return tuple(events)

    while level and len(origins) < limit:
        after: list[S] = []
        for state in level:
            origin = hash(state)
            for event, following in successors(state):
                if isinstance(following, str):
                    return Exploration(len(origins), build_trace(state, event), following)
                identity = hash(following)
                if identity in origins:
                    continue
                origins[identity] = (origin, event)
                promise = find_broken_promise(following)
                if promise is not None:
                    return Exploration(len(origins), build_trace(following), promise)
                after.append(following)
        level = after
    return Exploration(len(origins))
