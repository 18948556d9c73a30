"""`python -m tests.programs --programs 300 --seed 7`: plays random programs over a store that lies, and over the pure functions of each kind.

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
from tests.programs.nights import play


def over_nights(programs: int, first: int, beside: int, days: int) -> int:
    """Plays programs over whole nights, and returns how many houses broke a promise."""
    spark = SparkRuntime(mode="session", master="local[2]", remote="local[2]", conf=TEST_CONF).session()
    events, breaches, began = Counter[str](), 0, time.monotonic()
    for seed in range(first, first + programs, beside):
        root = Path(tempfile.mkdtemp(prefix="programs-"))
        try:
            events += play(spark, root, range(seed, min(seed + beside, first + programs)), days)
        except AssertionError as error:
            breaches += 1
            print(f"BREACH {error}", flush=True)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        print(f"{time.monotonic() - began:7.0f} s: {', '.join(f'{count:,} {name}' for name, count in sorted(events.items()))}", flush=True)
    spark.stop()
    return breaches


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=300, help="programs over whole nights")
    parser.add_argument("--beside", type=int, default=5, help="how many of them share a house")
    parser.add_argument("--days", type=int, default=3, help="days that each house lives")
    parser.add_argument("--seed", type=int, default=0, help="the first program; the next ones have the next numbers")
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.getcwd()
    return 1 if over_nights(asked.programs, asked.seed, asked.beside, asked.days) else 0


sys.exit(main())
