"""Render the report as a self-contained HTML page. Every text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from gc_assets.core.moments import format_minute
from gc_assets.core.printable import escape
from gc_assets.core.units import count_of, format_bytes, format_usd
from gc_assets.report.drawing import Drawing, history_svg
from gc_assets.report.run_report import FigureChange, RunReport
from gc_assets.report.storage_breakdown import build_bars
from gc_assets.report.trend import Point, trend_svg


def render(report: RunReport) -> str:
    """Render a report as an HTML page.

    The page contains no scripts, sends no requests, and follows the reader's colour scheme.
    """
    return _template().render(report=report)


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("gc_assets.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    filters: dict[str, Callable[..., Any]] = {
        "count": lambda number: f"{number:,}",
        "count_of": count_of,
        "size": format_bytes,
        "when": format_minute,
        "usd": format_usd,
        "delta": _delta,
        "bars": build_bars,
        "trend": _trend,
        "history": _history,
    }
    environment.filters.update(filters)
    return environment.get_template("run.html.j2")


def _finalize(value: object) -> object:
    """Escape control characters, except in drawings, which are already escaped markup."""
    return escape(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def _delta(change: FigureChange) -> str:
    difference = change.current - change.previous
    if difference == 0:
        return "±0"
    sign = "+" if difference > 0 else "−"
    return sign + (format_bytes(abs(difference)) if change.is_bytes else f"{abs(difference):,}")


# Marking the drawings as safe is correct: they escape all text, and use none in attributes.
def _trend(points: Sequence[Point]) -> Markup:
    return Markup(trend_svg(points))  # noqa: S704  (escaped, see above)


def _history(history: Drawing, after: bool) -> Markup:
    return Markup(history_svg(history, after=after))  # noqa: S704  (escaped, see above)
