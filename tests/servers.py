"""Download the servers of the tests, several at the same time: `python -m tests.servers`.

The variables `GC_ASSETS_TEST_*` select them. `make test` sets the variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests import browser, postgres
from tests.azure import servers as azure
from tests.debian import Unavailable
from tests.depth import INCLUDES_FULL
from tests.gcs import servers as gcs
from tests.lakes.icechunk.v2 import environment as icechunk
from tests.lakes.lakefs import server as lakefs
from tests.lakes.nessie import server as nessie
from tests.s3 import servers as s3


def _fetch_nessie() -> None:
    for release in (nessie.NEWEST, nessie.OLDEST):
        nessie.fetch(release)


def _fetch_programs_of_go() -> None:
    if _is_wanted("S3"):
        s3.fetch(["versity"])
    if INCLUDES_FULL:
        gcs.fetch()
        if _is_wanted("LAKEFS"):
            lakefs.fetch()


def _fetch_packages() -> None:
    """Install packages of Debian one after the other, because apt-get does not run twice at the same time."""
    if _is_wanted("BROWSER"):
        browser.fetch()
        if INCLUDES_FULL:
            postgres.fetch()
    if _is_wanted("AZURE"):
        azure.fetch()
    if _is_wanted("S3"):
        s3.fetch(["ceph"])


def _fetch_icechunk() -> None:
    if _is_wanted("ICECHUNK"):
        icechunk.interpreter()


FETCHES: Final = (_fetch_nessie, _fetch_programs_of_go, _fetch_packages, _fetch_icechunk)


def _is_wanted(name: str) -> bool:
    return os.environ.get(f"GC_ASSETS_TEST_{name}") != "none"


def fetch_all(fetches: Sequence[Callable[[], object]] = FETCHES) -> list[str]:
    """Run all of them at the same time. Return the messages of those whose server is unavailable."""
    with ThreadPoolExecutor(len(fetches)) as pool:
        return [message for message in pool.map(_message_of, fetches) if message]


def _message_of(fetch: Callable[[], object]) -> str:
    try:
        fetch()
    except (Unavailable, nessie.Unavailable) as unavailable:
        return str(unavailable)
    return ""


if __name__ == "__main__":
    sys.exit("\n".join(fetch_all()) or 0)
