"""A wrong key in `lakes.yaml` is reported in one sentence with the allowed values, without
pydantic's wording.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gc_assets.config.file import load_config
from gc_assets.core.errors import UsageError
from gc_assets.lakes.kinds import config_models

STORAGE = {"name": "warehouse", "location": "file:///data/warehouse/"}
LAKE = {"name": "sales", "kind": "iceberg", "catalog": {"type": "rest"}}
EMR = {"application_id": "00f1", "execution_role_arn": "arn:aws:iam::123456789012:role/gc", "entry_point": "s3://code/job.py"}
DATABRICKS = {"entry_point": "/Volumes/a/b/job.py", "exchange": "s3://code/exchange", "cluster": {"spark_version": "20.0.x-scala2.13"}}
NESSIE = {"name": "shop", "kind": "nessie", "uri": "http://localhost:19120/api/v2"}


def error_of(tmp_path: Path, *, storage: Any = None, lake: Any = None, **top: Any) -> str:
    """Return the error of a configuration with one wrong value."""
    document = {"state": "./state", "storages": [STORAGE | (storage or {})], "lakes": [lake or LAKE], **top}
    path = tmp_path / "lakes.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(UsageError) as refused:
        load_config(path, {"TOKEN": "hunter2"}, config_models())
    (_, line) = str(refused.value).split("\n")
    return line.strip()


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"storage": {"grase": "72h"}}, "storages[0].grase: unknown key; did you mean grace? Allowed: owners, tags, name, location,"),
        ({"storage": {"colour": "red"}}, "storages[0].colour: unknown key; allowed: owners, tags, name,"),
        (
            {"lake": LAKE | {"retention": {"tgas": "keep"}}},
            "lakes[0].retention.tgas: unknown key; did you mean tags? Allowed: dangling,",
        ),
        ({"lake": NESSIE | {"tokn": "${TOKEN}"}}, "lakes[0].tokn: unknown key; did you mean token?"),
        (
            {"lake": NESSIE | {"retention": {"refs": [{"match": "x", "keeep": 1}]}}},
            "lakes[0].retention.refs[0].keeep: unknown key; did you mean keep?",
        ),
        ({"lakse": []}, "lakse: unknown key; did you mean lakes? Allowed: owners, tags, state,"),
        (
            {"storage": {"quarantine": "trahs"}},
            "storages[0].quarantine: expected trash, versioned or deferred; did you mean trash? (found 'trahs')",
        ),
        (
            {"spark": {"remote": "host:15002"}},
            "spark.remote: expected sc://host:port, with parameters as in sc://host:15002/;use_ssl=true, or",
        ),
        ({"spark": {"remote": "sc://h/;use_ssl"}}, "spark.remote: parameter 'use_ssl' has no value; write use_ssl=VALUE"),
        ({"spark": {"remote": "sc://h:port"}}, "spark.remote: expected sc://host:port, with parameters"),
        ({"spark": {"remote": "sc://h/;x-key=a=b"}}, "spark.remote: the value of parameter 'x-key' contains `=`; write %3D instead"),
        ({"spark": {"remote": "sc://ana:pw@h"}}, "spark.remote: an address must not contain a user or password"),
        (
            {"spark": {"remote": "sc://h/;session_id=7"}},
            "spark.remote: parameter 'session_id' is not allowed: each run uses its own session",
        ),
        ({"storage": {"approvals_needed": 3}}, "storages[0].approvals_needed: expected 1 or 2 (found 3)"),
        (
            {"storage": {"name": "my warehouse"}},
            "storages[0].name: expected letters, digits and underscores, not starting with a digit (found 'my warehouse')",
        ),
        ({"storage": {"gates": {"max_unreadable": -1}}}, "storages[0].gates.max_unreadable: expected a number of 0 or more (found -1)"),
        ({"storage": {"money": {"usd_per_gb_month": 0}}}, "storages[0].money.usd_per_gb_month: expected a number above 0 (found 0)"),
        ({"storage": {"abort_uploads": "maybe"}}, "storages[0].abort_uploads: expected true or false (found 'maybe')"),
        (
            {"storage": {"gates": {"max_delete_bytes": "1 XB"}}},
            "storages[0].gates.max_delete_bytes: '1 XB' is not a size; write for example",
        ),
        (
            {"lake": {"name": "sales", "kind": "iceburg"}},
            "lakes[0].kind: expected one of iceberg, icechunk, lakefs, nessie; did you mean iceberg?",
        ),
        ({"lake": {"name": "sales", "kind": "iceberg"}}, "lakes[0].catalog: this key is missing and has no default"),
        ({"lake": LAKE | {"tables": "*"}}, "lakes[0].tables: expected a list, such as [a, b] (found '*')"),
        ({"first_run_date": "soon"}, "first_run_date: expected a date such as 2026-11-21 (found 'soon')"),
        ({"spark": []}, "spark: expected a mapping of keys"),
        ({"spark": {"mode": "databricks"}}, "spark: mode databricks needs the key databricks, with entry_point, exchange and cluster"),
        (
            {"spark": {"databricks": DATABRICKS | {"token": "${TOKEN}"}}},
            "spark.databricks.token: unknown key; allowed: host, entry_point, exchange, cluster, libraries",
        ),
        (
            {"spark": {"databricks": DATABRICKS | {"host": "http://dbc-0123.cloud.databricks.com"}}},
            "spark.databricks.host: expected an address such as https://",
        ),
        ({"spark": {"mode": "emr_serverless"}}, "spark: mode emr_serverless needs the key emr_serverless, with application_id,"),
        (
            {"spark": {"mode": "submit", "conf": {"spark.submit.deployMode": "cluster"}}},
            "spark: mode submit runs the driver on this machine: remove spark.submit.deployMode from conf",
        ),
        (
            {"spark": {"emr_serverless": EMR | {"exchange": "./exchange"}}},
            "spark.emr_serverless.exchange: expected an address such as s3://bucket/prefix (found './exchange')",
        ),
    ],
)
def test_wrong_key_error_is_one_sentence(wrong: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, **wrong).startswith(sentence)


def test_yaml_error_hides_secret_in_file(tmp_path: Path) -> None:
    assert error_of(tmp_path, plan_key="hunter2") == "plan_key: expected at least 16 characters"
    assert "hunter2" not in error_of(tmp_path, lake=NESSIE | {"token": ["hunter2"]})
    no_place = "spark.remote: parameter 'token' is not allowed: an address must not contain a secret; write `spark.token: ${NAME}`"
    assert error_of(tmp_path, spark={"remote": "sc://h/;token=hunter2"}) == no_place


def test_errors_contain_no_pydantic_messages(tmp_path: Path) -> None:
    document = {
        "state": 3,
        "storages": [3, STORAGE | {"s3": [], "gates": {"max_delete_share": "x", "max_live_drop": 2}, "quarantine_days": 1.5}],
        "lakes": [LAKE | {"catalog": {"a": 1}, "retention": 7}, NESSIE | {"uri": "ftp://x", "claims": {}}],
        "spark": {"conf": {"a": 1}},
        "s3": {"endpoint": "x", "prices": {"LIST": -1, "FETCH": 1}},
    }
    path = tmp_path / "lakes.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(UsageError) as refused:
        load_config(path, {}, config_models())
    lines = str(refused.value).split("\n")[1:]
    assert len(lines) == 14
    assert [line for line in lines if re.search(r"[Ii]nput|should|valid|instance|dictionary|tuple|Extra|Field", line)] == []
