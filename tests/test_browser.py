"""Tests that need a browser are skipped or fail visibly if it is missing."""

from __future__ import annotations

import pytest

from tests.browser import WANTED, chromium_program, fetch
from tests.debian import Unavailable


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without Chromium and a user other than root."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == "apt-get" else None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)


def test_missing_browser_skips_the_test_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WANTED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium_program()


def test_missing_required_browser_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WANTED, "required")
    with pytest.raises(pytest.fail.Exception, match="make test BROWSER=none"):
        chromium_program()


def test_browser_install_without_root_prints_the_command() -> None:
    with pytest.raises(Unavailable, match=r"only root installs it: apt-get install .*chromium.*, or run the suite without a browser"):
        fetch()
