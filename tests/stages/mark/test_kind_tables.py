"""Kind tables that a function of the kind computes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from gc_assets.lakes.kind import KindTable
from gc_assets.stages.mark.kind_tables import make_kind_table
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.state.schemas import CURRENT_RULES
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.toy import BRANCHES
from tests.stages.lakehouse import Lakehouse


def test_verification_mark_reads_policy_tables_of_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = Lakehouse(None, tmp_path)  # type: ignore[arg-type] - no stage of this test runs in Spark
    house.lakes = [LakeBuilder(tmp_path).config("sales")]
    context = house.run_context()
    policy_table(context, "sales")
    rules = current_rules(context, "sales")
    kind_table = KindTable(BRANCHES, (CURRENT_RULES,), lambda tables: BRANCHES.schema.empty_table())
    verification = replace(context, verification_id="mark")
    with caplog.at_level(logging.INFO):
        published = make_kind_table(None, verification, "sales", kind_table)
    assert list(published.receipt.inputs.values()) == [rules.receipt.reference]
    assert published.path.startswith("_recheck/mark/sales/")
    assert [line for line in caplog.messages if f"/{BRANCHES.name} of" in line and "ended" in line]
