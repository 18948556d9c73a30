"""A process that publishes empty tables: `python -m tests.state.publisher ROOT COUNT [DIE_AT]`.

`DIE_AT` is the file at which the process is killed, before it writes the file.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, date, datetime
from typing import Any

from gc_assets.core.clock import Clock
from gc_assets.state.files import Files
from gc_assets.state.journal import State
from gc_assets.state.receipts import Receipt
from tests.state.s3_location import files_at

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=UTC)
DAY = date(2026, 3, 14)


def publish_empty(
    state: State, asset: str = "live_files", day: date = DAY, group: str = "sales", *, at: datetime = NOW, **summary: Any
) -> str:
    """Publish a table without rows and return its run id."""
    run = state.start(group, asset, day, Clock(at))
    state.publish(
        run,
        Receipt(
            group=run.group,
            asset=run.asset,
            run_date=run.run_date,
            run_id=run.run_id,
            created_at=at,
            rows=0,
            size_bytes=0,
            digest="0" * 16,
            files=(),
            summary=summary,
        ),
    )
    return run.run_id


class Dying(Files):
    """Files that kill their process before they write a file of a certain name."""

    def replace(self, path: str, content: bytes) -> None:
        self.die_at(path)
        super().replace(path, content)

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        self.die_at(path)
        return super().replace_if(path, content, version)

    def die_at(self, path: str) -> None:
        if path.endswith(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)


def main(root: str, count: str, *die_at: str) -> None:
    files = files_at(root)
    state = State(Dying(root, files.settings) if die_at else files)
    for _ in range(int(count)):
        sys.stdout.write(publish_empty(state) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
