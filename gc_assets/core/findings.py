"""The result of one check: verdict, finding and advice. Pure values."""

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
    """Result of a check on one subject. `todo` is the advice, empty if the check passed."""

    subject: str
    check: str
    verdict: FindingVerdict
    found: str
    todo: str = ""


def run_check(subject: str, check: str, inspect: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check. If the check itself fails, that becomes a finding."""
    try:
        yield from inspect()
    except (GcError, OSError) as error:
        yield Finding(subject, check, FAIL, str(error), "Fix this first: until then no plan can be made or applied.")
