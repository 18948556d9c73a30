"""Expires a repository in a process of its own, which kills itself for real before its n-th step on the disk, or is killed from outside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from itertools import count

from gc_assets.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.stores.editing import EditableLocalObjects
from tests.lakes.icechunk.support import FAR_FUTURE
from tests.stores.killed import PROCESSES, counting

PROCESSES.set_forkserver_preload(["tests.stores.killed", "tests.lakes.icechunk.killed"])

STEPS = ("fchmod", "fsync", "rename", "link", "unlink")


def expire(config: IcechunkLakeConfig, actions: Sequence[ExpiryAction], as_of: datetime) -> None:
    for _ in IcechunkLake(config, EditableLocalObjects()).expire(actions, as_of, FAR_FUTURE):
        pass


def undo(config: IcechunkLakeConfig, actions: Sequence[ExpiryAction], as_of: datetime) -> None:
    for _ in IcechunkLake(config, EditableLocalObjects()).undo(actions):
        pass


def killed_before(step: int, work, config: IcechunkLakeConfig, actions: Sequence[ExpiryAction], as_of: datetime) -> None:
    """Exits with 0 where the work has fewer steps."""
    numbers = count(1)
    for name in STEPS:
        setattr(os, name, counting(getattr(os, name), numbers, step))
    work(config, actions, as_of)


def started(start, work, config: IcechunkLakeConfig, actions: Sequence[ExpiryAction], as_of: datetime) -> None:
    start.wait()
    work(config, actions, as_of)


def answering(start, answers, config: IcechunkLakeConfig, actions: Sequence[ExpiryAction], as_of: datetime) -> None:
    """Puts the verdicts, in the order of the actions, into the queue."""
    start.wait()
    outcomes = IcechunkLake(config, EditableLocalObjects()).expire(actions, as_of, FAR_FUTURE)
    verdicts = {outcome.action: outcome.verdict for outcome in outcomes}
    answers.put([verdicts[action] for action in actions])
