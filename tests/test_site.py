"""Build the site of docs/ (`make site`) without a warning, and open it without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser import PHONE, WIDE, collect_errors, open_browser, overflow_pixels
from tests.depth import full_suite_only, in_turn

pytestmark = in_turn

ROOT = Path(__file__).parents[1]


def build(source: Path, at: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of `make site`."""
    (line,) = re.findall(r"sphinx-build (.*) docs build/site$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    options = line.replace("build/site-read", str(at / "read")).split()
    return subprocess.run([sys.executable, "-m", "sphinx", *options, source, at / "html"], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert (done.stderr, done.returncode) == ("", 0)
    return folder / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


def test_site_contains_every_page(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").iterdir() if path.suffix in {".md", ".ipynb"}}
    assert {path.stem for path in site.glob("*.html")} == pages | {"genindex", "search"}
    assert "Read runs in Python" in (site / "library.html").read_text()


def test_link_to_a_missing_heading_fails_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", pages)
    (pages / "index.md").write_text("# One\n\n## What is kept\n\n[well](#what-is-kept), [ill](#what-is-left)\n")
    done = build(pages, tmp_path)
    assert done.returncode != 0
    assert "what-is-left" in done.stderr
    assert "what-is-kept" not in done.stderr


@full_suite_only
def test_pages_fit_the_window_and_load_no_external_resources(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    errors, requests = collect_errors(page), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    too_wide: list[tuple[str, int, int]] = []
    for path in sorted(site.glob("*.html")):
        page.goto(path.as_uri())
        for width in (WIDE, PHONE):
            page.set_viewport_size({"width": width, "height": 900})
            if (by := overflow_pixels(page)) > 0:
                too_wide.append((path.name, width, by))
    assert too_wide == []
    assert errors == []
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []


def test_site_follows_the_color_scheme(site: Path, browser: Browser) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto((site / "index.html").as_uri())
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_search_works_without_a_server(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q=quarantine_days")
    page.locator("#search-results li a", has_text="Configuration").first.wait_for(timeout=60_000)
