"""Control Dagster's web page in a browser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser, FloatRect, Locator, Page, TimeoutError

from tests.browser import overflow_pixels

SECONDS = 1_000
LOST_CLICKS = 3
ENDED = re.compile("^(Success|Failure|Canceled)$")
CHECKED = re.compile("^(Passed|Failed|Warning|Error)$")


@dataclass
class DagsterPage:
    """The page of an instance. Pictures are written to a directory."""

    address: str
    browser: Browser
    pictures: Path
    errors: list[str] = field(default_factory=list)
    too_wide: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page: Page = self.browser.new_page()
        self.page.set_default_timeout(180 * SECONDS)
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.resize(1280, 900)

    def resize(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def open(self, path: str, shows: str) -> None:
        """Open a page, and wait until it shows a text."""
        self.page.goto(f"{self.address}/{path}")
        self.page.get_by_text(shows, exact=True).first.wait_for()

    def group(self, name: str) -> set[str]:
        """Return the status of each asset in the lineage of a group."""
        self.page.goto(f"{self.address}/locations/lake_gc/asset-groups/{name}/lineage")
        nodes = self.page.locator("foreignObject > *")
        nodes.filter(has_text="Latest event").first.wait_for()
        self.page.get_by_text("Passed").first.wait_for()
        return {text.strip().split("\n")[0] for text in nodes.all_inner_texts()}

    def partition(self, asset: str, run_date: str, shows: str) -> dict[str, str]:
        """Return the metadata of a partition by name, including the names of nested tables."""
        self.open(f"assets/{asset}?view=partitions&partition={run_date}", shows)
        rows = (row.split("\t") for row in self.page.locator("tr").all_inner_texts())
        return {name.strip(): value[0].strip() for name, *value in rows if value}

    def overview(self, asset: str, shows: str) -> dict[str, str]:
        """Return the metadata in the overview of an asset, without its description."""
        self.open(f"assets/{asset}?view=overview", shows)
        self.page.get_by_text("Description", exact=True).first.click()
        rows = (row.split("\t") for row in self.page.locator("tr").all_inner_texts())
        return {name.strip(): values[-1].strip() for name, *values in rows if values}

    def execute_check(self, asset: str, name: str) -> str:
        """Execute the only check of an asset on its page, and return its result."""
        self.open(f"assets/{asset}?view=checks", name)
        self.page.get_by_role("button", name="Execute all").click()
        result = self.page.get_by_text(CHECKED).first
        result.wait_for()
        return result.inner_text()

    def backfill(self, asset: str, first: str, last: str) -> None:
        """Launch a backfill of a range of dates on the page of an asset."""
        self.open(f"assets/{asset}?view=partitions", "Partitions")
        self.page.get_by_role("button", name="Materialize").first.click()
        dialog = self.page.get_by_role("dialog")
        dates = dialog.get_by_role("textbox").first
        dates.fill(f"[{first}...{last}]")
        dates.press("Enter")
        dialog.get_by_text("2 partitions").first.wait_for()
        self.picture("backfill")
        dialog.get_by_role("button", name="Launch backfill").click()
        dialog.wait_for(state="hidden")

    def click(self, text: str, shows: str) -> None:
        """Click on a text, and wait for another text."""
        self.page.get_by_text(text, exact=True).first.click()
        self.page.get_by_text(shows, exact=True).first.wait_for()

    def choose(self, job: str, partition: str) -> str:
        """Choose a partition in the launchpad of a job, and return the configuration that it fills in."""
        self._click_partition(job, self.page.get_by_text(partition, exact=True).first)
        self.page.get_by_text("partition_set:").first.wait_for()
        self.picture(f"choose-{job}")
        return self.page.evaluate("document.querySelector('.CodeMirror').CodeMirror.getValue()")

    def _click_partition(self, job: str, partition: Locator) -> None:
        """Open the list again until it has the partition, because it stays empty if it opens before they are loaded."""
        for _ in range(LOST_CLICKS):
            self.page.goto(f"{self.address}/locations/lake_gc/jobs/{job}/playground")
            self.page.get_by_placeholder("Partition").click()
            with suppress(TimeoutError):
                return partition.click(timeout=60 * SECONDS)
        names = self.page.locator("body").inner_text()
        raise AssertionError(f"after {LOST_CLICKS} attempts the partition is missing in the launchpad of {job}: {names[-500:]}")

    def launch(self, job: str, config: Mapping[str, Any], run_date: str | None = None) -> str:
        """Launch a job with its launchpad, and return its result."""
        self.page.goto(f"{self.address}/locations/lake_gc/jobs/{job}/playground")
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(yaml.safe_dump({"ops": config}))
        if run_date is not None:
            self.page.get_by_placeholder("Partition").fill(run_date)
            self.page.keyboard.press("Enter")
        button = self.page.get_by_role("button", name="Launch Run")
        button.click(trial=True)  # waits until the page has checked the config
        self.picture(f"launch-{job}")
        self._leave_by(button)
        ended = self.page.get_by_text(ENDED).first
        ended.wait_for(timeout=400 * SECONDS)
        self.picture(f"run-{job}")
        return ended.inner_text()

    def _leave_by(self, button: Locator) -> None:
        """Click until the page of a run opens, because a click is lost while the button is redrawn."""
        for _ in range(LOST_CLICKS):
            button.click()
            with suppress(TimeoutError):
                return self.page.wait_for_url("**/runs/*", timeout=20 * SECONDS)
        raise AssertionError(f"after {LOST_CLICKS} clicks no run began; the page is {self.page.url}")

    def picture(self, name: str, part: FloatRect | None = None) -> None:
        """Save a screenshot of the window or a part of it, and record pages that are wider than the
        window.
        """
        self.page.screenshot(path=self.pictures / f"{name}.png", clip=part, animations="disabled")
        if (by := overflow_pixels(self.page)) > 0:
            self.too_wide.append(f"{name}: {by} pixels")
