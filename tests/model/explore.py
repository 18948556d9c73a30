"""Explores a model breadth first, every state once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Explored(Generic[S]):
    """How many states were seen, and the events that lead to the first breach, with the promise that it breaks."""

    states: int
    trace: tuple[str, ...] = ()
    promise: str | None = None


@contextmanager
def without_collector() -> Generator[None]:
    """Python's garbage collector would visit millions of states, none of which is garbage, again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@without_collector()
def explore(
    start: S,
    successors: Callable[[S], Iterable[tuple[str, S | str]]],
    broken: Callable[[S], str | None],
    most: int = 10**9,
) -> Explored[S]:
    """Visits every state that can be reached from `start`, the near ones first, until a promise breaks or `most` states were seen."""
    came: dict[int, tuple[int, str]] = {hash(start): (0, "")}
    level = [start]

    def told(state: S, *last: str) -> tuple[str, ...]:
        events, at = list(last), hash(state)
        while came[at][1]:
            before, event = came[at]
            events.insert(0, event)
            at = before
        return tuple(events)

    while level and len(came) < most:
        after: list[S] = []
        for state in level:
            for event, following in successors(state):
                if isinstance(following, str):
                    return Explored(len(came), told(state, event), following)
                identity = hash(following)
                if identity in came:
                    continue
                came[identity] = (hash(state), event)
                promise = broken(following)
                if promise is not None:
                    return Explored(len(came), told(following), promise)
                after.append(following)
        level = after
    return Explored(len(came))
