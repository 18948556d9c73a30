"""Draw a commit history as text, newest commit first, in the style of `git log --graph`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gc_assets.core.printable import show
from gc_assets.report.drawing import Drawing, Node

ID_CHARACTERS = 20  # the length of an Icechunk id; Iceberg ids have at most 19 digits


@dataclass(frozen=True, slots=True)
class GraphLine:
    """A line of a commit graph.

    Attributes:
        lanes: The drawing, such as `| *`.
        text: The description of the commit at `*`, or "" if the line only merges lanes.
        lanes_below: The lanes to draw next to the text if it has to be wrapped.
    """

    lanes: str
    text: str = ""
    lanes_below: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.lanes, self.text) if part)


def text_graph(history: Drawing, *, after: bool) -> Iterator[GraphLine]:
    """Draw the commits, one on each line. Additional lines merge lanes at forks.

    Args:
        history: The history.
        after: Draw the history as it will be after expiry.
    """
    lanes: list[str | None] = []
    for node in reversed(history.nodes):
        if after and node.leaves:
            continue
        awaiting = [index for index, awaited in enumerate(lanes) if awaited == node.commit_id]
        if not awaiting:
            awaiting = [_free_lane(lanes)]
            lanes[awaiting[0]] = node.commit_id
        for other in awaiting[1:]:
            lanes[other] = None
            yield GraphLine(_merge_line(lanes, awaiting[0], other))
        drawn = _draw_lanes(lanes, awaiting[0])
        lanes[awaiting[0]] = node.parent_after if after else node.parent
        yield GraphLine(drawn, _commit_text(node, after=after), _draw_lanes(lanes))
        while lanes and lanes[-1] is None:
            lanes.pop()
    if history.hidden:
        yield GraphLine("", f"and {history.hidden:,} older commits")


def _draw_lanes(lanes: Sequence[str | None], commit_in: int | None = None) -> str:
    return "".join("* " if index == commit_in else "| " if awaited else "  " for index, awaited in enumerate(lanes)).rstrip()


def _free_lane(lanes: list[str | None]) -> int:
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _merge_line(lanes: list[str | None], into: int, other: int) -> str:
    """Draw the merge of two lanes as `|/`, or as `|_|/` if other lanes are between them."""
    characters = [mark for awaited in lanes for mark in ("|" if awaited else " ", " ")]
    for position in range(2 * into + 1, 2 * other - 1):
        characters[position] = "_" if characters[position] == " " else characters[position]
    characters[2 * other - 1] = "/"
    return "".join(characters).rstrip()


def _commit_text(node: Node, *, after: bool) -> str:
    refs = f" ({', '.join(map(show, node.labels))})" if node.labels else ""
    edited = f"  parent was {node.parent[:ID_CHARACTERS]}" if after and node.parent and node.parent != node.parent_after else ""
    reason = node.tip.rpartition("\n")[2]
    return f"{node.commit_id[:ID_CHARACTERS]}{refs}  {reason}{edited}"
