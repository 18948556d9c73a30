"""The meter measures blocks of work without slowing them down."""

from __future__ import annotations

import json
import subprocess
import sys

MIB = 2**20
# A process without children: those of other tests would change the result.
STRETCHES = f"""
import json, os
from benchmarks.meter import Meter

meter = Meter(os.getpid())
with meter.measure() as first:
    pass
with meter.measure() as again:
    pass
with meter.measure() as larger:
    held = bytes(range(256)) * (200 * {MIB} // 256)
print(json.dumps([[used.peak_bytes, used.peak_driver_bytes, used.peak_jvm_bytes] for used in (first, again, larger)]))
"""


def test_peak_memory_is_measured_per_block() -> None:
    done = subprocess.run([sys.executable, "-c", STRETCHES], capture_output=True, text=True, check=True)
    first, again, larger = json.loads(done.stdout)
    assert first[0] == first[1] > first[2] == 0
    assert again == first, "memory did not change, so it is not read again"
    assert larger[0] > first[0] + 150 * MIB
