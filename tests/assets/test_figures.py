"""Figures with units."""

import pytest

from gc_assets.assets.figures import figures_table, format_figure


@pytest.mark.parametrize(
    "name, value, shown",
    [
        ("live_files", 1234, "1,234 files"),
        ("live_bytes", 1_234_567, "1.23 MB"),
        ("unfinished_upload_bytes", 999, "999 B"),
        ("upload_bytes_to_abort", 2_000, "2 kB"),
        ("uploads_to_abort", 3, "3 uploads"),
        ("expired_commits", 0, "0 commits"),
        ("gates_failed", 1, "1 gate"),
        ("not_files", 2, "2 objects"),
        ("list_requests", 1200, "1,200 requests"),
        ("requests_usd", 0.0054, "0.0054 USD"),
        ("requests_usd", 12.5, "12.50 USD"),
        ("bits_per_key", 9.59, "9.59 bits per key"),
        ("false_positive_rate_measured", 0.0101, "1 %"),
    ],
)
def test_figures_are_formatted_with_units(name: str, value: float, shown: str) -> None:
    assert format_figure(name, value) == shown


def test_figures_table_has_one_row_per_figure() -> None:
    records = figures_table({"live_files": 2, "live_bytes": 300}).records
    assert [dict(record.data) for record in records] == [
        {"figure": "live files", "amount": "2 files"},
        {"figure": "live bytes", "amount": "300 B"},
    ]
