"""Open pages in the installed Chromium with Playwright.

`python -m tests.browser` installs it. `GC_ASSETS_TEST_BROWSER=required` fails tests without a browser instead of skipping them, and `none`
skips all of them.
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
# Without fonts, the size of text is wrong.
PACKAGES = "chromium fonts-liberation"
WANTED = "GC_ASSETS_TEST_BROWSER"
WITHOUT = "or run the suite without a browser: make test BROWSER=none"
WIDE, PHONE = 1280, 390
# There is no sandbox for root, and containers have little shared memory.
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]


def chromium_program() -> str:
    """Return the path of Chromium. If it is missing, skip the test, or fail it if a browser is required."""
    if os.environ.get(WANTED) == "none":
        pytest.skip(f"{WANTED}=none: tests with a browser are disabled")
    return _find_program() or skip_or_fail(f"Chromium is missing: apt-get install {PACKAGES}, {WITHOUT}", WANTED)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Open a headless browser. Playwright blocks the event loop of the thread, so no fixture may keep it for the whole suite."""
    path = chromium_program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def collect_errors(page: Page) -> list[str]:
    """Collect errors and warnings of the console and of scripts of a page, from now on."""
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return errors


def overflow_pixels(page: Page) -> int:
    """Return the width of the page in excess of its window, in pixels."""
    return page.evaluate("document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth")


def _find_program() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name)) is not None), None)


def fetch() -> None:
    """Install Chromium if it is missing. Raise `Unavailable` if this user or machine cannot."""
    if _find_program() is None:
        install("Chromium", PACKAGES, WITHOUT)


if __name__ == "__main__":
    run_fetch(fetch)
