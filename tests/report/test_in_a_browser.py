"""The report in Chromium: wide and on a phone, light and dark."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.plan import Amount
from gc_assets.report.drawing import MAX_COMMITS, Drawing, Node
from gc_assets.report.run_report import ExpiringCommit, PastPlan, PlannedFile, QuarantinedPlan, RefUsage, StoredBytes
from gc_assets.report.trend import Point
from gc_assets.stages.read.usage import TableUsage
from tests.browser import chromium_program
from tests.report.test_page import NOW, lake, page, storage

WIDTHS = (1280, 390)
SCHEMES = {"dark": 0, "light": 1}
LONG = "a" * 300
# A frame is a window of its own to the page: its width decides what fits. A drawing may scroll inside its frame, nothing else may.
HARNESS = """<!doctype html><body>FRAMES<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.scrollingElement;
    const wide = [...page.querySelectorAll("*")].filter(item => item.scrollWidth > item.clientWidth + 1 && item.clientWidth > 0
      && getComputedStyle(item).overflowX !== "visible" && !item.querySelector("svg.history"));
    const ground = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
    return {width: root.clientWidth, needed: root.scrollWidth, wide: wide.map(item => item.outerHTML.slice(0, 99)), ground};
  });
  const result = document.createElement("pre"); result.id = "found"; result.textContent = JSON.stringify(found);
  document.body.append(result);
});
</script>"""


def full_page() -> str:
    """Return a page with all parts, and long names without a space."""
    amounts = {"quarantine": Amount(files=3, bytes=2_000)}
    full = storage(
        headline=LONG,
        location=LONG,
        stored=(StoredBytes("in this run", 7_000_000_000), StoredBytes("after this plan is applied", 5_000_000_000)),
        tables=(TableUsage("warehouse", LONG, LONG, Amount(), {LONG: Amount(files=1, bytes=1), "expired": Amount()}),),
        trend=(Point(NOW.date(), 1, 1, 1), Point(NOW.date(), 2, 1, 1)),
        plans=(PastPlan("ab" * 32, NOW.date(), "applied", amounts, 2, (LONG,)),),
        largest=(PlannedFile(LONG, "quarantine", "unreferenced", 7),),
        quarantined=(QuarantinedPlan("ab" * 32, 3, 21, NOW, NOW),),
        decisions=(LONG,),
        reversibility=(LONG,),
        apply_command=LONG,
        status="approved",
        usd_per_gb_month=23.0,
        problems={LONG: 1},
        notes=(LONG,),
    )
    nodes = tuple(Node(str(at), str(at - 1), str(at - 1), at, "retained", False, LONG, (LONG,)) for at in range(MAX_COMMITS))
    going = (ExpiringCommit(LONG, LONG, NOW, LONG, LONG),)
    crowd = lake(name=LONG, usage=(RefUsage(LONG, LONG, 1, 1),), histories=(Drawing(LONG, nodes),), expiring=going, notes=(LONG,))
    return page(full, lakes=(crowd,), warnings=(LONG,))


@pytest.fixture(scope="module", params=SCHEMES)
def layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]], str]:
    """Return the colour scheme, the measured frames, and the log of the browser."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    frames = [f'<iframe width="{width}" height="900" style="border:0" srcdoc="{html.escape(full_page())}"></iframe>' for width in WIDTHS]
    (folder / "harness.html").write_text(HARNESS.replace("FRAMES", "".join(frames)))
    scheme = f"--blink-settings=preferredColorScheme={SCHEMES[request.param]}"
    quiet = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        f"--user-data-dir={folder}/profile",
    )
    command = [chromium_program(), *quiet, scheme, "--virtual-time-budget=5000", "--dump-dom", f"file://{folder}/harness.html"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', ran.stdout, re.DOTALL)
    return request.param, json.loads(html.unescape(found)), ran.stderr


def test_page_fits_the_window_and_only_drawings_scroll(layout: tuple[str, list[dict[str, Any]], str]) -> None:
    frames = layout[1]
    assert [(frame["needed"], frame["wide"]) for frame in frames] == [(width, []) for width in WIDTHS]
    assert [frame["width"] for frame in frames] == list(WIDTHS)


def test_page_follows_the_colour_scheme(layout: tuple[str, list[dict[str, Any]], str]) -> None:
    scheme, frames, _ = layout
    assert {frame["ground"] for frame in frames} == {"rgb(18, 22, 28)" if scheme == "dark" else "rgb(246, 247, 249)"}


def test_browser_logs_no_error(layout: tuple[str, list[dict[str, Any]], str]) -> None:
    assert "CONSOLE" not in layout[2]
