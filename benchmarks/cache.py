"""Cached lakes. A lake is complete if its build has finished and no change was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FINISHED, CHANGING = "finished.json", "changing"


def is_complete(root: Path) -> bool:
    return (root / FINISHED).exists() and not (root / CHANGING).exists()


def prepare_build(root: Path) -> bool:
    """Return whether the lake must be built. Remove an incomplete one first."""
    if is_complete(root):
        return False
    shutil.rmtree(root, ignore_errors=True)
    return True


@contextmanager
def change(root: Path) -> Generator[None]:
    """Mark the lake as incomplete until the block succeeds, so that an interrupted change leads to
    a new build.
    """
    marker = root / CHANGING
    marker.touch()
    yield
    marker.unlink()
