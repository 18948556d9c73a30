"""`python -m tests.fuzz --seconds 3600 --seed 7`: damages real objects and reads them.

A reader gives an error of ours that names the object, or an answer. It takes bounded time and memory. Where the format carries counts or
checksums, damage never makes the answer smaller. What breaks that is written to `build/fuzz/`, and the exit code is 1.
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

# Of CPU: other work of the machine fails no reader.
MOST_SECONDS: Final = 5.0
# Over what the process has when it begins. An allocation beyond it raises `MemoryError`.
MOST_BYTES: Final = 1 << 30


@dataclass
class FuzzCounts:
    """How many damaged objects each reader refused or read, and the breaches, each once by what it is."""

    refused: Counter[str] = field(default_factory=Counter[str])
    read: Counter[str] = field(default_factory=Counter[str])
    breaches: dict[str, bytes] = field(default_factory=dict[str, bytes])


def try_reader(seed: Seed, expected: int, raw: bytes) -> tuple[bool, str | None]:
    """Reads damaged bytes. Returns whether they were read, and the breach in words."""
    began, breach, is_read = time.process_time(), None, False
    try:
        count, is_read = seed.read(raw), True
        if seed.is_promised and count < expected:
            breach = f"{seed.reader}: {count} instead of {expected} without an error"
    except (GcError, OSError) as error:
        if seed.name not in f"{error} {getattr(error, 'filename', '')}":
            breach = f"{seed.reader}: an error that does not name the object: {type(error).__name__}: {str(error)[:200]}"
    except BaseException as error:  # a panic of a native reader is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        breach = f"{seed.reader}: {type(error).__name__}: {str(error)[:200]}"
    if time.process_time() - began > MOST_SECONDS:
        breach = f"{seed.reader}: took more than {MOST_SECONDS:.0f} s of CPU"
    return is_read, breach


def fuzz(seconds: float, number: int) -> FuzzCounts:
    found, chance = FuzzCounts(), random.Random(number)
    with tempfile.TemporaryDirectory() as root:
        of_reader: dict[str, list[tuple[Seed, int]]] = {}
        for seed in seeds(Path(root)):
            of_reader.setdefault(seed.reader, []).append((seed, seed.read(seed.raw)))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for reader, members in of_reader.items():  # each reader as often as any other
                seed, expected = chance.choice(members)
                raw = damage(seed.raw, chance)
                is_read, breach = try_reader(seed, expected, raw)
                (found.read if is_read else found.refused)[reader] += 1
                if breach is not None:
                    found.breaches.setdefault(breach, raw)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9), help="the same seed damages the same bytes alike")
    asked = parser.parse_args()
    found = fuzz(asked.seconds, asked.seed)
    out = sys.stdout
    for reader in sorted(found.read | found.refused):
        out.write(f"{reader:28} {found.refused[reader]:>9,} refused {found.read[reader]:>9,} read\n")
    folder = Path("build/fuzz")
    for breach, raw in found.breaches.items():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(raw).hexdigest()[:16]
        path.write_bytes(raw)
        out.write(f"BREACH {breach}\n  {path}\n")
    out.write(f"seed {asked.seed}: {sum((found.read + found.refused).values()):,} damaged objects, {len(found.breaches)} breaches\n")
    return 1 if found.breaches else 0


sys.exit(main())
