"""What a stretch of work took is measured without slowing it down."""

from __future__ import annotations

import os

from benchmarks.meter import Meter

MIB = 2**20


def test_each_stretch_of_work_has_its_own_peak_though_memory_is_read_only_where_it_changed() -> None:
    meter = Meter(os.getpid())
    with meter.measure() as first:
        pass
    with meter.measure() as again:
        pass
    with meter.measure() as larger:
        held = bytes(range(256)) * (200 * MIB // 256)
    del held
    assert first.peak_bytes == first.peak_driver_bytes + first.peak_jvm_bytes > 0
    assert again.peak_bytes == first.peak_bytes, "nothing changed, so nothing was read again"
    assert larger.peak_bytes > first.peak_bytes + 150 * MIB
