"""Damage real objects and read them: `python -m tests.fuzz --seconds 3600 --seed 7`.

A reader returns rows, or raises a project error that contains the name of the object. It uses bounded time and
memory. If the format has counts or checksums, damage never reduces the number of rows. Input that
breaks these rules is written to `build/fuzz/`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gc_assets.core.errors import GcError
from tests.fuzz.mutations import damage
from tests.fuzz.targets import Seed, seeds

# CPU time, so that other load on the machine does not matter.
MAX_SECONDS: Final = 5.0
# Peak memory for one object. The seeds have at most some hundred kilobytes.
MAX_PEAK_BYTES: Final = 256 * 2**20
# In addition to the initial memory of the process. A larger allocation raises `MemoryError`.
MAX_BYTES: Final = 1 << 30


@dataclass
class FuzzCounts:
    """The objects that each reader refused or read, and the first input of each breach."""

    refused: Counter[str] = field(default_factory=Counter[str])
    read: Counter[str] = field(default_factory=Counter[str])
    breaches: dict[str, bytes] = field(default_factory=dict[str, bytes])


def try_reader(seed: Seed, expected: int, raw: bytes) -> tuple[bool, str | None]:
    """Read damaged bytes. Returns whether they were read, and a description of a breach."""
    started, resident, peak, breach, is_read = time.process_time(), resident_bytes(), peak_bytes(), None, False
    try:
        count, is_read = seed.read(raw), True
        if seed.is_promised and count < expected:
            breach = f"{seed.reader}: {count} instead of {expected} without an error"
    except (GcError, OSError) as error:
        if seed.name not in f"{error} {getattr(error, 'filename', '')}":
            breach = f"{seed.reader}: an error without the name of the object: {type(error).__name__}: {str(error)[:200]}"
    except BaseException as error:  # a panic in native code is not an Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        breach = f"{seed.reader}: {type(error).__name__}: {str(error)[:200]}"
    if time.process_time() - started > MAX_SECONDS:
        breach = f"{seed.reader}: took more than {MAX_SECONDS:.0f} s of CPU"
    if peak_bytes() > max(peak, resident + MAX_PEAK_BYTES):
        breach = f"{seed.reader}: took {(peak_bytes() - resident) / 2**20:,.0f} MiB for {len(raw):,} bytes"
    return is_read, breach


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def fuzz(seconds: float, number: int) -> FuzzCounts:
    found, chance = FuzzCounts(), random.Random(number)
    with tempfile.TemporaryDirectory() as root:
        seeds_by_reader: dict[str, list[tuple[Seed, int]]] = {}
        for seed in seeds(Path(root)):
            seeds_by_reader.setdefault(seed.reader, []).append((seed, seed.read(seed.raw)))
        current = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (current + MAX_BYTES, current + MAX_BYTES))
        until = time.process_time() + seconds
        while time.process_time() < until:
            for reader, members in seeds_by_reader.items():  # each reader equally often
                seed, expected = chance.choice(members)
                raw = damage(seed.raw, chance)
                is_read, breach = try_reader(seed, expected, raw)
                (found.read if is_read else found.refused)[reader] += 1
                if breach is not None:
                    found.breaches.setdefault(breach, raw)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time, so that other load on the machine does not matter")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9), help="the same seed damages the bytes in the same way")
    options = parser.parse_args()
    found = fuzz(options.seconds, options.seed)
    out = sys.stdout
    for reader in sorted(found.read | found.refused):
        out.write(f"{reader:28} {found.refused[reader]:>9,} refused {found.read[reader]:>9,} read\n")
    folder = Path("build/fuzz")
    for breach, raw in found.breaches.items():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(raw).hexdigest()[:16]
        path.write_bytes(raw)
        out.write(f"BREACH {breach}\n  {path}\n")
    out.write(f"seed {options.seed}: {sum((found.read + found.refused).values()):,} damaged objects, {len(found.breaches)} breaches\n")
    return 1 if found.breaches else 0


sys.exit(main())
