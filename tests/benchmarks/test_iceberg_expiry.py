from __future__ import annotations

from benchmarks.iceberg_expiry import compare, format_table


def test_both_tools_keep_equal_snapshots_and_count_requests() -> None:
    ours, theirs = compare(expired=40, retained=5, tags=2)
    assert (ours.left, theirs.left) == (5, 5)
    assert (ours.written, theirs.written) == (1, 1)  # one commit
    assert ours.read >= 5 + 1  # the manifest lists that stay, and metadata
    assert theirs.read >= 1
    assert ours.heads >= 1  # the manifest that all of them share
    assert min(ours.statements, theirs.statements) >= 2
    assert len(list(format_table([[ours, theirs]]))) == 4
