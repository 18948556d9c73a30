"""Check results: verdict, finding and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gc_assets.core.errors import GcError
from gc_assets.core.printable import to_message

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

    def __post_init__(self) -> None:
        for name in ("subject", "found", "todo"):
            object.__setattr__(self, name, to_message(getattr(self, name)))


def run_check(subject: str, check: str, inspect: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the results of a check. An exception in the check is yielded as a failed result."""
    try:
        yield from inspect()
    except (GcError, OSError) as error:
        yield Finding(subject, check, FAIL, str(error), "Fix this first: until then no plan can be made or applied.")
