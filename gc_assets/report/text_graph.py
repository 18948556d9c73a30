"""Draw a commit history as text, newest first, like `git log --graph`. Pure: nodes in, lines out."""

from __future__ import annotations

from collections.abc import Iterator

from gc_assets.core.printable import show
from gc_assets.report.drawing import Drawing, Node

ID_CHARACTERS = 20  # the length of an Icechunk id; Iceberg ids have at most 19 digits


def text_graph(history: Drawing, *, after: bool) -> Iterator[str]:
    """Yield one line per commit, and one line where lanes merge.

    Args:
        after: Draw the history after expiry.
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
            yield _merge_line(lanes, awaiting[0], other)
        drawn = "".join("* " if index == awaiting[0] else "| " if awaited else "  " for index, awaited in enumerate(lanes)).rstrip()
        yield f"{drawn} {_commit_text(node, after=after)}"
        lanes[awaiting[0]] = node.parent_after if after else node.parent
        while lanes and lanes[-1] is None:
            lanes.pop()
    if history.hidden:
        yield f"and {history.hidden:,} older commits"


def _free_lane(lanes: list[str | None]) -> int:
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _merge_line(lanes: list[str | None], into: int, other: int) -> str:
    """Return `|/`, or `|_|/` if there are lanes in between."""
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
