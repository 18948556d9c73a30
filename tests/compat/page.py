"""The table of `docs/compatibility.md`: one row per cell with its verdict, versions and date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.compat.cells import CELLS, Cell
from tests.compat.environments import REPORTED_PACKAGES

BEGIN: Final = "<!-- The table is written by `make compat`. -->"
END: Final = "<!-- End of the table. -->"
HEAD: Final = ("cell", "verdict", "date", *REPORTED_PACKAGES)


@dataclass(frozen=True)
class Result:
    """The result of a cell. `fault` is empty if all tests passed, or begins with `failed` or `not run`."""

    cell: Cell
    fault: str
    versions: Mapping[str, str]

    @property
    def is_failure(self) -> bool:
        return self.fault.startswith("failed")

    @property
    def row(self) -> tuple[str, ...]:
        verdict = self.fault.partition(":")[0] or "passed"
        return (self.cell.name, verdict, f"{datetime.now(UTC):%Y-%m-%d}", *(self.versions.get(name, "-") for name in REPORTED_PACKAGES))


def render(results: Sequence[Result]) -> str:
    """Return the table as Markdown."""
    return _table([result.row for result in results])


def update_page(page: Path, results: Sequence[Result]) -> None:
    """Replace the rows of these cells. Rows of other cells stay, and rows of former cells are removed."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {cells[0]: cells for line in table.splitlines() if len(cells := _cells_of(line)) == len(HEAD)}
    rows |= {result.cell.name: result.row for result in results}
    ordered = [rows[cell.name] for cell in CELLS if cell.name in rows]
    page.write_text(f"{before}{BEGIN}\n\n{_table(ordered)}\n{END}{after}")


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *lines = (f"| {' | '.join(line)} |\n" for line in (HEAD, *rows))
    return "".join([head, f"|{'---|' * len(HEAD)}\n", *lines])


def _cells_of(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
