"""The cells of `make compat`: combinations of a Python, a resolution of the ranges in pyproject.toml, and a Spark version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Cell:
    """One environment. `resolution` is `lowest` or `newest`. Without `spark`, the resolution also selects the version of Spark."""

    python: str
    resolution: str
    spark: str | None = None

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.python, self.resolution, self.spark and f"spark{self.spark}") if part)


PYTHONS: Final = ("3.11", "3.12", "3.13")
CELLS: Final = (
    *(Cell(python, resolution) for python in PYTHONS for resolution in ("lowest", "newest")),
    Cell("3.11", "newest", "4.0"),
    Cell("3.12", "newest", "4.1"),
    Cell("3.13", "newest", "4.2"),
)


def select_cells(python: str = "", spark: str = "", text: str = "") -> list[Cell]:
    """Return the cells with this Python, this Spark version and this text in their name. Empty means any.

    Raises:
        ValueError: If no cell has them. The message lists all cells.
    """
    version = Path(python).name.removeprefix("python")
    known = {cell.python for cell in CELLS}
    found = [
        cell
        for cell in CELLS
        if (version not in known or cell.python == version) and (not spark or cell.spark == spark) and text in cell.name
    ]
    if not found:
        raise ValueError(f"no cell has PYTHON={python} SPARK={spark} CELL={text}; cells: {', '.join(cell.name for cell in CELLS)}")
    return found


def cell_of_commit(commits: int, find: Callable[[str], Path | None], cells: Sequence[Cell] = CELLS) -> Cell | None:
    """Return the cell of this number of commits, among those whose Python `find` finds. None if no Python is found."""
    available = {python for python in {cell.python for cell in cells} if find(python) is not None}
    possible = [cell for cell in cells if cell.python in available]
    return possible[commits % len(possible)] if possible else None
