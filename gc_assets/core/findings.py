"""Run the checks of `gc-assets doctor`, and represent their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gc_assets.core.causes import cause_of
from gc_assets.core.errors import GcError
from gc_assets.core.printable import to_message

FindingVerdict = Literal["ok", "warn", "fail", "skipped"]
OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
SKIPPED: Final = "skipped"
HISTORY_EDITS: Final = "history edits"
# Advice if a check could not be made.
CHECK_AGAIN: Final = "Solve this problem, then run `gc-assets doctor` again."
_FIX_FIRST: Final = "Fix this first. No plan can be made or applied until then."


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        subject: The lake, storage or other object that was checked.
        check: Name of the check.
        found: The result in one sentence.
        todo: Advice for the user, or "" if the check passed.
        cause: The cause of a problem, without the affected object. Findings with the same cause are
            reported as one problem.
    """

    subject: str
    check: str
    verdict: FindingVerdict
    found: str
    todo: str = ""
    cause: str = ""

    def __post_init__(self) -> None:
        for name in ("subject", "found", "todo", "cause"):
            object.__setattr__(self, name, to_message(getattr(self, name)))


def run_check(subject: str, check: str, inspect: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Run a check and yield its results. If it raises an error, yield the error as a finding."""
    try:
        yield from inspect()
    except (GcError, OSError) as error:
        yield Finding(subject, check, FAIL, str(error), _FIX_FIRST, cause_of(error))
    except Exception as error:  # noqa: BLE001  (doctor continues with the other checks)
        yield Finding(subject, check, FAIL, f"{type(error).__name__}: {error}", _FIX_FIRST)


def skip_check(subject: str, check: str, needed: str) -> Finding:
    """Return the result for a check that cannot run because another check has failed."""
    return Finding(subject, check, SKIPPED, f"depends on the failed check {needed}")
