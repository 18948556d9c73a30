"""The policy digest stays that of 0.2.0, so that plans that were approved then can still be
applied.

Release 0.2.0 computed the expected digests, with all keys of a lake and with the fewest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.utils.config import Config as PyicebergConfig

from gc_assets.lakes.iceberg.config import IcebergLakeConfig, has_pyiceberg_config
from gc_assets.lakes.kinds import config_of
from gc_assets.resources.platform import load_platform

STORAGES: list[dict[str, Any]] = [
    {"name": "warehouse", "location": "file:///data/warehouse/"},
    {
        "name": "blocks",
        "location": "file:///data/blocks/",
        "quarantine": "deferred",
        "grace": "96h",
        "quarantine_days": 0,
        "mode": "apply",
        "gates": {"max_delete_share": 0.5, "max_delete_bytes": "2TB", "max_live_drop": 1},
        "money": {"usd_per_gb_month": 0.023},
    },
]
RULES = {"default": "30d", "refs": [{"match": "release/.*", "keep": "forever"}, {"match": "main", "max_age": "P90D", "keep_last": 3}]}
LAKES: dict[str, dict[str, Any]] = {
    "iceberg": {
        "catalog": {
            "type": "sql",
            "uri": "postgresql://user:secret@db:5432/catalog",
            "warehouse": "file:///data/warehouse",
            "token": "secret",
        },
        "catalog_name": "prod",
        "tables": ["sales.*"],
        "retention": {"max_snapshot_age": "5d", "min_snapshots_to_keep": 2, "max_ref_age": "30d", "refs": RULES["refs"], "tags": "keep"},
        "history": {"keep": "10d"},
    },
    "icechunk": {
        "location": "file:///data/warehouse/weather/",
        "retention": {**RULES, "tags": "policy"},
        "expiry": {"semantics": "icechunk-v1", "delete_expired_tags": True, "delete_expired_branches": True},
    },
    "lakefs": {
        "endpoint": "http://localhost:8000/api/v1",
        "repository": "ml",
        "access_key_id": "key",
        "secret_access_key": "secret",
        "retention": {**RULES, "source": "configured", "tags": "ignore"},
        "rules": "/etc/ml.json",
        "verify_deduplicated": False,
        "full_listing": "2d",
        "location": "file:///data/blocks/ml/",
    },
    "nessie": {
        "uri": "http://localhost:19120/api/v2",
        "token": "secret",
        "retention": {**RULES, "default": "2026-01-01T00:00:00Z", "state_at_cutoff": False},
        "keep_listed_snapshots": "refs",
        "missing_history": "tolerate",
        "empty_commits": "allow",
        "claims": ["file:///data/warehouse/nessie/"],
    },
}
SHORTEST: dict[str, dict[str, Any]] = {
    "iceberg": {"catalog": {"type": "rest"}},
    "icechunk": {"location": "file:///data/warehouse/weather/"},
    "lakefs": {"endpoint": "http://localhost:8000", "repository": "ml", "access_key_id": "key", "secret_access_key": "secret"},
    "nessie": {"uri": "http://localhost:19120/api/v2"},
}


def document(*lakes: dict[str, Any]) -> dict[str, Any]:
    return {"state": "/state", "storages": STORAGES, "lakes": [*lakes]}


DOCUMENTS = {
    **{f"{kind}, all keys": document({"name": kind, "kind": kind, **lake}) for kind, lake in LAKES.items()},
    **{f"{kind}, shortest": document({"name": kind, "kind": kind, **lake}) for kind, lake in SHORTEST.items()},
    "all together": document(*({"name": kind, "kind": kind, **lake} for kind, lake in LAKES.items())),
}
DIGESTS = {
    "iceberg, all keys": "7f75c58a547a3fb89123b84e0b3a3bc6ef8229ffa23d1ee3db3f08dc3c915be7",
    "icechunk, all keys": "8170c380423b19c6afd24aa796d1eed2d514cc2d5e3fb099e72be2185173f635",
    "lakefs, all keys": "7d4d1ecb3f3f8e7b22655a9116573bd255f55d2c285542fd538672569a5426bc",
    "nessie, all keys": "299e530df6511b52c1cfba39199f51838dc022d83a60aa62f3b271aa9437cade",
    "iceberg, shortest": "0649b5757888a64499f9143c85835d4e67d77f96ab71f9810d4fc70956a3c36f",
    "icechunk, shortest": "e133e7a9b16388969cd5f52e2ade967216f590dc516ef87fa6089df120cfdfa2",
    "lakefs, shortest": "032ff0a7a43d3eb04cd91061d7aed7e56952f061246dd42def9a5d84faec4b8f",
    "nessie, shortest": "9da901e4306ad048e2bc3ac507225e03ea6762f850b9960b5224b2f131429b16",
    "all together": "9a1431ef9f5fd18fe4ee03a3f3e7f35371a92c32398e1e6dd7e7744f2e1e9284",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_policy_digest_equals_earlier_release(name: str) -> None:
    assert config_of(DOCUMENTS[name]).policy_digest() == DIGESTS[name]


def test_policy_digest_includes_accepted_lost_snapshots() -> None:
    lake = {"name": "icechunk", "kind": "icechunk", **SHORTEST["icechunk"]}
    digests = {config_of(document(lake | {"lost_snapshots": lost})).policy_digest() for lost in ([], ["0" * 20])}
    assert DIGESTS["icechunk, shortest"] in digests
    assert len(digests) == 2


@pytest.mark.parametrize("key", ["prefix", "glue.id", "glue.region", "table-name", "s3.endpoint", "namespace"])
def test_policy_digest_includes_catalog_properties(key: str) -> None:
    def digest(value: str) -> str:
        catalog = {**LAKES["iceberg"]["catalog"], key: value}
        return config_of(document({"name": "iceberg", "kind": "iceberg", **LAKES["iceberg"], "catalog": catalog})).policy_digest()

    assert len({digest("one"), digest("other"), DIGESTS["iceberg, all keys"]}) == 3


def digest_at(uri: str) -> str:
    catalog = {**LAKES["iceberg"]["catalog"], "uri": uri}
    return config_of(document({"name": "iceberg", "kind": "iceberg", **LAKES["iceberg"], "catalog": catalog})).policy_digest()


def test_policy_digest_includes_uri_query_without_credentials() -> None:
    plain = "postgresql://user:secret@db:5432/catalog"
    assert digest_at(plain) == DIGESTS["iceberg, all keys"]
    seen = {digest_at(f"{plain}?{query}") for query in ("options=-csearch_path%3Done", "options=-csearch_path%3Dother", "host=elsewhere")}
    assert len(seen | {digest_at(plain)}) == 4
    assert digest_at(f"{plain}?host=a&port=1") == digest_at(f"{plain}?port=1&host=a")
    assert digest_at(f"{plain}?user=a&password=b&sslkey=c") == digest_at(plain)


@pytest.mark.parametrize("kind, key", [("iceberg", "catalog"), ("nessie", "token"), ("lakefs", "secret_access_key")])
def test_policy_digest_ignores_secrets(kind: str, key: str) -> None:
    other = {**LAKES[kind], key: {**LAKES[kind][key], "token": "other"} if key == "catalog" else "other"}
    digest = config_of(document({"name": kind, "kind": kind, **other})).policy_digest()
    assert digest == DIGESTS[f"{kind}, all keys"]


def test_policy_digest_includes_pyiceberg_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    lakes_yaml = tmp_path / "lakes.yaml"
    catalog = {"type": "rest", "uri": "http://in-the-file:8181"}
    lake = {"name": "sales", "kind": "iceberg", "catalog": catalog, "catalog_name": "Prod"}
    lakes_yaml.write_text(yaml.safe_dump({"state": "state", "storages": STORAGES, "lakes": [lake]}))
    before = load_platform({}, str(lakes_yaml)).config
    secrets = {"token": "sesame", "adls.connection-string": "AccountKey=sesame", "header.x-session": "sesame"}
    added = {"uri": "http://elsewhere:8181", "prefix": "one", **secrets}
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"prod": added}}))
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", "s3://other/")
    after = load_platform({}, str(lakes_yaml)).config
    (found,) = after.lakes
    assert isinstance(found, IcebergLakeConfig)
    hidden = [f"{name} (not shown)" for name in secrets]
    assert found.merged_properties == tuple(sorted([*hidden, "prefix=one", "warehouse=s3://other/"]))
    assert found.catalog["uri"].get_secret_value() == "http://in-the-file:8181"
    assert before.policy_digest() != after.policy_digest()
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TOKEN", "another")
    assert load_platform({}, str(lakes_yaml)).config.policy_digest() == after.policy_digest()


@pytest.mark.parametrize("home", [None, "/" + "long" * 100], ids=["no home", "home that cannot be read"])
def test_lake_configuration_loads_without_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None) -> None:
    """A container may run as a user without an entry in the user database, or with another user's
    home.
    """
    for name in [name for name in os.environ if name.lower().startswith("pyiceberg_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    else:
        monkeypatch.setenv("HOME", home)
    lake = IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": {"type": "sql"}})
    assert lake.with_library_settings() == lake


def test_has_pyiceberg_config_checks_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `has_pyiceberg_config` returns False, pyiceberg is not imported.

    A pyiceberg release that reads one more file fails this test.
    """
    for name in [name for name in os.environ if name.lower().startswith("pyiceberg_")]:
        monkeypatch.delenv(name)
    home, working_directory = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    working_directory.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(working_directory)
    checked: list[str] = []
    is_file = os.path.isfile
    monkeypatch.setattr("os.path.isfile", lambda path: (checked.append(str(path)), is_file(path))[1])
    assert not has_pyiceberg_config()
    assert dict(PyicebergConfig().config) == {}
    assert checked == [str(home / ".pyiceberg.yaml"), str(working_directory / ".pyiceberg.yaml")]
    for file in checked:
        Path(file).write_text("catalog: {default: {token: sesame}}")
        assert has_pyiceberg_config()
        Path(file).unlink()
    monkeypatch.setenv("Pyiceberg_Catalog__default__Token", "sesame")
    assert has_pyiceberg_config()
    assert PyicebergConfig().get_catalog_config("default") == {"token": "sesame"}
