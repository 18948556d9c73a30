"""Before Spark starts, the summaries of the last runs show whether a platform is small."""

from __future__ import annotations

from pathlib import Path

import pytest

from gc_assets.engine import sessions
from gc_assets.engine.sessions import was_small
from gc_assets.resources.spark import JVM_OPTIONS, SMALL_JVM_OPTIONS, SparkRuntime
from gc_assets.state.schemas import LIVE_FILES, STORAGE_INVENTORY
from tests.records import EMPTY_LIVE_SET, LAKE, STORAGE, publish_table, run_context_at

LISTED = {"objects": 3, "bytes": 0, "problems": {}, "tasks": 1, "full_listing_on": "2026-11-20"}


def test_last_run_is_small_only_if_all_its_tables_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = run_context_at(tmp_path)
    assert not was_small(context.config)
    publish_table(context, STORAGE, STORAGE_INVENTORY, [{"key": name} for name in "abc"], **LISTED)
    assert not was_small(context.config)
    publish_table(context, LAKE, LIVE_FILES, **{**EMPTY_LIVE_SET, "files": 2})
    assert was_small(context.config)
    publish_table(context, LAKE, LIVE_FILES, **{**EMPTY_LIVE_SET, "files": sessions.MAX_SMALL_ROWS + 1})
    assert not was_small(context.config)
    publish_table(context, LAKE, LIVE_FILES, **EMPTY_LIVE_SET)
    assert was_small(context.config)
    monkeypatch.setattr(sessions, "MAX_SMALL_ROWS", 2)
    assert not was_small(context.config)


def test_unreadable_state_does_not_count_as_small(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    publish_table(context, STORAGE, STORAGE_INVENTORY, **LISTED)
    publish_table(context, LAKE, LIVE_FILES, **EMPTY_LIVE_SET)
    for pointer in (tmp_path / "state" / STORAGE).rglob("current.json"):
        pointer.write_text("{")
    assert not was_small(context.config)


@pytest.mark.parametrize("conf, options", [({}, SMALL_JVM_OPTIONS), ({JVM_OPTIONS: "-Xss4m"}, "-Xss4m")], ids=["default", "configured"])
def test_small_platform_uses_quick_jvm_options(conf: dict[str, str], options: str) -> None:
    assert SparkRuntime(conf=conf, class_archive=False)._driver_conf(SMALL_JVM_OPTIONS)[JVM_OPTIONS] == options
