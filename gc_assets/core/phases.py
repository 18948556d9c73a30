"""Apply phases and action outcomes."""

from __future__ import annotations

from typing import Final, Literal, get_args

# Actions on files and unfinished uploads: `action` in `deletion_plan`, and `phase` in
# `deletion_log`.
Action = Literal["quarantine", "purge", "restore", "abort"]
QUARANTINE: Final = "quarantine"
PURGE: Final = "purge"
RESTORE: Final = "restore"
ABORT: Final = "abort"

# Phases in execution order. Files that are needed again are restored first.
Phase = Literal["restore", "expire", "quarantine", "purge", "abort"]
EXPIRE: Final = "expire"
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

# `changed`: the object or history differs from the expected one, so nothing was done. `denied`: a
# retry cannot succeed. `failed`: a retry may succeed.
Verdict = Literal["done", "absent", "changed", "denied", "failed"]
DONE: Final = "done"
ABSENT: Final = "absent"
CHANGED: Final = "changed"
DENIED: Final = "denied"
FAILED: Final = "failed"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

# Outcome of an expiry action that was undone.
UNDONE: Final = "undone"

# Prefix of the id of a restore that was started by a command. It is recorded instead of a plan id.
RESTORE_PREFIX: Final = "restore-"
