"""Empty tables, published by this process or by others, which may be killed at it."""

from __future__ import annotations

import os
import signal
from datetime import UTC, date, datetime
from typing import Any

from gc_assets.config.s3 import S3Config
from gc_assets.core.clock import Clock
from gc_assets.state.files import Files
from gc_assets.state.journal import State
from gc_assets.state.receipts import Receipt
from tests.killed import PROCESSES

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=UTC)
DAY = date(2026, 3, 14)


def publish_empty(state: State, asset: str = "live_files", day: date = DAY, group: str = "sales", **facts: Any) -> str:
    """The run id of a published table without rows."""
    run = state.start(group, asset, day, Clock(NOW))
    state.publish(
        run,
        Receipt(
            group=run.group,
            asset=run.asset,
            run_date=run.run_date,
            run_id=run.run_id,
            created_at=NOW,
            rows=0,
            size_bytes=0,
            digest="0" * 16,
            files=(),
            facts=facts,
        ),
    )
    return run.run_id


class Dying(Files):
    """Files whose process is killed when it is about to write a file whose name ends so."""

    at = ""

    def replace(self, path: str, content: bytes) -> None:
        self.die_at(path)
        super().replace(path, content)

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        self.die_at(path)
        return super().replace_if(path, content, version)

    def die_at(self, path: str) -> None:
        if path.endswith(self.at):
            os.kill(os.getpid(), signal.SIGKILL)


def publishing(answers: Any, root: str, s3: S3Config, count: int, die_at: str) -> None:
    """What such a process does: it answers with the ids of the runs."""
    Dying.at = die_at
    state = State(Dying(root, s3) if die_at else Files(root, s3))
    answers.put([publish_empty(state) for _ in range(count)])


def started(state: State, count: int = 1, die_at: str = "") -> tuple[Any, Any]:
    """A process that publishes empty tables, and where it answers. `die_at` kills it before it writes a file whose name ends so."""
    answers = PROCESSES.SimpleQueue()
    process = PROCESSES.Process(target=publishing, args=(answers, state.files.root, state.files.s3, count, die_at))
    process.start()
    return process, answers


def died(state: State, at: str) -> bool:
    """Whether a process that published a table was killed there."""
    process, _ = started(state, die_at=at)
    process.join(60)
    return process.exitcode == -signal.SIGKILL
