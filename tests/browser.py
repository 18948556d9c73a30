"""Chromium, in which the tests see pages as people do: this machine's, driven by Playwright.

`python -m tests.browser` fetches it. In the environment, `GC_ASSETS_TEST_BROWSER=required` makes a failure of what would be a skip, and
`none` skips every test that needs a browser.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.debian import install, run_fetch, skip_or_fail

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Without fonts a page is measured in boxes.
PACKAGES = "chromium fonts-liberation"
WANTED = "GC_ASSETS_TEST_BROWSER"
WITHOUT = "or run the suite without a browser: make test BROWSER=none"
WIDE, PHONE = 1280, 390
# Root has no sandbox, and a container little shared memory.
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]


def chromium_program() -> str:
    """The path of Chromium. Skips the test where there is none, or fails it where that was forbidden."""
    if os.environ.get(WANTED) == "none":
        pytest.skip(f"{WANTED}=none: no browser is wanted")
    return _find_program() or skip_or_fail(f"there is no Chromium: apt-get install {PACKAGES}, {WITHOUT}", WANTED)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser without a window. Playwright holds this thread's event loop until the end, so no test may keep one for the whole suite."""
    path = chromium_program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def collect_errors(page: Page) -> list[str]:
    """What the browser says against a page from now on: errors and warnings of the console, and scripts that fail."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def overflow_pixels(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth")


def _find_program() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name)) is not None), None)


def fetch() -> None:
    """Installs Chromium where there is none. Raises `Unavailable` where this user or machine cannot."""
    if _find_program() is None:
        install("Chromium", PACKAGES, WITHOUT)


if __name__ == "__main__":
    run_fetch(fetch)
