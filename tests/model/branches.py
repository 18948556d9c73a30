"""Report which branches of plans, applies and restores the random traces execute.

Run `GC_ASSETS_TEST_TRACES=20 python -m tests.model.branches`. Child processes are not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import coverage
import pytest

import gc_assets

PACKAGE: Final = Path(gc_assets.__file__).parent / "stages" / "delete"
TRACES: Final = Path(__file__).with_name("test_traces.py")
# The number of exits of each line with a branch, and how many of them were taken.
Exits = Mapping[int, tuple[int, int]]


def count_branches(exits: Exits) -> tuple[int, int]:
    """Return the number of taken branches and of all branches."""
    return sum(taken for _, taken in exits.values()), sum(total for total, _ in exits.values())


def describe_module(name: str, exits: Exits) -> str:
    taken, total = count_branches(exits)
    missed = [str(line) for line, (all_exits, found) in sorted(exits.items()) if found < all_exits]
    return f"{name}: {taken} of {total} branches" + (f", not all from lines {', '.join(missed)}" if missed else "")


def main() -> int:
    """Run the traces, and print the branches of each module. Returns the exit code of pytest."""
    measured = coverage.Coverage(branch=True, data_file=None, source=[str(PACKAGE)], config_file=False)
    with measured.collect():
        code = pytest.main(["-q", "-p", "no:cacheprovider", str(TRACES)])
    found = {path.stem: measured.branch_stats(str(path)) for path in sorted(PACKAGE.glob("*.py"))}
    counts = [count_branches(exits) for exits in found.values()]
    lines = [describe_module(name, exits) for name, exits in found.items()]
    lines.append(f"all: {sum(taken for taken, _ in counts)} of {sum(total for _, total in counts)} branches")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
