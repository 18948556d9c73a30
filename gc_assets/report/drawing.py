"""A commit history as SVG, before and after expiry.

Pure: nodes in, text out. Time runs from left to right by generation. A commit takes the lane of its
first parent, and a fork opens a new lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

# A longer history shows its newest commits; a drawing beyond this helps nobody.
MAX_COMMITS: Final = 60
STEP, LANE, MARGIN, RADIUS, LABEL = 38, 40, 22, 7, 190
# A wider drawing than its frame shrinks to this share of its size, and scrolls inside the frame
# beyond that: smaller text is not read.
MIN_SCALE: Final = 0.6
CHARACTER: Final = 6.2  # width of one in the labels' font, about
# The colours of these classes outside the page: mid-tones that read on light and dark ground.
STANDALONE_STYLE: Final = (
    "<style>.kept{fill:#2f9e6e}.held{fill:#d08a1d}.garbage{fill:#d1495b}.edge{fill:none;stroke:#7c8798;stroke-width:1.6}"
    ".edited{stroke:#5b6ee1;stroke-dasharray:4 3}text{fill:#7c8798;font:11px system-ui,sans-serif}</style>"
)
STATE_CLASS: Final = {"retained": "kept", "expired": "held", "dangling": "garbage"}


@dataclass(frozen=True, slots=True)
class Node:
    """A commit. `parent` is its first parent. `parent_after` is its parent after the expiry plan is
    carried out.
    """

    commit_id: str
    parent: str | None
    parent_after: str | None
    generation: int
    state: str
    leaves: bool
    tip: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """The commits of one table or repository, oldest first. `hidden` is the number of older commits
    that are not drawn.
    """

    name: str
    nodes: tuple[Node, ...]
    hidden: int = 0

    @property
    def changes(self) -> bool:
        """True if the expiry plan would change the drawing."""
        return any(node.leaves or node.parent != node.parent_after for node in self.nodes)


def history_svg(history: Drawing, *, after: bool) -> str:
    """Returns an `<svg>` with one circle per commit. The classes `kept`, `held` and `garbage`
    colour the circles, and titles name them.
    """
    nodes = [node for node in history.nodes if not (after and node.leaves)]
    parents = {node.commit_id: node.parent_after if after else node.parent for node in nodes}
    column = _columns(history.nodes)
    lanes = _lanes(nodes, parents)
    width = MARGIN * 2 + LABEL + STEP * max(column.values(), default=0)
    height = MARGIN * 2 + LANE * max(lanes.values(), default=0)
    at = {node.commit_id: (MARGIN + STEP * column[node.commit_id], MARGIN + LANE * lanes[node.commit_id]) for node in nodes}
    said = f"{history.name}: {len(nodes)} commits " + ("after expiry" if after else "now")
    parts = [
        f'<svg class="history" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="min-width:{width * MIN_SCALE:.0f}px" role="img"><title>{escape(said)}</title>'
    ]
    for node in nodes:
        parent = parents[node.commit_id]
        if parent in at:
            edited = " edited" if after and parent != node.parent else ""
            parts.append(f'<path class="edge{edited}" d="{_curve(*at[parent], *at[node.commit_id])}"/>')
    for node in nodes:
        x, y = at[node.commit_id]
        circle = f'<circle class="{STATE_CLASS[node.state]}" cx="{x}" cy="{y}" r="{RADIUS}">'
        parts.append(f"{circle}<title>{escape(node.tip)}</title></circle>")
    parts += _labels([node for node in nodes if node.labels], at)
    return "".join([*parts, "</svg>"])


def standalone_svg(svg: str) -> str:
    """Returns the drawing as an image of its own, for use outside the page whose style sheet
    colours it.
    """
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace("<title>", f"{STANDALONE_STYLE}<title>", 1)


def _labels(nodes: Sequence[Node], at: dict[str, tuple[int, int]]) -> Iterator[str]:
    """Writes the names of refs above their commits, or below where the label before reaches that
    far.
    """
    ends: dict[int, float] = {}
    for node in nodes:
        x, y = at[node.commit_id]
        text = ", ".join(_short(label) for label in node.labels[:2]) + (f" +{len(node.labels) - 2}" if len(node.labels) > 2 else "")
        above = ends.get(y, 0) <= x
        if above:
            ends[y] = x + RADIUS + CHARACTER * len(text)
        yield f'<text x="{x - RADIUS}" y="{y - RADIUS - 4 if above else y + RADIUS + 12}">{escape(text)}</text>'


def _columns(nodes: Sequence[Node]) -> dict[str, int]:
    """Returns the column of each generation, without gaps."""
    places = {generation: place for place, generation in enumerate(sorted({node.generation for node in nodes}))}
    return {node.commit_id: places[node.generation] for node in nodes}


def _lanes(nodes: Sequence[Node], parents: dict[str, str | None]) -> dict[str, int]:
    lanes: dict[str, int] = {}
    continued: set[str] = set()
    for node in nodes:
        parent = parents[node.commit_id]
        if parent is not None and parent in lanes and parent not in continued:
            continued.add(parent)
            lanes[node.commit_id] = lanes[parent]
        else:
            lanes[node.commit_id] = max(lanes.values(), default=-1) + 1
    return lanes


def _curve(x1: int, y1: int, x2: int, y2: int) -> str:
    """Returns a line that leaves the parent's lane at once and then follows the child's own, where
    no other commit lies.
    """
    turn = x1 + STEP
    return f"M{x1} {y1} C{x1 + STEP // 2} {y1} {x1 + STEP // 2} {y2} {turn} {y2} L{x2} {y2}"


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:23] + "…"
