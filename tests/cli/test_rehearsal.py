"""Commands and tables mark rehearsals (`GC_ASSETS_UNSAFE_NOW`)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from gc_assets.resources.platform import load_platform
from gc_assets.stages.delete.plan import header_of
from tests.assets.platforms import stored_plan

MARK = "REHEARSAL"


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime, str]:
    """Return a configuration, the time of a rehearsal ten days ahead, and the id of its plan."""
    root, now = tmp_path_factory.mktemp("rehearsal"), datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)
    (root / "warehouse").mkdir()
    document = {
        "state": "./state",
        "storages": [{"name": "warehouse", "location": f"file://{root}/warehouse/", "rehearsals": "allowed"}],
        "lakes": [{"name": "sales", "kind": "icechunk", "location": f"file://{root}/warehouse/lake/"}],
    }
    (root / "lakes.yaml").write_text(json.dumps(document))
    rehearsed = load_platform({"GC_ASSETS_UNSAFE_NOW": now.isoformat()}, str(root / "lakes.yaml"))
    plan_id = header_of(stored_plan(rehearsed, run_date=now.date().isoformat())).plan_id
    return root / "lakes.yaml", now, plan_id


def call(at: tuple[Path, datetime, str], *arguments: str, rehearsal: bool) -> Result:
    env = {"COLUMNS": "400", **({"GC_ASSETS_UNSAFE_NOW": at[1].isoformat()} if rehearsal else {})}
    return CliRunner(env=env).invoke(cli, [*arguments, "--config", str(at[0])])


@pytest.mark.parametrize("name", ["plans", "approve", "reject", "apply", "restore", "show deletion_plan", "explain data/0.parquet"])
def test_command_with_a_set_clock_prints_rehearsal_notice(at: tuple[Path, datetime, str], name: str) -> None:
    by = ["--by", "ada"] if name in {"approve", "reject"} else []
    plan = [at[2]] if name in {"approve", "reject", "apply"} else ["--plan", at[2]] if name == "restore" else []
    result = call(at, *name.split(), *plan, *by, rehearsal=True)
    assert f"REHEARSAL: GC_ASSETS_UNSAFE_NOW sets the clock to {at[1]:%Y-%m-%d %H:%M:%S}Z" in result.stderr


@pytest.mark.parametrize("name", ["approve", "apply"])
def test_rehearsal_plan_is_refused_with_the_real_clock(at: tuple[Path, datetime, str], name: str) -> None:
    refused = call(at, name, at[2], *(["--by", "ada"] if name == "approve" else ["--mode", "apply"]), rehearsal=False)
    assert refused.exit_code == 3
    assert at[2] not in refused.stderr, "messages have short ids"
    assert f"Cannot use plan {at[2][:12]} with the real clock: it was made in a rehearsal" in refused.stderr
    assert "  gc-assets run" in refused.stderr.splitlines()
    assert f"To continue the rehearsal, set GC_ASSETS_UNSAFE_NOW as before, for example to {at[1]:%Y-%m-%dT%H:%M:%S}Z." in refused.stderr


def test_rehearsal_plan_is_marked_in_the_plan_list(at: tuple[Path, datetime, str]) -> None:
    for rehearsal in (True, False):
        (row,) = [line for line in call(at, "plans", rehearsal=rehearsal).stdout.splitlines() if at[2][:12] in line]
        assert MARK in row
    result = call(at, "plans", "--format", "json", rehearsal=False)
    (listed,) = json.loads(result.stdout)
    assert listed["rehearsal"] is True
    assert MARK not in listed["status"] + result.stderr
