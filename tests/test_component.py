"""The component for other Dagster projects. `tests/test_packaging.py` uses it in a project with
`dg`.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox
from pydantic import ValidationError

from gc_assets.component import EXAMPLE_CONFIG, LakeGarbageCollection
from gc_assets.core.errors import UsageError
from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import load_platform
from tests.assets.snapshot import specs

pytestmark = pytest.mark.compat  # in every cell of make compat, so also with the lowest and the newest Dagster


def test_scaffolded_configuration_loads_in_plan_mode() -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(LakeGarbageCollection)
        assert (folder / "lakes.yaml").read_text() == EXAMPLE_CONFIG
        assert load_platform({}, str(folder / "lakes.yaml")).config.storages[0].mode == "plan"
        with sandbox.load_component_and_build_defs(folder) as (component, definitions):
            assert isinstance(component, LakeGarbageCollection)
            keys = {key.to_user_string() for key in definitions.resolve_all_asset_keys()}
            assert {"sales/catalog", "sales/live_files", "warehouse/deletion_plan"} <= keys


def test_scaffold_prints_the_path_of_the_example_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(LakeGarbageCollection) / "lakes.yaml"
        shown = capsys.readouterr().out
    assert f"Wrote an example to {path}. Replace its paths, then run gc-assets doctor --config {path}\n" in shown


@pytest.mark.parametrize("given", ["absolute", "relative to where dg runs"])
def test_existing_configuration_is_not_changed(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "lakes.yaml"
    own.write_text(EXAMPLE_CONFIG.replace("sales", "shop"))
    monkeypatch.chdir(tmp_path)
    with create_defs_folder_sandbox() as sandbox:
        named = str(own) if given == "absolute" else own.name
        folder = sandbox.scaffold_component(LakeGarbageCollection, scaffold_params={"lakes_yaml": named})
        assert not (folder / "lakes.yaml").exists()
        written = Path(yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]["lakes_yaml"])
        assert (written.is_absolute(), (folder / written).samefile(own)) == (given == "absolute", True)
        with sandbox.load_component_and_build_defs(folder) as (_, definitions):
            assert dg.AssetKey(["shop", "catalog"]) in definitions.resolve_all_asset_keys()


def test_error_for_missing_configuration_contains_the_component_key() -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(LakeGarbageCollection)
        (folder / "defs.yaml").write_text((folder / "defs.yaml").read_text().replace("lakes.yaml", "../lakes.yaml"))
        with pytest.raises(Exception, match="Error while building definitions") as raised, sandbox.load_component_and_build_defs(folder):
            pass
        lost = folder.parent / "lakes.yaml"
        assert isinstance(error := raised.value.__cause__, UsageError)
        assert str(error).startswith(f"configuration {lost} does not exist; correct `lakes_yaml` in {folder / 'defs.yaml'}, or ")


def test_error_for_missing_project_configuration_contains_the_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"configuration {tmp_path}/lost.yaml does not exist; correct the path, or create the file with"):
        build_definitions(tmp_path / "lost.yaml")


@pytest.mark.parametrize("given, expected", [("lake.yaml", "lake.yaml does not exist"), ("", " is not a file")])
def test_missing_configuration_is_refused_before_anything_is_written(
    given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with create_defs_folder_sandbox() as sandbox:
        with pytest.raises(ValidationError, match=f"{expected}. Enter the path of an existing lakes.yaml, or omit --lakes-yaml"):
            sandbox.scaffold_component(LakeGarbageCollection, scaffold_params={"lakes_yaml": given})
        assert [path for path in sandbox.defs_folder_path.rglob("*") if path.name in {"defs.yaml", "lakes.yaml"}] == []


def test_build_definitions_accepts_paths_and_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lakes.yaml"
    path.write_text(EXAMPLE_CONFIG)
    monkeypatch.setenv("GC_ASSETS_CONFIG", str(tmp_path / "another.yaml"))
    assert specs(build_definitions(path)) == specs(build_definitions(str(path))) == specs(build_definitions(load_platform({}, str(path))))
