"""Draw the storage breakdown (live files, garbage and other categories) as SVG.

The first bar represents the whole storage, and each further bar one of its categories. The colours
are readable on light and dark backgrounds.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from xml.sax.saxutils import escape

from gc_assets.core.units import format_bytes

Tone = Literal["total", "kept", "held", "garbage"]
COLOURS: Final[dict[Tone, str]] = {"total": "#7c8798", "kept": "#2f9e6e", "held": "#d08a1d", "garbage": "#d1495b"}
INK: Final = "#7c8798"

WIDTH, ROW, LABEL, FIGURE = 760, 30, 190, 190


@dataclass(frozen=True, slots=True)
class Step:
    """The contents of a whole storage, or of one of the categories that add up to it."""

    label: str
    size_bytes: int
    files: int
    tone: Tone


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of a step. Its position and length are fractions of the available width."""

    step: Step
    left: float
    length: float


def build_bars(steps: Sequence[Step]) -> list[Bar]:
    """Lay out the bars end to end, scaled so that the total takes the whole width."""
    scale, offset, found = max((step.size_bytes for step in steps), default=0) or 1, 0.0, list[Bar]()
    for step in steps:
        length = step.size_bytes / scale
        found.append(Bar(step, 0.0 if step.tone == "total" else min(offset, 1.0), length))
        offset += 0.0 if step.tone == "total" else length
    return found


def storage_breakdown_svg(steps: Sequence[Step]) -> str:
    """Draw the storage breakdown as an `<svg>` element.

    Unless a category is empty, its bar is at least 2 pixels wide, because a small amount of garbage
    would otherwise be invisible.
    """
    height = ROW * len(steps) + 8
    span = WIDTH - LABEL - FIGURE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13"><title>{escape(_sentence(steps))}</title>'
    ]
    for index, bar in enumerate(build_bars(steps)):
        step, top = bar.step, ROW * index + 4
        left = LABEL + (0.0 if step.tone == "total" else min(span * bar.left, span - 2))
        shown = max(span * bar.length, 2.0) if step.files else 0.0
        middle = top + ROW / 2
        parts.append(
            f'<text x="{LABEL - 10}" y="{middle}" text-anchor="end" dominant-baseline="middle" fill="{INK}">{escape(step.label)}</text>'
            f'<rect x="{left:.1f}" y="{top + 4}" width="{shown:.1f}" height="{ROW - 10}" rx="2" fill="{COLOURS[step.tone]}"/>'
            f'<text x="{WIDTH - FIGURE + 10}" y="{middle}" dominant-baseline="middle" fill="{INK}">'
            f"{format_bytes(step.size_bytes)} · {step.files:,} file{'' if step.files == 1 else 's'}</text>"
        )
    return "".join([*parts, "</svg>"])


def data_uri(svg: str) -> str:
    """Encode a drawing as a data URI, for Markdown and `<img>`."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _sentence(steps: Sequence[Step]) -> str:
    return ", ".join(f"{step.label} {format_bytes(step.size_bytes)}" for step in steps)
