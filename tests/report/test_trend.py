"""The trend of the storage breakdown over the runs."""

from __future__ import annotations

from datetime import date, timedelta
from xml.etree import ElementTree

from gc_assets.report.trend import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, trend_svg

FIRST = date(2026, 11, 1)
POINTS = (Point(FIRST, 600, 100, 0), Point(FIRST + timedelta(days=1), 600, 200, 200), Point(FIRST + timedelta(days=4), 500, 0, 300))


def areas(svg: str) -> list[list[tuple[float, float]]]:
    """Return the corners of the area of each share: along its upper edge, and back along its lower
    edge.
    """
    found = ElementTree.fromstring(svg).iter("polygon")  # noqa: S314  (drawn a line above, not read from anywhere)
    return [[tuple(map(float, pair.split(","))) for pair in area.get("points", "").split()] for area in found]  # pyright: ignore[reportReturnType]


def test_storage_shares_are_stacked_to_the_total() -> None:
    kept, held, garbage = areas(trend_svg(POINTS))
    points = len(POINTS)
    assert garbage[1][1] == TOP
    assert [y for _, y in kept[points:]] == [HEIGHT - BOTTOM] * points
    assert held[points:] == kept[:points][::-1]
    assert garbage[points:] == held[:points][::-1]
    height = HEIGHT - BOTTOM - TOP
    assert kept[0][1] == HEIGHT - BOTTOM - height * 600 / 1000


def test_gaps_are_proportional_to_time() -> None:
    xs = [x for x, _ in areas(trend_svg(POINTS))[0][:3]]
    assert xs == [LEFT, LEFT + (WIDTH - RIGHT - LEFT) / 4, WIDTH - RIGHT]


def test_empty_storage_is_drawn_as_flat_line() -> None:
    empty = (Point(FIRST, 0, 0, 0), Point(FIRST + timedelta(days=1), 0, 0, 0))
    assert {y for area in areas(trend_svg(empty)) for _, y in area} == {HEIGHT - BOTTOM}
