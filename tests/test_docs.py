"""The documentation says what the code does, where a test can tell."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from gc_assets.config import models as config
from gc_assets.config.inventory import InventoryConfig
from gc_assets.config.notify import TARGETS
from gc_assets.config.s3 import S3Config
from gc_assets.core import gates
from gc_assets.core.notifications import EVENTS
from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.icechunk.config import IcechunkExpiry, IcechunkRetention
from gc_assets.lakes.kinds import all_tables, config_of
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig, LakeFsRetention
from gc_assets.lakes.nessie.config import NessieLakeConfig, NessieRetention
from gc_assets.report.metrics import FAMILIES
from tests.lakes.nessie.scenarios import SCENARIOS

ROOT = Path(__file__).parent.parent


def table_page() -> str:
    """docs/tables.md as the schemas have it; `python -m tests.test_docs` writes it."""
    lines = ["# Tables", ""]
    lines += ["Published as Parquet below the state, in"]
    lines += ["`<state>/<lake or storage>/<table>/run_date=YYYY-MM-DD/<run id>/*.parquet`."]
    lines += ["Times are UTC in microseconds, sizes bytes. `*` marks the key.", ""]
    for table in all_tables().values():
        said = textwrap.wrap(f"{table.doc} One per {table.scope} and run date.", 100)
        lines += [f"## {table.name}", "", *said, "", "| column | type | |", "|---|---|---|"]
        for field in table.schema:
            star = "*" if field.name in table.key else ""
            lines.append(f"| {field.name}{star} | `{str(field.type).split('<')[0].partition('[')[0]}` | {table.column_doc(field.name)} |")
        lines.append("")
    return "\n".join(lines)


def test_every_table_and_column_is_documented_as_it_is() -> None:
    assert (ROOT / "docs" / "tables.md").read_text() == table_page()


@pytest.mark.parametrize(
    "model",
    [
        config.StorageConfig,
        config.LakeConfig,
        config.Gates,
        S3Config,
        InventoryConfig,
        IcebergRetention,
        IcechunkRetention,
        IcechunkExpiry,
        LakeFsRetention,
        LakeFsLakeConfig,
        NessieRetention,
    ],
)
def test_every_key_of_the_configuration_is_documented(model: type[config.StorageConfig]) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert {name for name in model.model_fields if f"{name}`" not in page and f"{name}[]`" not in page} <= {
        "gates",
        "money",
        "kind",
        "retention",
    }


def test_every_key_of_a_target_and_every_event_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text().split("## notify[]")[1].split("\n## ")[0]
    names = {name for model in TARGETS.values() for name in model.model_fields}
    assert {name for name in {*names, *TARGETS, *EVENTS} if f"`{name}`" not in page} == set()


def test_every_metric_is_documented_as_it_is() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = [f"| `gc_assets_{name}` | {', '.join(f'`{label}`' for label in labels)} | {told} |" for name, labels, told in FAMILIES]
    assert [line for line in page.splitlines() if line.startswith("| `gc_assets_")] == rows


def test_every_setting_of_s3_is_in_its_page() -> None:
    page = (ROOT / "docs" / "s3.md").read_text().split("## Settings")[1].split("\n## ")[0]
    assert [name for name in S3Config.model_fields if f"| `{name}` |" not in page] == []


def test_every_key_of_a_nessie_lake_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text().split("of kind `nessie`")[1]
    named = {name for name in NessieLakeConfig.model_fields if f"| `{name}`" in page or f"| `{name}." in page}
    assert named == NessieLakeConfig.model_fields.keys() - config.LakeConfig.model_fields.keys()


# Research of nessie-gc's command line (picocli, 0.108.5-SNAPSHOT): its commands with their aliases, and its long options.
NESSIE_GC = """
mark-live identify mark sweep expire gc list show delete list-deferred deferred-deletes show-sql-create-schema-script create-sql-schema
completion-script show-licenses help --inmemory --jdbc --jdbc-url --jdbc-user --jdbc-password --jdbc-properties --jdbc-fetch-size
--jdbc-pool-max-size --jdbc-schema --time-zone --uri --nessie-option --nessie-client --nessie-api --default-cutoff --cutoff
--cutoff-ref-time --identify-parallelism --write-live-set-id-to --max-file-modification --expiry-parallelism --expected-file-count
--fpp --allowed-fpp --defer-deletes --no-defer-deletes --iceberg --hadoop --live-set-id --read-live-set-id-from
--with-deferred-deletes --with-content-references --with-base-locations --output-file
"""


def test_every_command_and_option_of_nessie_gc_has_its_counterpart() -> None:
    table = (ROOT / "docs" / "nessie.md").read_text().split("## Instead of nessie-gc")[1].split("\n## ")[0]
    left = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| "))
    named = {text.split()[0] for text in re.findall("`([^`]+)`", left)}
    assert named == set(NESSIE_GC.split())


def test_every_setting_of_a_nessie_lake_is_in_its_page() -> None:
    page = (ROOT / "docs" / "nessie.md").read_text()
    names = [
        *NessieLakeConfig.model_fields.keys() - config.LakeConfig.model_fields.keys(),
        *(f"retention.{key}" for key in NessieRetention.model_fields),
    ]
    assert [name for name in names if f"`{name}" not in page] == []


def test_every_difference_from_nessie_gc_names_tests_that_there_are() -> None:
    table = (ROOT / "docs" / "nessie.md").read_text().split("## Where it differs on purpose")[1].split("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    proofs = [re.findall("`([^`]+)`", row[3]) for row in rows]
    assert all(proofs)
    stories = {story.name for story in SCENARIOS}
    tests = set(re.findall(r"^def (test_\w+)", "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")), re.MULTILINE))
    assert {name for names in proofs for name in names} - stories - tests == set()


def test_every_gate_is_documented() -> None:
    page = (ROOT / "docs" / "safety.md").read_text()
    names = [name for name, value in vars(gates).items() if getattr(value, "__module__", "") == gates.__name__ and not name.startswith("_")]
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_example_of_the_readme_is_a_valid_configuration() -> None:
    block = (ROOT / "README.md").read_text().split("```yaml\n")[1].split("```")[0]
    assert config_of(yaml.safe_load(block)).storages[0].mode == "plan"


def test_every_page_that_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    pages = [part.partition(")")[0].partition("#") for part in text.split("](")[1:]]
    assert {page for page, _, _ in pages if not (ROOT / page).exists()} == set()
    titles = {page: (ROOT / page).read_text().lower().replace(" ", "-") for page, _, anchor in pages if anchor}
    assert {(page, anchor) for page, _, anchor in pages if anchor and f"#-{anchor}\n" not in titles[page]} == set()


if __name__ == "__main__":
    (ROOT / "docs" / "tables.md").write_text(table_page())
