"""Draw a commit history as SVG, before or after the planned expiry, without any I/O.

Time runs from left to right. A commit continues the lane (row) of its first parent, and each fork
opens a new lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape as escape_xml

from gc_assets.core.printable import escape
from gc_assets.core.units import count_of

# With more commits, the drawing becomes unreadable. Only the newest ones are drawn.
MAX_COMMITS: Final = 60
STEP, LANE, MARGIN, RADIUS, LABEL = 38, 40, 22, 7, 190
# If a drawing is wider than its frame, it is scaled down, but not below this fraction, because the
# text would become too small. Beyond that, it scrolls.
MIN_SCALE: Final = 0.6
CHARACTER: Final = 6.2  # average character width of the label font
# Mid-tones for drawings outside of the page, which must be readable on light and dark backgrounds.
STANDALONE_STYLE: Final = (
    "<style>.kept{fill:#2f9e6e}.held{fill:#d08a1d}.garbage{fill:#d1495b}.edge{fill:none;stroke:#7c8798;stroke-width:1.6}"
    ".edited{stroke:#5b6ee1;stroke-dasharray:4 3}text{fill:#7c8798;font:11px system-ui,sans-serif}</style>"
)
STATE_CLASS: Final = {"retained": "kept", "expired": "held", "dangling": "garbage"}


@dataclass(frozen=True, slots=True)
class Node:
    """A commit in the drawing.

    Attributes:
        commit_id: The id of the commit.
        parent: The first parent at present.
        parent_after: The first parent after the planned history edits.
        generation: The generation in the commit graph, which determines the column.
        state: `retained`, `expired` or `dangling`.
        leaves: Whether the planned expiry removes the commit.
        tip: The tooltip, with id, time, message and the retention rule that applied.
        labels: The refs that point to the commit.
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
    """The newest commits of a table or repository.

    Attributes:
        name: The name of the table or repository.
        nodes: The commits, oldest first.
        hidden: How many older commits are not drawn.
    """

    name: str
    nodes: tuple[Node, ...]
    hidden: int = 0

    @property
    def changes(self) -> bool:
        """Whether the planned expiry changes anything in the drawing."""
        return any(node.leaves or node.parent != node.parent_after for node in self.nodes)


def history_svg(history: Drawing, *, after: bool) -> str:
    """Draw the history as an `<svg>` element with one circle per commit.

    The state of a commit is shown by the CSS class `kept`, `held` or `garbage`, and described in a
    tooltip.
    """
    nodes = [node for node in history.nodes if not (after and node.leaves)]
    parents = {node.commit_id: node.parent_after if after else node.parent for node in nodes}
    column = _columns(history.nodes)
    lanes = _lanes(nodes, parents)
    width = MARGIN * 2 + LABEL + STEP * max(column.values(), default=0)
    height = MARGIN * 2 + LANE * max(lanes.values(), default=0)
    positions = {node.commit_id: (MARGIN + STEP * column[node.commit_id], MARGIN + LANE * lanes[node.commit_id]) for node in nodes}
    title = f"{history.name}: {count_of(len(nodes), 'commit')} " + ("after expiry" if after else "now")
    parts = [
        f'<svg class="history" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="min-width:{width * MIN_SCALE:.0f}px" role="img"><title>{_to_xml(title)}</title>'
    ]
    for node in nodes:
        parent = parents[node.commit_id]
        if parent in positions:
            edited = " edited" if after and parent != node.parent else ""
            parts.append(f'<path class="edge{edited}" d="{_curve(*positions[parent], *positions[node.commit_id])}"/>')
    for node in nodes:
        x, y = positions[node.commit_id]
        circle = f'<circle class="{STATE_CLASS[node.state]}" cx="{x}" cy="{y}" r="{RADIUS}">'
        parts.append(f"{circle}<title>{_to_xml(node.tip)}</title></circle>")
    parts += _labels([node for node in nodes if node.labels], positions)
    return "".join([*parts, "</svg>"])


def standalone_svg(svg: str) -> str:
    """Turn a drawing of the page into an image with its own style, for use outside the page."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace("<title>", f"{STANDALONE_STYLE}<title>", 1)


def _labels(nodes: Sequence[Node], positions: dict[str, tuple[int, int]]) -> Iterator[str]:
    """Yield labels with ref names, each above its commit, or under it to avoid an overlap."""
    ends: dict[int, float] = {}
    for node in nodes:
        x, y = positions[node.commit_id]
        text = ", ".join(_short(label) for label in node.labels[:2]) + (f" +{len(node.labels) - 2}" if len(node.labels) > 2 else "")
        above = ends.get(y, 0) <= x
        if above:
            ends[y] = x + RADIUS + CHARACTER * len(text)
        yield f'<text x="{x - RADIUS}" y="{y - RADIUS - 4 if above else y + RADIUS + 12}">{_to_xml(text)}</text>'


def _columns(nodes: Sequence[Node]) -> dict[str, int]:
    """Assign a column to each commit by its generation, skipping generations without commits."""
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
    """Draw a line that changes lanes right after the parent, so that it does not cross commits."""
    turn = x1 + STEP
    return f"M{x1} {y1} C{x1 + STEP // 2} {y1} {x1 + STEP // 2} {y2} {turn} {y2} L{x2} {y2}"


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:23] + "…"


def _to_xml(text: str) -> str:
    return escape_xml(escape(text, keep="\n"))
