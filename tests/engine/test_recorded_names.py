"""Recorded names: the names under which the state keeps the records of lakes and storages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError, StoreError
from gc_assets.engine.recorded_names import configured_entries, read_storage_id, record_names, record_storage_id, with_recorded_names
from gc_assets.lakes.kinds import config_models
from gc_assets.state.journal import State
from gc_assets.state.registry import read_registry

ICECHUNK = {"kind": "icechunk", "location": "/data/weather"}
REST = {"kind": "iceberg", "catalog": {"type": "rest", "uri": "https://catalog/", "warehouse": "prod", "token": "s3cr3t"}}
SQL = {"kind": "iceberg", "catalog_name": "c", "catalog": {"type": "sql", "uri": "postgresql://ada:s3cr3t@db/iceberg", "warehouse": "x"}}
GLUE = {"kind": "iceberg", "catalog": {"type": "glue", "glue.region": "eu-1"}}
NESSIE = {"kind": "nessie", "uri": "https://ada:s3cr3t@nessie/api/v2/"}
LAKEFS = {
    "kind": "lakefs",
    "endpoint": "http://lakefs:8000/api/v1",
    "repository": "repo",
    "access_key_id": "s3cr3t",
    "secret_access_key": "s3cr3t",
    "retention": {"source": "configured", "default": "7d"},
}


def configuration(root: Path, storages: dict[str, str], **lakes: dict[str, Any]) -> Config:
    document = {
        "state": f"{root}/state",
        "storages": [{"name": name, "location": f"{root}/{path}/"} for name, path in storages.items()],
        "lakes": [{"name": name, **lake} for name, lake in (lakes or {"weather": ICECHUNK}).items()],
    }
    return Config.of(document, config_models())


def names(config: Config) -> list[str]:
    return [item.name for item in (*config.storages, *config.lakes)]


def run_first(config: Config) -> Config:
    """Return the configuration after its first run."""
    found = with_recorded_names(config)
    record_names(found, State.of(config), Clock())
    return found


@pytest.mark.parametrize(
    "lake, other",
    [
        (REST, {**REST, "catalog": {**REST["catalog"], "warehouse": "test"}}),
        (SQL, {**SQL, "catalog_name": "d"}),
        (GLUE, {**GLUE, "catalog": {"type": "glue", "glue.region": "us-1"}}),
        (NESSIE, {**NESSIE, "uri": "https://other/api/v2"}),
        (LAKEFS, {**LAKEFS, "repository": "other"}),
        (ICECHUNK, {**ICECHUNK, "location": "/data/other"}),
    ],
    ids=["rest", "sql", "glue", "nessie", "lakefs", "icechunk"],
)
def test_lakes_that_swap_names_keep_their_records(tmp_path: Path, lake: dict[str, Any], other: dict[str, Any]) -> None:
    run_first(configuration(tmp_path, {"s": "s"}, a=lake, b=other))
    swapped = with_recorded_names(configuration(tmp_path, {"s": "s"}, a=other, b=lake))
    assert names(swapped) == ["s", "b", "a"]
    assert [(lake.label, swapped.label_of(lake.name)) for lake in swapped.lakes] == [("a", "a"), ("b", "b")]
    assert [swapped.lake_of_user(name).name for name in ("a", "b")] == ["b", "a"]
    assert with_recorded_names(configuration(tmp_path, {"s": "s"}, a={**lake})).lakes[0].name == "a"


@pytest.mark.parametrize(
    "lake, other",
    [
        (REST, {**REST, "catalog": {**REST["catalog"], "token": "new", "uri": "https://catalog"}}),
        (SQL, {**SQL, "catalog": {**SQL["catalog"], "uri": "postgresql://eve:other@db/iceberg"}}),
        (NESSIE, {**NESSIE, "uri": "https://nessie/api/v2"}),
        (LAKEFS, {**LAKEFS, "endpoint": "http://lakefs:8000", "access_key_id": "new"}),
        (ICECHUNK, {**ICECHUNK, "location": "file:///data/weather/"}),
    ],
    ids=["rest", "sql", "nessie", "lakefs", "icechunk"],
)
def test_lake_identity_ignores_credentials_and_spelling(tmp_path: Path, lake: dict[str, Any], other: dict[str, Any]) -> None:
    run_first(configuration(tmp_path, {"s": "s"}, a=lake))
    assert names(with_recorded_names(configuration(tmp_path, {"s": "s"}, b=other))) == ["s", "a"]


def test_registry_contains_no_secrets(tmp_path: Path) -> None:
    run_first(configuration(tmp_path, {"s": "s"}, a=REST, b=SQL, c=NESSIE, d=LAKEFS))
    assert "s3cr3t" not in (tmp_path / "state" / "registry.json").read_text()


def test_renaming_lakes_and_storages_does_not_change_policy(tmp_path: Path) -> None:
    before = run_first(configuration(tmp_path, {"s": "s"}, a=REST))
    assert with_recorded_names(configuration(tmp_path, {"t": "s"}, b=REST)).policy_digest() == before.policy_digest()


def test_commands_that_read_do_not_write_the_registry(tmp_path: Path) -> None:
    with_recorded_names(configuration(tmp_path, {"s": "s"}))
    assert not (tmp_path / "state").exists()


def test_storage_identity_ignores_links_and_trailing_slash(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    run_first(configuration(tmp_path, {"s": "disk"}))
    assert names(with_recorded_names(configuration(tmp_path, {"t": "link/./"})))[0] == "s"


def test_records_follow_storages_if_links_are_swapped(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / f"link_{name}").symlink_to(name)
    storages = {"a": "link_one", "b": "link_two"}
    run_first(configuration(tmp_path, storages))
    for name, target in (("one", "two"), ("two", "one")):
        (tmp_path / f"link_{name}").unlink()
        (tmp_path / f"link_{name}").symlink_to(target)
    assert names(with_recorded_names(configuration(tmp_path, storages)))[:2] == ["b", "a"]


def test_two_configurations_can_share_state(tmp_path: Path) -> None:
    mine, theirs = configuration(tmp_path, {"s": "mine"}), configuration(tmp_path, {"s": "theirs", "mine": "mine"})
    run_first(mine)
    record = read_registry(State.of(mine)).find("storage", "s")
    assert record is not None
    (tmp_path / "mine" / ".gc-assets").mkdir(parents=True)
    record_storage_id(mine, State.of(mine), "s", Clock())
    assert names(run_first(theirs))[:2] == ["s_2", "s"]
    assert names(with_recorded_names(mine))[:1] == ["s"]
    assert names(with_recorded_names(theirs))[:2] == ["s_2", "s"]


def test_two_configurations_can_share_state_before_first_apply(tmp_path: Path) -> None:
    mine, theirs = configuration(tmp_path, {"s": "mine"}), configuration(tmp_path, {"s": "theirs"})
    assert [names(run_first(config))[0] for config in (mine, theirs, mine, theirs)] == ["s", "s_2", "s", "s_2"]


def test_storage_identity_ignores_link_to_state(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "state").mkdir()
    (tmp_path / "two" / "state").symlink_to("../one/state")
    assert [names(run_first(configuration(tmp_path / name, {"s": "lake"})))[0] for name in ("one", "two")] == ["s", "s_2"]


def test_concurrent_change_of_recorded_names_stops_first_run(tmp_path: Path) -> None:
    late = with_recorded_names(configuration(tmp_path, {"s": "one"}))
    run_first(configuration(tmp_path, {"s": "two", "t": "one"}))
    with pytest.raises(StateError, match="changed by another process"):
        record_names(late, State.of(late), Clock())


def test_storage_id_is_written_once(tmp_path: Path) -> None:
    config = run_first(configuration(tmp_path, {"s": "s"}))
    (tmp_path / "s" / ".gc-assets").mkdir(parents=True)
    state, storage = State.of(config), config.storages[0]
    record_storage_id(config, state, "s", Clock())
    first = read_storage_id(config, storage)
    record_storage_id(config, state, "s", Clock())
    entry = read_registry(state).find("storage", "s")
    assert entry is not None
    assert first is not None
    assert entry.storage_id == read_storage_id(config, storage) == first


def test_copy_of_storage_gets_another_id(tmp_path: Path) -> None:
    config = run_first(configuration(tmp_path, {"s": "s", "copy": "copy"}))
    for name in ("s", "copy"):
        (tmp_path / name / ".gc-assets").mkdir(parents=True)
    record_storage_id(config, State.of(config), "s", Clock())
    content = (tmp_path / "s" / ".gc-assets" / "storage_id.json").read_bytes()
    (tmp_path / "copy" / ".gc-assets" / "storage_id.json").write_bytes(content)
    record_storage_id(config, State.of(config), "copy", Clock())
    assert len({entry.storage_id for entry in read_registry(State.of(config)).entries if entry.scope == "storage"}) == 2


def test_failed_write_of_storage_id_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = run_first(configuration(tmp_path, {"s": "s"}))
    record_storage_id(config, State.of(config), "s", Clock())
    assert "got no id" in caplog.text


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_damaged_storage_id_is_refused(tmp_path: Path, content: str) -> None:
    config = configuration(tmp_path, {"s": "s"})
    (tmp_path / "s" / ".gc-assets").mkdir(parents=True)
    (tmp_path / "s" / ".gc-assets" / "storage_id.json").write_text(content)
    with pytest.raises(StoreError, match="is damaged"):
        read_storage_id(config, config.storages[0])


def test_lake_that_moves_with_state_keeps_its_records(tmp_path: Path) -> None:
    def at(root: Path) -> Config:
        sqlite = {"kind": "iceberg", "catalog": {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}}
        return configuration(root, {"s": "warehouse"}, sales=sqlite)

    (tmp_path / "old").mkdir()
    run_first(at(tmp_path / "old"))
    os.rename(tmp_path / "old", tmp_path / "new")  # noqa: PTH104  (a directory of the disk, as an administrator moves it)
    assert names(with_recorded_names(at(tmp_path / "new"))) == ["s", "sales"]
    assert json.loads((tmp_path / "new" / "state" / "registry.json").read_text())["version"] == 1


def test_lake_without_location_is_identified_by_name() -> None:
    entries = configured_entries(configuration(Path("/data"), {"s": "s"}, a=GLUE))
    assert [(entry.name, entry.location) for entry in entries] == [
        ("s", "file:///data/s/"),
        ("a", "iceberg default type=glue glue.region=eu-1"),
    ]
