"""Compare the documentation with the code."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from gc_assets.config import models as config
from gc_assets.config.azure import AzureConfig
from gc_assets.config.gcs import GcsConfig
from gc_assets.config.models import InventoryConfig
from gc_assets.config.notify import TARGETS
from gc_assets.config.s3 import S3Config
from gc_assets.core import gates
from gc_assets.core.notifications import EVENTS
from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.icechunk.config import IcechunkExpiry, IcechunkRetention
from gc_assets.lakes.kinds import all_tables, config_of
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig, LakeFsRetention
from gc_assets.lakes.nessie.config import NessieLakeConfig, NessieRetention
from gc_assets.report.metrics import FAMILIES, RENAMED
from tests.commands import command_lines, commands_in_prose, console_blocks, error_in_block, error_in_prose
from tests.lakes.nessie.scenarios import SCENARIOS

ROOT = Path(__file__).parent.parent


def type_of(field: pa.Field[Any]) -> str:
    return str(field.type).split("<")[0].partition("[")[0]


def item(text: str) -> list[str]:
    return textwrap.wrap(f"- {text}", 100, subsequent_indent="  ", break_on_hyphens=False)


def table_page() -> str:
    """Return docs/tables.md for the current schemas. `python -m tests.test_docs` writes it."""
    tables = all_tables().values()
    counts = Counter((field.name, type_of(field), table.column_doc(field.name)) for table in tables for field in table.schema)
    common = [column for column, count in counts.items() if count > 1 and not column[2].startswith("As in ")]
    assert len(common) == len({name for name, _, _ in common})
    by_scope = {scope: [f"`{table.name}`" for table in tables if table.scope == scope] for scope in ("lake", "storage")}
    assert [name for names in by_scope.values() for name in names] == [f"`{table.name}`" for table in tables]

    def column(name: str, kind: str, doc: str, star: str = "") -> list[str]:
        return item(f"`{name}`{star}{'' if kind == 'string' else f' ({kind})'}: {doc}")

    lines = ["# Tables", ""]
    lines += ["Each run publishes its results in the state, as tables of Parquet files:"]
    lines += ["`<state>/<lake or storage>/<table>/run_date=YYYY-MM-DD/<run id>/*.parquet`. If a run date has"]
    lines += ["several runs, `current.json` in its directory points to [the valid one](architecture.md#the-state).", ""]
    first = by_scope["storage"][0]
    lines += [f"The tables before {first} exist once per lake, and the others once per storage. A star"]
    lines += ["marks the key. Columns without a type are strings, times are in UTC, and sizes are in bytes.", ""]
    lines += ["The rows of `live_files` are computed when you read them. To export them, use `gc-assets show"]
    lines += ["live_files -o FILE`, or `gc_assets.open().run().live_files()` in Python.", ""]
    lines += ["## Common columns", ""]
    lines += ["Tables list only the names of these columns, under *Common*.", ""]
    lines += [line for entry in common for line in column(*entry)]
    for table in tables:
        lines += ["", f"## {table.name}", "", *textwrap.wrap(table.doc, 100), ""]
        referred: dict[str, list[str]] = {}
        for field in table.schema:
            name, doc = field.name, table.column_doc(field.name)
            entry = name, type_of(field), doc
            star = "\\*" if name in table.key else ""
            if entry in common or re.fullmatch(r"As in `\w+`\.", doc):
                referred.setdefault("Common" if entry in common else doc[:-1], []).append(f"`{name}`{star}")
            else:
                lines += column(*entry, star)
        for origin in sorted(referred):
            lines += item(f"{origin}: {', '.join(referred[origin])}.")
    return "\n".join(lines) + "\n"


def test_tables_page_matches_the_schemas() -> None:
    assert (ROOT / "docs" / "tables.md").read_text() == table_page()


@pytest.mark.parametrize(
    "model",
    [
        config.StorageConfig,
        config.LakeConfig,
        config.Gates,
        InventoryConfig,
        IcebergRetention,
        IcechunkRetention,
        IcechunkExpiry,
        LakeFsRetention,
        LakeFsLakeConfig,
        NessieRetention,
    ],
)
def test_configuration_page_contains_every_key(model: type[config.StorageConfig]) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert {name for name in model.model_fields if f"{name}`" not in page and f"{name}[]`" not in page} <= {
        "gates",
        "money",
        "kind",
        "retention",
    }


def test_configuration_page_contains_every_target_and_event() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text().split("## notify[]")[1].split("\n## ")[0]
    names = {name for model in TARGETS.values() for name in model.model_fields}
    assert {name for name in {*names, *TARGETS, *EVENTS} if f"`{name}`" not in page} == set()


def test_metrics_page_matches_the_metrics() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    deprecated = {name for name, _, _ in RENAMED}
    current = [family for family in FAMILIES if family[0] not in deprecated]
    lines = [line for name, labels, doc in current for line in item(f"`gc_assets_{name}{{{','.join(labels)}}}`: {doc}")]
    assert "\n" + "\n".join(lines) + "\n\n" in page
    assert {name for name in deprecated if f"`gc_assets_{name}`" not in page} == set()


def test_s3_reference_contains_every_setting() -> None:
    page = (ROOT / "docs" / "s3-reference.md").read_text().split("## Settings")[1].split("\n## ")[0]
    assert [name for name in S3Config.model_fields if f"- `{name}`" not in page] == []


def test_gcs_page_contains_every_setting() -> None:
    page = (ROOT / "docs" / "gcs.md").read_text().split("## Settings")[1].split("\n## ")[0]
    assert [name for name in GcsConfig.model_fields if f"- `{name}`" not in page] == []


def test_azure_page_contains_every_setting() -> None:
    page = (ROOT / "docs" / "azure.md").read_text().split("## Settings")[1].split("\n## ")[0]
    assert [name for name in AzureConfig.model_fields if f"- `{name}`" not in page] == []


def test_configuration_page_contains_every_nessie_key() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text().split("of kind `nessie`")[1]
    named = {name for name in NessieLakeConfig.model_fields if f"- `{name}`" in page or f"- `{name}." in page}
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


def test_nessie_page_maps_every_option_of_nessie_gc() -> None:
    table = (ROOT / "docs" / "nessie.md").read_text().split("## Migrating from nessie-gc")[1].split("\n## ")[0]
    left = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| "))
    named = {text.split()[0] for text in re.findall("`([^`]+)`", left)}
    assert named == set(NESSIE_GC.split())


def test_nessie_page_contains_every_setting() -> None:
    page = (ROOT / "docs" / "nessie.md").read_text()
    names = [
        *NessieLakeConfig.model_fields.keys() - config.LakeConfig.model_fields.keys(),
        *(f"retention.{key}" for key in NessieRetention.model_fields),
    ]
    assert [name for name in names if f"`{name}" not in page] == []


def test_adr_on_nessie_gc_differences_cites_existing_tests() -> None:
    table = (ROOT / "docs" / "adr" / "0013-differences-from-nessie-gc.md").read_text().split("## Decision")[1].split("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    proofs = [re.findall("`([^`]+)`", row[3]) for row in rows]
    assert all(proofs)
    stories = {story.name for story in SCENARIOS}
    tests = set(re.findall(r"^def (test_\w+)", "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")), re.MULTILINE))
    assert {name for names in proofs for name in names} - stories - tests == set()


def test_safety_page_contains_every_gate() -> None:
    page = (ROOT / "docs" / "safety.md").read_text()
    functions = inspect.getmembers(gates, inspect.isfunction)
    names = [name for name, found in functions if "GateResult" in found.__annotations__["return"] and not name.startswith("_")]
    assert len(names) > 15
    assert {name for name in names if f"`{name}`" not in page} == set()


PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted((ROOT / "docs").glob("*.md"))]


def test_command_lines_in_blocks_are_valid() -> None:
    lines = [(page.name, line) for page in PAGES for line in command_lines(page.read_text())]
    assert len(lines) > 40
    assert [(page, wrong) for page, line in lines if (wrong := error_in_block(line)) is not None] == []


def test_commands_in_page_text_exist() -> None:
    named = [(page.name, arguments) for page in PAGES for arguments in commands_in_prose(page.read_text())]
    assert len(named) > 40
    assert [(page, wrong) for page, arguments in named if (wrong := error_in_prose(arguments)) is not None] == []


@pytest.mark.parametrize(
    "page, wrong",
    [
        ("```console\n$ gc-assets shwo plan   # a table\n```", "gc-assets shwo plan: No such command 'shwo'; did you mean show?"),
        ("1. Then\n   ```console\n   gc-assets apply\n   ```", "gc-assets apply: Missing argument 'PLAN_ID'."),
        ("Run `gc-assets approve PLAN\n--who ada`.", "gc-assets approve PLAN --who ada: No such option '--who'."),
        ("Run `gc-assets run --run-date today`.", "gc-assets run --run-date today: Invalid value for '--run-date'"),
    ],
)
def test_invalid_command_lines_are_detected(page: str, wrong: str) -> None:
    found = [*map(error_in_block, command_lines(page)), *map(error_in_prose, commands_in_prose(page))]
    assert len(found) == 1
    assert str(found[0]).startswith(wrong)


ON_S3 = "no: its output depends on the server; tests/stages/test_s3_protocol.py and tests/cli/test_doctor_s3.py do the same"
ON_AZURE = "no: its output depends on the account; tests/cli/test_azure.py and tests/stages/test_azure_protocol.py do the same"
ON_CLUSTER = "no: it uses another machine; tests/cluster.py starts the same on loopback"
# The test that runs a console block, by page and first line, or the reason why none does.
TESTED_BY = {
    ("azure.md", "$ az login"): ON_AZURE,
    ("azure.md", "$ npx azurite-blob --skipApiVersionCheck &"): "no: it downloads the server; tests/azure/servers.py starts the same",
    ("CONTRIBUTING.md", "make env"): "no: `make test` is what runs the tests",
    ("CONTRIBUTING.md", "make test"): "no: `make test` is what runs the tests",
    ("README.md", "$ gc-assets plans"): "test_readme_shows_the_plan_of_the_demo",
    (
        "README.md",
        "python -m pip install -c constraints.txt '.[iceberg,icechunk,lakefs,nessie,ui]'",
    ): "no: it installs into the user's environment",
    (
        "README.md",
        "gc-assets scan /data/warehouse",
    ): "no: it uses a server of the user; tests/cli/test_scan.py and tests/cli/test_init.py run it on others",
    ("README.md", "make demo"): "no: `make test` is what runs the tests; tests/test_demo.py runs the demo",
    ("tutorial.md", "make demo"): "no: as in the README",
    ("tutorial.md", "source .venv/bin/activate"): "test_commands_of_tutorial_and_demo_work_in_order",
    ("tutorial.md", "export GC_ASSETS_UNSAFE_NOW=$(date -u -d '+1 day' +%FT03:00:00+00:00)"): (
        "test_later_run_purges_and_snapshots_stay_readable"
    ),
    ("cli.md", 'eval "$(_GC_ASSETS_COMPLETE=bash_source gc-assets)"'): "test_shell_completion_lists_the_commands",
    ("cli.md", "$ gc-assets doctor"): "test_commands_of_the_cli_page_work_in_order",
    ("cli.md", "$ gc-assets scan /data/warehouse -o scan.html"): "no: it uses a folder of the user; tests/cli/test_scan.py scans others",
    (
        "cli.md",
        "$ gc-assets export focus --since 2026-11-01 -o november.csv",
    ): "no: it needs runs of the user; tests/report/test_focus.py exports others",
    ("clusters.md", "python3.11 -m venv /opt/gc"): "no: it installs into /opt; tests/cluster.py makes such a Python",
    ("clusters.md", "pip install 'pyspark==4.3.0'"): ON_CLUSTER,
    ("clusters.md", "pip install 'gc-assets[iceberg]'"): "no: it replaces the Spark of the tests",
    (
        "clusters.md",
        "$SPARK_HOME/bin/spark-class org.apache.spark.deploy.worker.Worker --cores 4 --memory 8g spark://spark.example.org:7077",
    ): ON_CLUSTER,
    ("dagster.md", "pip install 'PATH_OF_A_CHECKOUT[iceberg]' dagster-webserver dagster-dg-cli"): (
        "test_component_works_in_another_project"
    ),
    ("deployment.md", "make ui"): "no: it runs until the user stops it; tests/assets/test_in_a_browser.py opens that page",
    (
        "deployment.md",
        "export GC_ASSETS_PASSWORD=$(openssl rand -hex 16)",
    ): "no: no Docker here; tests/compose_services.py runs the services",
    ("deployment.md", "dagster code-server start -h 0.0.0.0 -p 4000 -m gc_assets.definitions --location-name lake_gc"): (
        "test_launchpad_approves_applies_and_restores"
    ),
    ("deployment.md", "dagster-cloud deployment sync-locations -w dagster_cloud.yaml"): "no: it needs a Dagster+ account",
    (
        "managed_spark.md",
        "aws s3 cp environment.tar.gz s3://collector/code/environment.tar.gz",
    ): "no: it needs an AWS account; tests/job/test_emr_serverless.py uploads the script to a local server",
    ("deployment.md", "python -m gc_assets.resources.connect_server --stop"): "test_stop_ends_server_started_by_python_under_another_name",
    ("gcs.md", "$ MEMBER=serviceAccount:gc-read@PROJECT.iam.gserviceaccount.com"): "no: it needs a Google Cloud account",
    ("gcs.md", "$ gc-assets doctor --all"): "no: it needs a Google Cloud account; tests/stages/test_gcs_protocol.py makes such plans",
    (
        "catalog_policies.md",
        "gc-assets run",
    ): "no: it needs a lake of the user; tests/lakes/iceberg/test_catalog_policies.py reads such policies",
    ("iceberg-expiry.md", "gc-assets run"): "no: it needs a lake of the user; tests/lakes/iceberg/test_expire.py tests the edits",
    ("managed_spark.md", "pip freeze --exclude pyspark --exclude gc-assets >requirements.txt"): (
        "no: it needs a Databricks workspace; tests/job/test_databricks.py runs such a job with a fake"
    ),
    ("metrics.md", "gc-assets metrics --out /var/lib/node_exporter/gc_assets.prom"): "no: it writes into a directory of another program",
    ("metrics.md", "pip install 'gc-assets[otel]'"): "no: it needs a collector; tests/engine/test_telemetry.py exports to the console",
    ("nessie.md", "gc-assets doctor"): "no: it needs a Nessie server of the user; tests/stages/test_nessie_*.py run such lakes",
    ("performance.md", "python -m benchmarks all --list"): (
        "no: all of it takes hours; tests/benchmarks/test_suite.py runs `all` on small rows"
    ),
    ("scale.md", "python -m benchmarks scale --tables 1000 --commits 200 --engine 'local[2]'"): "no: it builds large lakes for minutes",
    ("s3.md", 'make demo ARGS="--s3"'): "test_demo_on_another_s3_server",
    ("s3.md", "$ export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…"): ON_S3,
    ("s3.md", "$ export GC_ASSETS_UNSAFE_NOW=$(date -u -d '+7 days' +%FT03:00:00+00:00)"): ON_S3,
    ("s3.md", "$ gc-assets doctor --all"): ON_S3,
}


def test_every_console_block_has_a_test_or_a_reason() -> None:
    found = {(page.name, lines[0]) for page in PAGES for lines in console_blocks(page.read_text())}
    assert found == TESTED_BY.keys()
    tests = set(re.findall(r"^def (test_\w+)", "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")), re.MULTILINE))
    assert {who for who in TESTED_BY.values() if not who.startswith("no: ") and who not in tests} == set()


def test_make_targets_in_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = {page.name: page.read_text() for page in PAGES}
    lines = [(page, line) for page, text in texts.items() for line in (*chain(*console_blocks(text)), *re.findall("`(make [^`]+)`", text))]
    named = {(page, line.split()[1]) for page, line in lines if line.startswith("make ")}
    assert {name for _, name in named} >= {"demo", "test", "ui"}
    assert {(page, name) for page, name in named if name not in targets} == set()


def test_pre_commit_runs_the_linters_of_make_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    style, lint = re.findall(r"^(?:style|lint): .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = {line.strip().lstrip("@").replace("$(BIN)", ".venv/bin") for line in (style + lint).splitlines()}
    assert {hook["entry"] for hook in hooks} >= commands


def test_python_modules_in_pages_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"python -m ([\w.]+)", page.read_text())}
    assert {name for name in named if find_spec(name) is None} == set()


def test_readme_example_is_valid() -> None:
    block = (ROOT / "README.md").read_text().split("```yaml\n")[1].split("```")[0]
    assert config_of(yaml.safe_load(block)).storages[0].mode == "plan"


def test_readme_links_exist() -> None:
    text = (ROOT / "README.md").read_text()
    pages = [part.partition(")")[0].partition("#") for part in text.split("](")[1:]]
    assert {page for page, _, _ in pages if not (ROOT / page).exists()} == set()
    titles = {page: (ROOT / page).read_text().lower().replace(" ", "-") for page, _, anchor in pages if anchor}
    assert {(page, anchor) for page, _, anchor in pages if anchor and f"#-{anchor}\n" not in titles[page]} == set()


if __name__ == "__main__":
    (ROOT / "docs" / "tables.md").write_text(table_page())
