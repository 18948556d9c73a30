"""`python -m tests.programs --programs 300 --histories 10000 --seed 7`: execute random programs.

They cover a store that lies, the pure functions of each kind of lake, and live sets. The same seed
executes the same programs. The exit code is 1 if a promise is broken; the events are printed.
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
from tests.programs import lakehouse_programs, pure
from tests.stages.mark import history_runs, lake_histories
from tests.stages.mark.test_unreadable_histories import histories as walk


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check_live_sets(histories: int, days: int, first: int) -> int:
    """Run `live_files` on histories of each kind. Return the number of kinds whose live set differs
    from brute force.
    """
    spark = SparkRuntime(mode="session", master="local[2]", remote="local[2]", conf=TEST_CONF).session()
    breaches = 0
    for kind in lake_histories.LAKES:
        began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="live-sets-"))
        try:
            events = history_runs.play(spark, root, kind, histories, days, seed=first)
            counts = ", ".join(f"{count:,} {name}" for name, count in sorted(events.items()))
            print_line(f"live sets, {kind}: {counts} in {time.monotonic() - began:.0f} s")
        except AssertionError as error:
            breaches += 1
            print_line(f"BREACH {kind}: {error}")
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return breaches


def check_programs(programs: int, first: int, group_size: int, days: int) -> int:
    """Execute programs over whole runs. Return the number of lakehouses with a broken promise."""
    spark = SparkRuntime(mode="session", master="local[2]", remote="local[2]", conf=TEST_CONF).session()
    events, breaches, began = Counter[str](), 0, time.monotonic()
    for seed in range(first, first + programs, group_size):
        root = Path(tempfile.mkdtemp(prefix="programs-"))
        try:
            events += lakehouse_programs.play(spark, root, range(seed, min(seed + group_size, first + programs)), days)
        except AssertionError as error:
            breaches += 1
            print_line(f"BREACH {error}")
        finally:
            shutil.rmtree(root, ignore_errors=True)
        print_line(f"{time.monotonic() - began:.0f} s: {', '.join(f'{count:,} {name}' for name, count in sorted(events.items()))}")
    spark.stop()
    return breaches


def check_histories(histories: int, first: int) -> int:
    """Check histories of each kind. Return the number of kinds with a broken promise."""
    breaches = 0
    for kind in pure.PROGRAMS:
        began = time.monotonic()
        try:
            tried = pure.play(kind, histories, first)
            print_line(f"{kind}: {tried:,} histories in {time.monotonic() - began:.0f} s")
        except AssertionError as error:
            breaches += 1
            print_line("\n".join((f"BREACH {kind}: {error}", *getattr(error, "__notes__", ()))))
    return breaches


def check_walks(walks: int, first: int) -> int:
    """Check histories with unreadable tables, ten runs each, through the walk from content roots to
    live files.
    """
    began, found = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="walks-") as root:
        try:
            for collector in walk(Path(root), range(first, first + walks)):
                counts = {"runs": collector.runs, "unreadable runs": collector.unreadable_runs, "files purged": len(collector.purged)}
                found += Counter(counts)
                shutil.rmtree(collector.root)
        except AssertionError as error:
            print_line(f"BREACH {error}")
            return 1
    print_line(f"walks: {walks:,} in {time.monotonic() - began:.0f} s, {', '.join(f'{count:,} {name}' for name, count in found.items())}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=300, help="programs over whole runs")
    parser.add_argument("--histories", type=int, default=10_000, help="histories of each kind through each test of its pure functions")
    parser.add_argument("--walks", type=int, default=1_000, help="histories with unreadable tables through the walk to live files")
    parser.add_argument("--live-sets", type=int, default=200, help="histories of each kind through `live_files`")
    parser.add_argument("--live-set-runs", type=int, default=20, help="runs of each of these histories")
    parser.add_argument("--programs-per-lakehouse", type=int, default=10, help="programs that share a lakehouse")
    parser.add_argument("--days", type=int, default=3, help="days of each lakehouse")
    parser.add_argument("--seed", type=int, default=0, help="number of the first program")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path.cwd())
    breaches = check_histories(options.histories, options.seed) if options.histories else 0
    breaches += check_walks(options.walks, options.seed) if options.walks else 0
    breaches += check_live_sets(options.live_sets, options.live_set_runs, options.seed) if options.live_sets else 0
    breaches += check_programs(options.programs, options.seed, options.programs_per_lakehouse, options.days) if options.programs else 0
    return 1 if breaches else 0


sys.exit(main())
