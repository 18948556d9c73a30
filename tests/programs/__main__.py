"""`python -m tests.programs --programs 300 --histories 10000 --seed 7`: random programs over a store that lies, random histories of each
kind of lake through its pure functions, and through nights that carry over what nothing touched.

The same seed plays the same programs. The exit code is 1 where a promise broke, and what was played is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gc_assets.resources.spark import SparkRuntime
from tests.conftest import TEST_CONF
from tests.programs import nights, pure
from tests.stages.mark import incremental_histories
from tests.stages.mark.test_unreadable_histories import histories as walk


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def over_carrying(histories: int, days: int, first: int) -> int:
    """Plays histories of each kind through `live_files`, and returns how many kinds had a night whose rows were not those of a full
    computation.
    """
    spark = SparkRuntime(mode="session", master="local[2]", remote="local[2]", conf=TEST_CONF).session()
    breaches = 0
    for kind in incremental_histories.LAKES:
        began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="carrying-"))
        try:
            events = incremental_histories.play(spark, root, kind, histories, days, first).events
            told = ", ".join(f"{count:,} {name}" for name, count in sorted(events.items()))
            say(f"carried over, {kind}: {told} in {time.monotonic() - began:.0f} s")
        except AssertionError as error:
            breaches += 1
            say(f"BREACH {kind}: {error}")
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return breaches


def over_nights(programs: int, first: int, beside: int, days: int) -> int:
    """Plays programs over whole nights, and returns how many houses broke a promise."""
    spark = SparkRuntime(mode="session", master="local[2]", remote="local[2]", conf=TEST_CONF).session()
    events, breaches, began = Counter[str](), 0, time.monotonic()
    for seed in range(first, first + programs, beside):
        root = Path(tempfile.mkdtemp(prefix="programs-"))
        try:
            events += nights.play(spark, root, range(seed, min(seed + beside, first + programs)), days)
        except AssertionError as error:
            breaches += 1
            say(f"BREACH {error}")
        finally:
            shutil.rmtree(root, ignore_errors=True)
        say(f"{time.monotonic() - began:.0f} s: {', '.join(f'{count:,} {name}' for name, count in sorted(events.items()))}")
    spark.stop()
    return breaches


def over_histories(histories: int, first: int) -> int:
    """Tries histories of each kind, and returns how many kinds broke a promise."""
    breaches = 0
    for kind in pure.PROGRAMS:
        began = time.monotonic()
        try:
            tried = pure.play(kind, histories, first)
            say(f"{kind}: {tried:,} histories in {time.monotonic() - began:.0f} s")
        except AssertionError as error:
            breaches += 1
            say("\n".join((f"BREACH {kind}: {error}", *getattr(error, "__notes__", ()))))
    return breaches


def over_walks(walks: int, first: int) -> int:
    """Plays histories of tables that fall sick, ten nights each, through the walk from content roots to live files."""
    began, found = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="walks-") as root:
        try:
            for collector in walk(Path(root), range(first, first + walks)):
                counts = {"runs": collector.runs, "unreadable runs": collector.unreadable_runs, "files purged": len(collector.purged)}
                found += Counter(counts)
                shutil.rmtree(collector.root)
        except AssertionError as error:
            say(f"BREACH {error}")
            return 1
    say(f"walks: {walks:,} in {time.monotonic() - began:.0f} s, {', '.join(f'{count:,} {name}' for name, count in found.items())}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=300, help="programs over whole nights")
    parser.add_argument("--histories", type=int, default=10_000, help="histories of each kind through each test of its pure functions")
    parser.add_argument("--walks", type=int, default=1_000, help="histories of sick tables through the walk to live files")
    parser.add_argument("--carried", type=int, default=200, help="histories of each kind through nights that carry rows over")
    parser.add_argument("--carried-nights", type=int, default=20, help="how many nights these have")
    parser.add_argument("--beside", type=int, default=10, help="how many of them share a house")
    parser.add_argument("--days", type=int, default=3, help="days that each house lives")
    parser.add_argument("--seed", type=int, default=0, help="the first program; the next ones have the next numbers")
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path.cwd())
    breaches = over_histories(asked.histories, asked.seed) if asked.histories else 0
    breaches += over_walks(asked.walks, asked.seed) if asked.walks else 0
    breaches += over_carrying(asked.carried, asked.carried_nights, asked.seed) if asked.carried else 0
    breaches += over_nights(asked.programs, asked.seed, asked.beside, asked.days) if asked.programs else 0
    return 1 if breaches else 0


sys.exit(main())
