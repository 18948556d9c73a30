"""`gc-assets set-aside` records and withdraws a decision, and lists the unreadable tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from gc_assets.core.plan import Unreadable
from gc_assets.resources.platform import load_platform
from gc_assets.stages.records.set_aside import with_set_aside
from gc_assets.state.schemas import LIVE_FILES
from tests.cli.lakes import write_config
from tests.records import publish_table

START = datetime(2026, 3, 14, tzinfo=UTC)
ORDERS = Unreadable(lake="sales", table_name="db.orders", why="format version 4", since=START)
COUNTS: dict[str, Any] = dict.fromkeys(("files", "live_bytes", "expired_files", "dangling_files", "external_files"), 0)
AMOUNTS: dict[str, Any] = {name: {} for name in ("by_kind", "by_storage", "metadata_by_storage")}


class Runs:
    """A lake whose last run could not read `db.orders`."""

    def __init__(self, root: Path) -> None:
        self.config = str(write_config(root, {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}))
        self.context = load_platform({}, self.config).run_context(START.date())
        publish_table(self.context, "sales", LIVE_FILES, unreadable=[ORDERS.model_dump(mode="json")], **COUNTS, **AMOUNTS)

    def invoke(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["set-aside", *arguments, "--by", "ada", "--config", self.config])

    def record(self, item: Unreadable) -> str | None:
        (found,) = with_set_aside(self.context, [item])
        return found.set_aside


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.mark.parametrize("name", ["db.orders", "sales/db.orders"])
def test_set_aside_record_is_valid_while_the_table_stays_unreadable(runs: Runs, name: str) -> None:
    result = runs.invoke(name, "--comment", "only its own files", "--format", "json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["lake"], row["table"], row["decision"]) == ("sales", "db.orders", "set_aside")
    assert "only its own files" in (runs.record(ORDERS) or "")
    assert runs.record(ORDERS.model_copy(update={"since": datetime.now(UTC).replace(year=2100)})) is None
    assert runs.record(ORDERS.model_copy(update={"lake": "other"})) is None


def test_set_aside_record_does_not_apply_to_another_table_of_equal_name(runs: Runs) -> None:
    assert runs.invoke("db.orders").exit_code == 0
    assert runs.record(ORDERS) is not None
    assert runs.record(ORDERS.model_copy(update={"identity": "s3://bucket/db/orders/metadata/00000-a.metadata.json"})) is None


def test_withdrawn_set_aside_record_is_not_valid(runs: Runs) -> None:
    assert runs.invoke("db.orders").exit_code == 0
    assert runs.invoke("db.orders", "--withdraw").exit_code == 0
    assert runs.record(ORDERS) is None


def test_dropped_table_that_may_have_been_renamed_is_set_aside_too(runs: Runs) -> None:
    """A record is valid from the time when its table became unreadable. The dropped table is missed later."""
    later = datetime.now(UTC).replace(year=2100)
    dropped = Unreadable(lake="sales", table_uuid="u", table_name="db.dropped", why="may be db.orders", since=later, may_be="db.orders")
    assert runs.invoke("db.orders").exit_code == 0
    assert all(item.set_aside for item in with_set_aside(runs.context, [dropped, ORDERS]))
    for orders in (ORDERS.model_copy(update={"lake": "other"}), ORDERS.model_copy(update={"since": later})):
        assert not any(item.set_aside for item in with_set_aside(runs.context, [dropped, orders]))
    assert with_set_aside(runs.context, [dropped]) == (dropped,)
    assert runs.invoke("db.orders", "--withdraw").exit_code == 0
    assert not any(item.set_aside for item in with_set_aside(runs.context, [dropped, ORDERS]))


@pytest.mark.parametrize(
    "arguments, message", [(("db.other",), "Unreadable tables: db.orders"), (("db.orders", "--withdraw"), "there is nothing to withdraw")]
)
def test_set_aside_error_contains_the_next_step(runs: Runs, arguments: tuple[str, ...], message: str) -> None:
    result = runs.invoke(*arguments)
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output
