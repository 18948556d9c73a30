"""Draw the size of a storage over the last runs as a stacked area chart (SVG).

Kept bytes are at the bottom and garbage is on top. The chart uses the colours of the storage
breakdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final
from xml.sax.saxutils import escape

from gc_assets.core.units import format_bytes
from gc_assets.report.storage_breakdown import COLOURS, Tone

# The width of a phone screen, so that the text is readable without scrolling.
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 340, 170, 52, 10, 24
RIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Point:
    """The size of a storage in one run, in bytes. Only expired history needs the `held` bytes."""

    run_date: date
    kept: int
    held: int
    garbage: int

    @property
    def stored(self) -> int:
        return self.kept + self.held + self.garbage


def trend_svg(points: Sequence[Point]) -> str:
    """Draw the chart as an `<svg>` element, whose text has the colour of the page's text."""
    most = max((point.stored for point in points), default=0) or 1
    days = [point.run_date.toordinal() for point in points]
    span = max(days[-1] - days[0], 1)
    across = [LEFT + (WIDTH - LEFT - RIGHT) * (day - days[0]) / span for day in days]

    def height(size_bytes: int) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - size_bytes / most)

    below = [0] * len(points)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="system-ui, sans-serif" font-size="11">'
        f"<title>{escape(_sentence(points))}</title>"
    ]
    shares: list[tuple[Tone, list[int]]] = [
        ("kept", [point.kept for point in points]),
        ("held", [point.held for point in points]),
        ("garbage", [point.garbage for point in points]),
    ]
    for tone, sizes in shares:
        above = [lower + size for lower, size in zip(below, sizes, strict=True)]
        edge = [f"{x:.1f},{height(size):.1f}" for x, size in zip(across, above, strict=True)]
        back = [f"{x:.1f},{height(size):.1f}" for x, size in zip(reversed(across), reversed(below), strict=True)]
        parts.append(f'<polygon points="{" ".join([*edge, *back])}" fill="{COLOURS[tone]}" fill-opacity="0.8"/>')
        below = above
    return "".join([*parts, *_axes(points, most), "</svg>"])


def _axes(points: Sequence[Point], most: int) -> Iterator[str]:
    floor = HEIGHT - BOTTOM
    yield f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}" stroke="currentColor" stroke-opacity="0.4"/>'
    for size_bytes, y in ((most, TOP + 8), (0, floor)):
        yield f'<text x="{LEFT - 5}" y="{y}" text-anchor="end" fill="currentColor">{format_bytes(size_bytes)}</text>'
    for point, x, anchor in ((points[0], LEFT, "start"), (points[-1], WIDTH - RIGHT, "end")):
        yield f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}" fill="currentColor">{point.run_date}</text>'


def _sentence(points: Sequence[Point]) -> str:
    first, last = points[0], points[-1]
    return (
        f"{len(points)} runs: from {format_bytes(first.stored)} on {first.run_date} to {format_bytes(last.stored)} on {last.run_date}, "
        f"of which {format_bytes(last.held + last.garbage)} garbage"
    )
