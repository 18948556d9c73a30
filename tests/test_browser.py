"""Where a browser is wanted and missing, nobody is told that its tests passed."""

from __future__ import annotations

import pytest

from tests.browser import WANTED, fetch, program
from tests.debian import Unavailable


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Chromium, whose user is not root."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == "apt-get" else None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)


def test_a_missing_browser_skips_a_test_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WANTED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        program()


def test_a_missing_browser_fails_a_test_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WANTED, "required")
    with pytest.raises(pytest.fail.Exception, match="make test BROWSER=none"):
        program()


def test_a_browser_that_only_root_could_fetch_ends_make_test_with_the_line_to_type() -> None:
    with pytest.raises(Unavailable, match=r"only root installs it: apt-get install .*chromium.*, or run the suite without a browser"):
        fetch()
