"""What a plan does to a file or a history, in which order, and how each act may end: said once."""

from __future__ import annotations

from typing import Final, Literal, get_args

# The acts on a file, and the one on an upload in parts that nobody finished. A row of
# `deletion_plan` has one as its action, and a row of `deletion_log` names it as its phase.
Action = Literal["quarantine", "purge", "restore", "abort"]
QUARANTINE: Final = "quarantine"
PURGE: Final = "purge"
RESTORE: Final = "restore"
ABORT: Final = "abort"

# Edits of history are a phase of their own (design 6.4). What is needed again comes back first.
Phase = Literal["restore", "expire", "quarantine", "purge", "abort"]
EXPIRE: Final = "expire"
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

# `changed`: another object, or another history, stands there, so nothing was done. `denied`: trying
# again will not help. `failed`: it may help.
Verdict = Literal["done", "absent", "changed", "denied", "failed"]
DONE: Final = "done"
ABSENT: Final = "absent"
CHANGED: Final = "changed"
DENIED: Final = "denied"
FAILED: Final = "failed"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

# The outcome of an edit of history that was undone.
UNDONE: Final = "undone"
