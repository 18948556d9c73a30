"""How a platform is known to be small before Spark starts: by what its last nights published."""

from __future__ import annotations

from pathlib import Path

import pytest

from gc_assets.engine import sessions as few_rows
from gc_assets.engine.sessions import was_small
from gc_assets.resources.spark import JVM_OPTIONS, SMALL_JVM_OPTIONS, SparkRuntime
from gc_assets.state.schemas import LIVE_FILES, STORAGE_INVENTORY
from tests.records import LAKE, STORAGE, night_at, put


def test_a_platform_is_small_once_every_storage_and_lake_had_a_small_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = night_at(tmp_path)
    assert not was_small(night.config)
    put(night, STORAGE, STORAGE_INVENTORY, [{"key": name} for name in "abc"])
    assert not was_small(night.config)
    put(night, LAKE, LIVE_FILES)
    assert was_small(night.config)
    monkeypatch.setattr(few_rows, "MAX_SMALL_ROWS", 2)
    assert not was_small(night.config)


def test_a_state_that_cannot_be_read_says_nothing_of_a_size(tmp_path: Path) -> None:
    night = night_at(tmp_path)
    put(night, STORAGE, STORAGE_INVENTORY)
    put(night, LAKE, LIVE_FILES)
    for pointer in (tmp_path / "state" / STORAGE).rglob("current.json"):
        pointer.write_text("{")
    assert not was_small(night.config)


@pytest.mark.parametrize("conf, options", [({}, SMALL_JVM_OPTIONS), ({JVM_OPTIONS: "-Xss4m"}, "-Xss4m")], ids=["ours", "the configuration's"])
def test_a_small_platform_has_a_quick_jvm_unless_the_configuration_names_options(conf: dict[str, str], options: str) -> None:
    assert SparkRuntime(conf=conf, class_archive=False)._driver_conf(SMALL_JVM_OPTIONS)[JVM_OPTIONS] == options
