"""Whether a cached lake is the one that was built: finished, and not in the middle of a change that was never undone."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FINISHED, CHANGING = "finished.json", "changing"


def is_whole(root: Path) -> bool:
    return (root / FINISHED).exists() and not (root / CHANGING).exists()


def is_to_build(root: Path) -> bool:
    """Whether there is no whole lake. What there is of one is then gone."""
    if is_whole(root):
        return False
    shutil.rmtree(root, ignore_errors=True)
    return True


@contextmanager
def change(root: Path) -> Generator[None]:
    """The lake does not count as whole until the block ends well: a killed benchmark leaves it to be built again."""
    marker = root / CHANGING
    marker.touch()
    yield
    marker.unlink()
