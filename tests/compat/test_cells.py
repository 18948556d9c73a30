"""The cells of `make compat`: their selection, and the page with their results."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.compat.cells import CELLS, PYTHONS, Cell, cell_of_commit, select_cells
from tests.compat.environments import CHECKOUT
from tests.compat.page import BEGIN, END, Result, update_page
from tests.interpreters import find_interpreter

FOUND = Path("python")


def names(cells: list[Cell]) -> set[str]:
    return {cell.name for cell in cells}


def test_every_python_is_tested_with_lowest_and_newest_dependencies() -> None:
    pairs = {(cell.python, cell.resolution) for cell in CELLS if cell.spark is None}
    assert pairs == {(python, resolution) for python in PYTHONS for resolution in ("lowest", "newest")}
    assert len(names(list(CELLS))) == len(CELLS)


def test_package_classifiers_list_the_tested_pythons() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["classifiers"] == [f"Programming Language :: Python :: {version}" for version in PYTHONS]
    assert project["requires-python"] == f">={PYTHONS[0]}"


def test_python_spark_and_text_options_select_cells() -> None:
    assert select_cells() == list(CELLS)
    assert {cell.python for cell in select_cells(python="/usr/bin/python3.13")} == {"3.13"}
    assert {cell.spark for cell in select_cells(spark="4.0")} == {"4.0"}
    assert {cell.resolution for cell in select_cells(text="lowest")} == {"lowest"}
    # The default interpreter of `make` may be `python3`, which selects nothing.
    assert select_cells(python="/usr/bin/python3") == list(CELLS)


def test_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no cell has PYTHON= SPARK=2\.4 CELL=; cells: 3\.11-lowest, "):
        select_cells(spark="2.4")


def test_consecutive_commits_run_every_cell_once() -> None:
    chosen = Counter(cell_of_commit(commits, lambda version: FOUND) for commits in range(100, 100 + len(CELLS)))
    assert chosen == Counter(CELLS)


def test_commit_selects_cells_of_installed_pythons_only() -> None:
    chosen = {cell_of_commit(commits, lambda version: FOUND if version == "3.12" else None) for commits in range(len(CELLS))}
    assert chosen == {cell for cell in CELLS if cell.python == "3.12"}
    assert cell_of_commit(1, lambda version: None) is None


def test_interpreter_is_found_only_for_installed_versions() -> None:
    assert find_interpreter("2.99") is None
    assert any(find_interpreter(version) for version in PYTHONS)


def test_update_of_the_page_keeps_rows_of_other_known_cells(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\n{END}\n\nEnd.\n")
    versions = {"pyspark": "4.3.0"}
    update_page(page, [Result(CELLS[1], "", versions), Result(Cell("2.7", "lowest"), "", versions)])
    update_page(page, [Result(CELLS[0], "failed: 2 tests, first test_a", versions)])
    lines = page.read_text().splitlines()
    rows = [line.split(" | ")[:2] for line in lines if line.startswith("| ")]
    assert rows[1:] == [[f"| {CELLS[0].name}", "failed"], [f"| {CELLS[1].name}", "passed"]]
    assert (lines[0], lines[-1]) == ("# Title", "End.")
    update_page(page, [Result(CELLS[0], "", versions)])
    assert "failed" not in page.read_text()
