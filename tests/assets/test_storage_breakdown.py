"""The storage breakdown as a drawing and as a table."""

import base64
from itertools import pairwise
from xml.etree import ElementTree

from gc_assets.assets.markdown import breakdown_steps, storage_breakdown_markdown
from gc_assets.core.plan import Amount
from gc_assets.report.storage_breakdown import FIGURE, LABEL, WIDTH, Step, data_uri, storage_breakdown_svg
from gc_assets.state.summaries import OrphanFilesSummary

SUMMARY = OrphanFilesSummary.model_construct(
    storage_breakdown={
        "live": Amount(files=60, bytes=6_000),
        "unowned": Amount(files=5, bytes=500),
        "young": Amount(files=10, bytes=1_000),
        "candidate": Amount(files=25, bytes=2_500),
    },
    by_reason={"expired/sales": Amount(files=20, bytes=2_000), "unreferenced/sales": Amount(files=5, bytes=500)},
)
SVG = "{http://www.w3.org/2000/svg}"


def parse_svg(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  (drawn a line above, not read from anywhere)


def bars(svg: str) -> list[tuple[float, float]]:
    """Return (left, width) of every bar, in order."""
    return [(float(bar.get("x", 0)), float(bar.get("width", 0))) for bar in parse_svg(svg).iter(f"{SVG}rect")]


def test_breakdown_shares_add_up_to_stored_bytes() -> None:
    total, *shares = breakdown_steps(SUMMARY)
    assert (total.size_bytes, total.files) == (10_000, 100)
    assert (sum(step.size_bytes for step in shares), sum(step.files for step in shares)) == (10_000, 100)


def test_bars_are_adjacent_and_to_scale() -> None:
    (total_left, total_width), *shares = bars(storage_breakdown_svg(breakdown_steps(SUMMARY)))
    assert (total_left, total_width) == (LABEL, WIDTH - LABEL - FIGURE)
    for (left, width), (following, _) in pairwise(shares):
        assert abs(left + width - following) <= 0.2
    assert abs(shares[0][1] - total_width * 0.6) <= 0.1


def test_small_share_is_visible() -> None:
    steps = [Step("stored", 10**15, 10**6, "total"), Step("live", 10**15 - 1, 10**6 - 1, "kept"), Step("garbage", 1, 1, "garbage")]
    *_, (left, width) = bars(storage_breakdown_svg(steps))
    assert width == 2.0
    assert left + width <= WIDTH - FIGURE


def test_empty_share_has_no_bar() -> None:
    assert bars(storage_breakdown_svg([Step("stored", 0, 0, "total"), Step("garbage", 0, 0, "garbage")])) == [(LABEL, 0.0), (LABEL, 0.0)]


def test_labels_are_escaped() -> None:
    texts = [text.text for text in parse_svg(storage_breakdown_svg([Step("<script>&", 1, 1, "total")])).iter(f"{SVG}text")]
    assert texts[0] == "<script>&"


def test_data_uri_contains_the_svg() -> None:
    svg = storage_breakdown_svg(breakdown_steps(SUMMARY))
    assert base64.b64decode(data_uri(svg).partition(",")[2]).decode() == svg


def test_breakdown_table_has_file_counts_and_sizes() -> None:
    text = storage_breakdown_markdown(SUMMARY)
    assert "| expired history | 20 | 2 kB |" in text
    assert "| garbage | 5 | 500 B |" in text
