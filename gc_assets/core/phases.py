"""The phases of an apply and the outcomes of its actions, in one place."""

from __future__ import annotations

from typing import Final, Literal, get_args

# The actions on files and unfinished uploads: the `action` of a row of `deletion_plan`, and the
# `phase` of a row of `deletion_log`.
Action = Literal["quarantine", "purge", "restore", "abort"]
QUARANTINE: Final = "quarantine"
PURGE: Final = "purge"
RESTORE: Final = "restore"
ABORT: Final = "abort"

# The phases in their order: files that are needed again are restored before anything else.
Phase = Literal["restore", "expire", "quarantine", "purge", "abort"]
EXPIRE: Final = "expire"
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

# `changed`: the object or the history is not the expected one, so nothing was done. `denied`: a
# retry cannot help. `failed`: a retry may help.
Verdict = Literal["done", "absent", "changed", "denied", "failed"]
DONE: Final = "done"
ABSENT: Final = "absent"
CHANGED: Final = "changed"
DENIED: Final = "denied"
FAILED: Final = "failed"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

# The outcome of an expiry action that was undone.
UNDONE: Final = "undone"
