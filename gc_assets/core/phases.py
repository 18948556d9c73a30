"""Names of the actions in plans, of the phases of an apply, and of outcomes."""

from __future__ import annotations

from typing import Final, Literal, get_args

# Actions on files and unfinished uploads. They are the values of `action` in `deletion_plan` and of
# `phase` in `deletion_log`.
Action = Literal["quarantine", "purge", "restore", "abort"]
QUARANTINE: Final = "quarantine"
PURGE: Final = "purge"
RESTORE: Final = "restore"
ABORT: Final = "abort"

# The phases in the order of execution. Files that are needed again are restored first.
Phase = Literal["restore", "expire", "quarantine", "purge", "abort"]
EXPIRE: Final = "expire"
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

# `changed` means that the object or history is not as expected, so the action was not executed.
# After `failed`, a retry may succeed. After `denied`, it cannot.
Verdict = Literal["done", "absent", "changed", "denied", "failed"]
DONE: Final = "done"
ABSENT: Final = "absent"
CHANGED: Final = "changed"
DENIED: Final = "denied"
FAILED: Final = "failed"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

# The outcome of an expiry action after it was undone.
UNDONE: Final = "undone"

# A restore that was started by a command is recorded with an id that has this prefix, instead of a
# plan id.
RESTORE_PREFIX: Final = "restore-"
