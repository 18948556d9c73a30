"""Hashes of live keys cannot be read from the tables of older releases."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import sentinel

import pytest

from gc_assets.core.errors import StateError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.schemas import LIVE_FILES
from tests.records import LAKE, STORAGE, publish_table, run_context_at


def test_error_for_a_table_of_release_0_3_contains_the_command(tmp_path: Path) -> None:
    """A user has upgraded, and materializes only `deletion_plan` of a run date before the upgrade."""
    context = run_context_at(tmp_path)
    row = {"storage": STORAGE, "key": "weather/chunks/a", "kind": Kind.DATA, "lake": LAKE, "size_bytes": 5}
    table = publish_table(context, LAKE, LIVE_FILES, [row])
    with pytest.raises(StateError, match=rf"lake {LAKE} of {context.run_date}.*`gc-assets run --run-date {context.run_date}`"):
        LiveKeys.of(sentinel.spark, context, STORAGE, [table])
