"""What a check says about its subject: a verdict, the facts, and what to do. Pure values."""

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
    """One check of one subject. `todo` says what to do about it and is empty where all is well."""

    subject: str
    check: str
    verdict: FindingVerdict
    found: str
    todo: str = ""


def looked(subject: str, check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Returns the findings of `look`. If `look` fails, that is a finding too, not an error."""
    try:
        yield from look()
    except (GcError, OSError) as error:
        yield Finding(subject, check, FAIL, str(error), "Mend this first: no plan can be made, or none applied, until it is.")
