"""`gc-assets scan` on a lake without a configuration."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from tests.cli.lakes import SmallLake, small_lake

pytestmark = pytest.mark.spark


def scan(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, ["scan", *arguments])


def contents(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and modification time of everything under a directory."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*")}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    lake = small_lake(tmp_path_factory.mktemp("scanned"))
    lake.lakes_yaml.unlink()
    return lake


@pytest.fixture(scope="module")
def scanned(spark: SparkSession, lake: SmallLake, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    """Scan the lake with a Dagster instance in the environment. Return the result and the page."""
    folder = tmp_path_factory.mktemp("page")
    before = contents(lake.root), set(Path(tempfile.gettempdir()).glob("gc-assets-scan-*"))
    result = scan(str(lake.root), "-o", str(folder / "scan.html"), DAGSTER_HOME=str(folder / "home"), COLUMNS="80")
    assert result.exit_code == 0, result.stderr
    assert (contents(lake.root), set(Path(tempfile.gettempdir()).glob("gc-assets-scan-*"))) == before
    assert [path.name for path in folder.iterdir()] == ["scan.html"]
    return result, (folder / "scan.html").read_text()


def test_scan_leaves_lake_and_state_unchanged(scanned: tuple[Result, str]) -> None:
    result, page = scanned
    assert "This is an estimate under these assumptions:" in result.stdout
    assert "An estimate. Nothing was changed, and nothing is kept." in page


def test_scan_counts_equal_those_of_a_run(scanned: tuple[Result, str], lake: SmallLake) -> None:
    text = scanned[0].stdout
    (storage,) = yaml.safe_load(text[text.index("# yaml-language-server") :])["storages"]
    shares = {
        match[1]: int(match[2].replace(",", ""))
        for line in text.splitlines()
        if (match := re.match(rf"{storage['name']} +(.+?)  +([\d,]+)  ", line))
    }
    inside = [key for key in sorted(lake.keys()) if f"file://{lake.builder.warehouse / key}".startswith(storage["location"])]
    assert shares.pop("stored") == len(inside) == sum(shares.values())
    assert shares["garbage"] == len(lake.leftovers) == 4
    assert shares["within the grace period"] == 1
    assert shares["expired history"] > 0


def test_scan_output_ends_with_the_configuration_that_init_writes(scanned: tuple[Result, str], lake: SmallLake, tmp_path: Path) -> None:
    path = tmp_path / "lakes.yaml"
    assert CliRunner().invoke(cli, ["init", str(lake.root), "-o", str(path)]).exit_code == 0
    assert scanned[0].stdout.rstrip().endswith(path.read_text().rstrip())
    assert yaml.safe_load(path.read_text())["lakes"][0]["kind"] == "iceberg"


def test_scan_page_does_not_offer_a_plan(scanned: tuple[Result, str], lake: SmallLake) -> None:
    page = scanned[1]
    assert "gc-assets approve" not in page
    assert f"<code>gc-assets init {lake.root}</code> writes this file." in page
    assert "The plan</h3>" not in page


def test_scan_warns_of_metadata_from_an_unconfigured_catalog(spark: SparkSession, tmp_path: Path) -> None:
    lake = small_lake(tmp_path)
    other = lake.builder.warehouse / "shop" / "orders" / "other" / "metadata"
    other.mkdir(parents=True)
    (metadata,) = sorted((lake.builder.warehouse / "shop" / "orders" / "metadata").glob("*.metadata.json"))[-1:]
    text = re.sub(r'"table-uuid":\s*"[^"]+"', '"table-uuid":"11111111-2222-3333-4444-555555555555"', metadata.read_text())
    (other / "00001-aaaa.metadata.json").write_text(text)
    result = scan(str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "Doubt: warehouse: " in result.stdout
    assert "11111111-2222-3333-4444-555555555555" in result.stdout.replace("\n", "")


def test_scan_warns_of_foreign_files(spark: SparkSession, tmp_path: Path) -> None:
    lake = small_lake(tmp_path)
    landing = lake.builder.warehouse / "shop" / "orders" / "landing"
    landing.mkdir()
    for name in ("a.csv", "b.csv"):
        (landing / name).write_text("1")
        os.utime(landing / name, (0, 0))
    result = scan(str(tmp_path), COLUMNS="200")
    assert result.exit_code == 0, result.stderr
    assert "Doubt: warehouse: 2 files (2 B) may belong to others and are not planned. See Foreign files" in result.stdout


def test_temporary_directory_inside_the_scanned_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = small_lake(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(lake.builder.warehouse / "shop"))
    before = contents(tmp_path)
    result = scan(str(tmp_path))
    assert result.exit_code == 2
    assert "Set TMPDIR to another directory" in " ".join(result.stderr.split())
    assert contents(tmp_path).keys() == before.keys()


def test_folder_without_a_lake_is_refused(tmp_path: Path) -> None:
    result = scan(str(tmp_path))
    assert result.exit_code == 2
    assert "no lake found" in result.stderr
