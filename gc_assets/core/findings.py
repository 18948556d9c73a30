"""Check results: verdict, finding and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gc_assets.core.errors import GcError

FindingVerdict = Literal["ok", "warn", "fail"]
OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """Check result for one subject. `todo` contains advice, and is empty if the check passed."""

    subject: str
    check: str
    verdict: FindingVerdict
    found: str
    todo: str = ""


def run_check(subject: str, check: str, inspect: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the results of a check. An exception in the check is yielded as a failed result."""
    try:
        yield from inspect()
    except (GcError, OSError) as error:
        yield Finding(subject, check, FAIL, str(error), "Fix this first: until then no plan can be made or applied.")
