"""JSON output contains renamed keys under their deprecated names, too."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gc_assets.cli.explain import explanation_row
from gc_assets.cli.main import cli
from gc_assets.cli.plans import plan_row
from gc_assets.cli.run import plan_summary
from gc_assets.core.plan import Unreadable
from gc_assets.resources.platform import load_platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read.explain import Explanation
from gc_assets.stages.records.plans import approve, list_plans
from tests.assets.platforms import platform, stored_plan
from tests.cli.lakes import write_config

TORN = Unreadable(lake="sales", table_uuid="u", why="torn", since=datetime(2026, 3, 14, tzinfo=UTC))


def test_run_prints_deprecated_keys(tmp_path: Path) -> None:
    row = plan_summary(header_of(stored_plan(platform(tmp_path), unreadable=(TORN,))))
    assert row["sick"] == row["unreadable"] != []


def test_plans_prints_deprecated_keys(tmp_path: Path) -> None:
    at = platform(tmp_path)
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "ada")
    (plan,) = list_plans(at.config)
    row = plan_row(plan, at.clock.now(), at.config)
    assert row["said"] == row["decisions"]
    assert [(event["said"], event["by"]) for event in row["words"]] == [("approved", "ada")]


def test_explain_prints_summary_and_events_under_old_and_new_keys() -> None:
    event = {"plan_id": "p", "by": "ada", "decision": "approved", "text": "approved by ada"}
    row = explanation_row(Explanation("warehouse", "a", "planned", "", summary={"plan_id": "p"}, approval_events=(event,)))
    assert row["facts"] == row["summary"] == {"plan_id": "p"}
    assert row["approval_events"] == (event,)
    assert row["words"] == [{**event, "said": "approved"}]


def test_approve_reject_and_accept_print_decisions_under_old_and_new_keys(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}))
    plan_id = header_of(stored_plan(load_platform({}, config), run_date=datetime.now(UTC).date().isoformat())).plan_id

    def decide(*arguments: str) -> Any:
        result = CliRunner().invoke(cli, [*arguments, "--by", "ada", "--format", "json", "--config", config])
        assert result.exit_code == 0, result.output
        (row,) = json.loads(result.stdout)
        return row["said"], row["decision"]

    dead = "9c12d441-03fe-4693-9a96-a0705ddf69c1", f"file://{tmp_path}/warehouse/db/orders/"
    assert decide("approve", plan_id) == ("approved", "approved")
    assert decide("reject", plan_id) == ("rejected", "rejected")
    assert decide("accept", *dead) == ("dead", "dead")
    assert decide("accept", *dead, "--withdraw") == ("withdrawn", "withdrawn")
