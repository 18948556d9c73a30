"""`lakes.yaml` is validated before anything runs, and errors name the key by its path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gc_assets.config.file import load_config
from gc_assets.config.models import Config
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import UsageError
from gc_assets.core.units import Cutoff
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.kinds import config_models
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig

# A configuration with most keys.
EXAMPLE = """
state: ./state                     # relative paths are relative to this file
storages:
  - name: warehouse
    location: "file:///data/warehouse/"
    quarantine: trash              # trash | versioned | deferred
    grace: 72h
    quarantine_days: 7
    mode: plan                     # plan | apply
    gates: {max_delete_share: 0.2, max_delete_bytes: 10TB, max_live_drop: 0.2}
lakes:
  - name: weather
    kind: icechunk
    location: "file:///data/warehouse/weather/"
    retention: {default: {max_age: 30d}, refs: [{match: "release/.*", keep: forever}], tags: keep}
    expiry: {semantics: seed, delete_expired_tags: false, delete_expired_branches: false}
  - name: sales
    kind: iceberg
    catalog: {type: sql, uri: "sqlite:////data/catalog.db", warehouse: "file:///data/warehouse"}   # pyiceberg's own properties
    tables: ["*"]
    retention: {source: table}
    history: {keep: 365d}
spark: {mode: session}
"""

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads text, or the example with one place changed: `load(("storages", 0, "grace"), "1h")`."""

    def load_text(
        keys: tuple[str | int, ...] | str = EXAMPLE, value: Any = None, environment: Mapping[str, str] | None = None, **more: Any
    ) -> Config:
        text = keys if isinstance(keys, str) else yaml.safe_dump(with_value(keys, value))
        path = tmp_path / "lakes.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, environment or {}, config_models(), **more)

    return load_text


def with_value(keys: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document = yaml.safe_load(EXAMPLE)
    place: Any = document
    for step in keys[:-1]:
        place = place[step]
    place[keys[-1]] = value
    return document


def icechunk(config: Config) -> IcechunkLakeConfig:
    lake = config.lake("weather")
    assert isinstance(lake, IcechunkLakeConfig)
    return lake


def iceberg(config: Config) -> IcebergLakeConfig:
    lake = config.lake("sales")
    assert isinstance(lake, IcebergLakeConfig)
    return lake


def catalog(config: Config) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in iceberg(config).catalog.items()}


def test_full_example_is_loaded(load: Load, tmp_path: Path) -> None:
    config = load()
    storage, weather, sales = config.storage("warehouse"), icechunk(config), iceberg(config)
    assert config.state == str(tmp_path / "state")
    assert (storage.location, storage.quarantine, storage.mode) == ("file:///data/warehouse/", "trash", "plan")
    assert (storage.grace, storage.quarantine_days) == (timedelta(days=3), 7)
    assert (storage.gates.max_delete_share, storage.gates.max_delete_bytes, storage.gates.max_live_drop) == (0.2, 10**13, 0.2)
    assert weather.retention.cutoff_for("main") == (Cutoff(max_age=timedelta(days=30)), "retention.default")
    assert weather.retention.cutoff_for("release/1") == (Cutoff(forever=True), "retention.refs[0]")
    assert (weather.retention.tags, weather.expiry.semantics) == ("keep", "seed")
    assert (catalog(config)["uri"], sales.tables, sales.retention.source) == ("sqlite:////data/catalog.db", ("*",), "table")
    assert sales.history.keep == timedelta(days=365)
    assert config.spark.mode == "session"


def test_inventory_report_uses_connection_of_storage(load: Load, tmp_path: Path) -> None:
    storage = {"name": "bucket", "location": "s3://lake/a/", "s3": {"endpoint": "http://own:1"}}
    storage["inventory"] = {"kind": "s3", "location": "s3://reports/lake/daily"}
    config = load(("storages", 0), storage)
    found = config.storage("bucket").inventory
    assert found is not None
    assert found.max_inventory_age == timedelta(days=3)
    ends = [
        config.connections().settings_for(f"s3://{place}/x", S3Config).endpoint
        for place in ("reports/lake/daily", "reports/lake", "lake/a")
    ]
    assert ends == ["http://own:1", None, "http://own:1"]
    storage["inventory"] = {"kind": "plain", "location": "./reports", "max_inventory_age": "10d"}
    found = load(("storages", 0), storage).storage("bucket").inventory
    assert found is not None
    assert (found.location, found.max_inventory_age) == (str(tmp_path / "reports"), timedelta(days=10))


@pytest.mark.parametrize("age, error", [("0s", "an age of 0"), ("soon", "'soon' is not a duration")])
def test_invalid_inventory_age_is_rejected(load: Load, age: str, error: str) -> None:
    with pytest.raises(UsageError, match=rf"storages\[0\]\.inventory\.max_inventory_age: {error}"):
        load(("storages", 0, "inventory"), {"kind": "s3", "location": "s3://reports/lake/daily/", "max_inventory_age": age})


def test_listing_is_chosen_by_configuration_or_for_one_run(load: Load) -> None:
    usual = load().storage("warehouse")
    weekly = load(("storages", 0, "listing"), {"every": "7d"}).storage("warehouse")
    assert (usual.listing, usual.with_listing(None), weekly.with_listing(True).listing) == (None, usual, None)
    every = [storage.listing and storage.listing.every.days for storage in (weekly, usual.with_listing(False), weekly.with_listing(False))]
    assert every == [7, 30, 30]
    assert usual.policy() == weekly.policy()


def test_default_settings_are_safe(load: Load) -> None:
    text = """
        state: ./state
        storages: [{name: a, location: "file:///a/"}]
        lakes: [{name: b, kind: icechunk, location: "file:///a/b/"}, {name: c, kind: iceberg, catalog: {type: rest}}]
    """
    config = load(text)
    storage = config.storage("a")
    assert (storage.mode, storage.quarantine, storage.grace, storage.quarantine_days) == ("plan", "trash", timedelta(hours=72), 7)
    lake = config.lake("b")
    assert isinstance(lake, IcechunkLakeConfig)
    assert lake.retention.cutoff_for("anything")[0] == Cutoff(forever=True)
    assert lake.retention.tags == "keep"


@pytest.mark.parametrize(
    "keys, path",
    [
        (("stat",), "stat"),
        (("storages", 0, "graze"), "storages[0].graze"),
        (("storages", 0, "iceberg"), "storages[0].iceberg"),
        (("storages", 0, "gates", "max_share"), "storages[0].gates.max_share"),
        (("lakes", 0, "retention", "defaults"), "lakes[0].retention.defaults"),
        (("lakes", 0, "retention", "default", "max-age"), "lakes[0].retention.default.max-age"),
        (("lakes", 0, "retention", "refs", 0, "max_ages"), "lakes[0].retention.refs[0].max_ages"),
        (("lakes", 1, "retention", "default"), "lakes[1].retention.default"),
        (("lakes", 1, "icechunk"), "lakes[1].icechunk"),
        (("spark", "cores"), "spark.cores"),
    ],
)
def test_unknown_key_is_rejected_with_path(load: Load, keys: tuple[str | int, ...], path: str) -> None:
    with pytest.raises(UsageError, match=rf"\n  {re.escape(path)}: unknown key; (did you mean \w+\? A|a)llowed: \w+, "):
        load(keys, 1)


@pytest.mark.parametrize(
    "keys, value, path",
    [
        (("storages", 0, "grace"), "soon", "storages[0].grace"),
        (("storages", 0, "grace"), 72, "storages[0].grace"),
        (("storages", 0, "quarantine"), "shred", "storages[0].quarantine"),
        (("storages", 0, "quarantine_days"), -1, "storages[0].quarantine_days"),
        (("storages", 0, "quarantine_days"), 10**9, "storages[0].quarantine_days"),
        (("storages", 0, "mode"), "delete", "storages[0].mode"),
        (("storages", 0, "name"), "my warehouse", "storages[0].name"),
        (("storages", 0, "name"), "../escape", "storages[0].name"),
        (("storages", 0, "gates", "max_delete_share"), 20, "storages[0].gates.max_delete_share"),
        (("storages", 0, "gates", "max_delete_share"), float("nan"), "storages[0].gates.max_delete_share"),
        (("storages", 0, "gates", "max_live_drop"), -0.1, "storages[0].gates.max_live_drop"),
        (("storages", 0, "gates", "max_delete_bytes"), "10 XB", "storages[0].gates.max_delete_bytes"),
        (("storages", 0, "money"), {"usd_per_gb_month": 0}, "storages[0].money.usd_per_gb_month"),
        (("storages", 0, "listing"), {"every": "12h"}, "storages[0].listing.every"),
        (("lakes", 0, "retention", "default"), "sometimes", "lakes[0].retention.default"),
        (("lakes", 0, "retention", "dangling"), 3, "lakes[0].retention.dangling"),
        (("lakes", 0, "retention", "default"), {"max_age": 30}, "lakes[0].retention.default.max_age"),
        (("lakes", 0, "retention", "default"), {"keep_last": 2**31}, "lakes[0].retention.default.keep_last"),
        (("lakes", 0, "retention", "refs", 0, "keep"), [30], "lakes[0].retention.refs[0].keep"),
        (("lakes", 0, "retention", "refs", 0, "keep"), 30.5, "lakes[0].retention.refs[0].keep"),
        (("lakes", 0, "retention", "refs", 0, "match"), "(", "lakes[0].retention.refs[0].match"),
        (("lakes", 0, "retention", "refs", 0, "match"), 5, "lakes[0].retention.refs[0].match"),
        (("lakes", 0, "retention", "tags"), "delete", "lakes[0].retention.tags"),
        (("lakes", 0, "tags"), {"gc/scope": "mine"}, "lakes[0].tags.gc/scope.[key]"),
        (("lakes", 0, "expiry", "semantics"), "mine", "lakes[0].expiry.semantics"),
        (("lakes", 1, "catalog", "uri"), 5, "lakes[1].catalog.uri"),
        (("lakes", 1, "tables"), "*", "lakes[1].tables"),
        (("lakes", 1, "retention", "max_snapshot_age"), 432000000, "lakes[1].retention.max_snapshot_age"),
        (("lakes", 1, "history", "keep"), 365, "lakes[1].history.keep"),
        (("spark", "mode"), "yarn", "spark.mode"),
    ],
)
def test_wrong_value_is_rejected_with_path(load: Load, keys: tuple[str | int, ...], value: Any, path: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(keys, value)
    lines = str(refused.value).splitlines()[1:]
    assert [line.split(": ")[0].strip() for line in lines] == [path]


@pytest.mark.parametrize(
    "keys",
    [
        ("lakes", 0, "retention", "default"),
        ("lakes", 0, "retention", "refs", 0, "keep"),
        ("storages", 0, "quarantine_days"),
        ("storages", 0, "gates", "max_delete_share"),
        ("lakes", 1, "retention", "min_snapshots_to_keep"),
    ],
)
def test_boolean_is_rejected_for_a_number(load: Load, keys: tuple[str | int, ...]) -> None:
    """`keep: yes` kept the newest commit only, and `max_delete_share: yes` allowed everything."""
    with pytest.raises(UsageError, match=r"yes and no are not numbers|True is not a cut-off"):
        load(keys, True)


@pytest.mark.parametrize(
    "keys, value",
    [
        (("lakes", 0, "retention", "default"), 0),
        (("lakes", 0, "retention", "default"), {"keep_last": 0}),
        (("lakes", 0, "retention", "refs", 0, "keep"), "0"),
        (("lakes", 1, "retention", "min_snapshots_to_keep"), 0),
        (("lakes", 1, "retention", "refs"), [{"match": "main", "keep_last": 0}]),
        (("lakes", 1, "retention", "refs"), [{"match": "v.*", "keep": "0d"}]),
        (("lakes", 1, "retention", "refs"), [{"match": "v.*", "max_age": "0s"}]),
        (("lakes", 1, "retention", "max_snapshot_age"), "0d"),
        (("lakes", 1, "retention", "max_ref_age"), "0h"),
    ],
)
def test_retention_of_zero_is_rejected(load: Load, keys: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(UsageError, match=r"0 would keep nothing|an age of 0|a number of 1 or more"):
        load(keys, value)


def test_catalog_name_is_a_separate_key(load: Load) -> None:
    with pytest.raises(UsageError, match=r"lakes\[1\].*catalog\.name is not supported; write .* `catalog_name`"):
        load(("lakes", 1, "catalog"), {"type": "rest", "name": "prod"})


@pytest.mark.parametrize(
    "rule", [{"match": "x"}, {"match": "x", "keep": "1d", "cutoff": "2d"}, {"match": "x", "keep": "1d", "max_age": "2d"}]
)
def test_retention_rule_must_have_exactly_one_cutoff(load: Load, rule: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"lakes\[0\]\.retention\.refs\[0\]: expected either one cut-off"):
        load(("lakes", 0, "retention", "refs"), [rule])


@pytest.mark.parametrize(
    "text, cutoff",
    [
        ("1998-01-10", Cutoff(at=datetime(1998, 1, 10, tzinfo=UTC))),
        ("1998-01-10 12:00:00", Cutoff(at=datetime(1998, 1, 10, 12, tzinfo=UTC))),
        ("3", Cutoff(keep_last=3)),
        ("30d", Cutoff(max_age=timedelta(days=30))),
        ("none", Cutoff(forever=True)),
        ("{max_age: 30d, keep_last: 3}", Cutoff(max_age=timedelta(days=30), keep_last=3)),
    ],
)
def test_quoted_and_plain_cutoffs_are_equal(load: Load, text: str, cutoff: Cutoff) -> None:
    config = load(EXAMPLE.replace("{max_age: 30d}", text))
    assert icechunk(config).retention.cutoff_for("main")[0] == cutoff
    if not text.startswith("{"):
        assert icechunk(load(EXAMPLE.replace("{max_age: 30d}", f'"{text}"'))).retention.cutoff_for("main")[0] == cutoff


@pytest.mark.parametrize("kind", ["hudi", "delta"])
def test_unknown_lake_kind_is_rejected(load: Load, kind: str) -> None:
    with pytest.raises(UsageError, match=rf"lakes\[1\]\.kind: expected one of iceberg, icechunk, lakefs, nessie \(found '{kind}'\)"):
        load(("lakes", 1), {"name": "shop", "kind": kind, "uri": "http://localhost:19120/api/v2"})


def test_lake_without_kind_is_rejected(load: Load) -> None:
    with pytest.raises(UsageError, match=r"lakes\[1\]\.kind: expected one of iceberg, icechunk, lakefs, nessie"):
        load(("lakes", 1), {"name": "shop"})


def test_all_wrong_keys_are_reported(load: Load) -> None:
    text = EXAMPLE.replace("grace: 72h", "grace: soon").replace("tags: keep", "tag: keep").replace("mode: session", "mode: yarn")
    with pytest.raises(UsageError) as refused:
        load(text)
    assert len(str(refused.value).splitlines()) == 1 + 3


def test_first_matching_pattern_applies(load: Load) -> None:
    rules = [{"match": "release", "keep": 1}, {"match": "release/.*", "keep": 2}, {"match": "rel.*", "keep": 3}]
    retention = icechunk(load(("lakes", 0, "retention", "refs"), rules)).retention
    found = {name: retention.cutoff_for(name) for name in ("release", "release/1", "releases", "my/release", "release\n", "main")}
    assert {name: (cutoff.keep_last, path) for name, (cutoff, path) in found.items()} == {
        "release": (1, "retention.refs[0]"),
        "release/1": (2, "retention.refs[1]"),
        "releases": (3, "retention.refs[2]"),
        "my/release": (None, "retention.default"),
        "release\n": (None, "retention.default"),
        "main": (None, "retention.default"),
    }


def test_read_timeout_applies_to_objects_and_catalogs(load: Load) -> None:
    default, configured = load(("spark", "mode"), "session"), load(("read_timeout",), "90s")
    for config, seconds in [(default, 300), (configured, 90)]:
        assert config.connections().read_seconds == seconds
        assert {lake.read_seconds for lake in config.lakes} == {seconds}
    assert default.policy_digest() == configured.policy_digest()
    with pytest.raises(UsageError, match="read_timeout"):
        load(("read_timeout",), "0s")


def test_minimum_grace_period_is_enforced(load: Load) -> None:
    assert load(("storages", 0, "grace"), "24h").storage("warehouse").grace == timedelta(hours=24)
    with pytest.raises(UsageError, match=r"storages\[0\]\.grace is 23h59m59s, but must be at least 1d.*GC_ASSETS_UNSAFE_GRACE_FLOOR"):
        load(("storages", 0, "grace"), "23h59m59s")
    assert load(("storages", 0, "grace"), "1h", grace_floor=timedelta(hours=1)).storage("warehouse").grace == timedelta(hours=1)


def test_configuration_cannot_lower_minimum_grace_period(load: Load) -> None:
    with pytest.raises(UsageError, match="must be at least 1d"):
        load(("storages", 0, "grace"), "${GRACE}", {"GRACE": "0s"})


def test_repeated_name_is_rejected(load: Load) -> None:
    with pytest.raises(UsageError, match="used twice: warehouse"):
        load(("lakes", 1, "name"), "warehouse")
    with pytest.raises(UsageError, match="used twice: weather"):
        load(("lakes", 1, "name"), "weather")


@pytest.mark.parametrize("key", ["storages", "lakes"])
def test_empty_configuration_is_rejected(load: Load, key: str) -> None:
    with pytest.raises(UsageError, match="at least one storage and one lake"):
        load((key,), [])


def test_repeated_yaml_key_is_rejected(load: Load) -> None:
    """A second `lakes:` silently dropped the lakes of the first, and their live files with them."""
    with pytest.raises(UsageError, match=r"the key 'lakes' occurs twice"):
        load(EXAMPLE + "lakes: [{name: other, kind: icechunk, location: /data/other}]\n")
    with pytest.raises(UsageError, match=r"the key 'default' occurs twice"):
        load(EXAMPLE.replace("tags: keep}", "tags: keep, default: 1d}"))


def test_yaml_merge_keys_are_supported(load: Load) -> None:
    gates = "gates: &gates {max_live_drop: 0.1}\n    "
    text = EXAMPLE.replace(
        "gates: {max_delete_share: 0.2",
        gates.replace("gates: &gates", "money: &m").replace("max_live_drop: 0.1", "usd_per_gb_month: 1") + "gates: {max_delete_share: 0.2",
    )
    merged = text.replace("lakes:\n", '  - {name: other, location: "file:///other/", money: {<<: *m}}\nlakes:\n')
    money = load(merged).storage("other").money
    assert money is not None
    assert money.usd_per_gb_month == 1


@pytest.mark.parametrize(
    "content, found", [(b"[1]", "mapping"), (b"", "mapping"), (b"a: [", 'not YAML(.|\n)*in "lakes.yaml", line 1'), (b"a: \xff", "UTF-8")]
)
def test_invalid_yaml_is_rejected(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "lakes.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=found):
        load_config(path, {}, config_models())


def test_unreadable_configuration_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"configuration .*absent\.yaml does not exist; pass --config FILE"):
        load_config(tmp_path / "absent.yaml", {}, config_models())
    with pytest.raises(UsageError, match="cannot be read"):
        load_config(tmp_path, {}, config_models())


def test_variables_come_from_given_environment(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_PASSWORD", "of the process")
    properties = {"type": "rest", "password": "${CATALOG_PASSWORD}", "uri": "http://${HOST}:80/${HOST}"}
    found = catalog(load(("lakes", 1, "catalog"), properties, {"CATALOG_PASSWORD": "${HOST}", "HOST": "h"}))
    assert found == {"type": "rest", "password": "${HOST}", "uri": "http://h:80/h"}
    with pytest.raises(UsageError, match=r"lakes\[1\]\.catalog\.password: the environment variable CATALOG_PASSWORD .* is not set"):
        load(("lakes", 1, "catalog"), properties, {"HOST": "h"})


@pytest.mark.parametrize(
    "keys",
    [
        ("storages", 0, "grace"),
        ("storages", 0, "quarantine"),
        ("storages", 0, "gates", "max_delete_bytes"),
        ("lakes", 0, "retention", "default"),
        ("lakes", 0, "retention", "refs", 0, "match"),
        ("lakes", 1, "catalog"),
        ("lakes", 1, "kind"),
        ("lakes", 1, "retention", "source"),
        ("spark", "conf"),
    ],
)
def test_error_hides_misplaced_secret(load: Load, keys: tuple[str | int, ...]) -> None:
    value = "hunter(2'\"\\"
    with pytest.raises(UsageError) as refused:
        load(keys, "${PASSWORD}", {"PASSWORD": value})
    assert "hunter" not in str(refused.value)
    assert "${PASSWORD}" in str(refused.value) or "found" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_catalog_repr_hides_environment_values(load: Load) -> None:
    config = load(("lakes", 1, "catalog", "password"), "${PASSWORD}", {"PASSWORD": "hunter2"})
    assert catalog(config)["password"] == "hunter2"  # noqa: S105  (that it is known is the point)
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(config)


def test_relative_paths_start_at_configuration_file(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    text = EXAMPLE.replace("file:///data/warehouse", "warehouse").replace("sqlite:////data/catalog.db", "sqlite:///catalog.db")
    config = load(text.replace("./state", "../state"))
    assert config.state == f"{tmp_path.parent}/state"
    assert config.storage("warehouse").location == f"{tmp_path}/warehouse"
    assert icechunk(config).location == f"{tmp_path}/warehouse/weather"
    assert catalog(config)["uri"] == f"sqlite:///{tmp_path}/catalog.db"
    assert catalog(config)["warehouse"] == f"{tmp_path}/warehouse"


@pytest.mark.parametrize(
    "uri", ["sqlite:////data/catalog.db", "sqlite://", "sqlite:///:memory:", "postgresql://h/d", "sqlite+pysqlite:////c.db"]
)
def test_absolute_catalog_uri_is_unchanged(load: Load, uri: str) -> None:
    assert catalog(load(("lakes", 1, "catalog", "uri"), uri))["uri"] == uri


def test_rest_catalog_warehouse_is_not_resolved_as_path(load: Load) -> None:
    config = load(("lakes", 1, "catalog"), {"type": "rest", "uri": "http://localhost/", "warehouse": "prod"})
    assert catalog(config)["warehouse"] == "prod"


@pytest.mark.parametrize("keys", [("state",), ("storages", 0, "location"), ("lakes", 0, "location")])
def test_address_with_scheme_is_absolute(load: Load, keys: tuple[str | int, ...]) -> None:
    """`file:state` once meant /state."""
    with pytest.raises(UsageError, match=r"'file:somewhere/x' is relative; write a path relative to "):
        load(keys, "file:somewhere/x")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_state_may_be_on_s3(load: Load, scheme: str) -> None:
    assert load(("state",), f"{scheme}://bucket/state").state == f"{scheme}://bucket/state"


@pytest.mark.parametrize(
    "state, why", [("oss://bucket/state", r"write a path, such as \./state, or s3://"), ("s3:///state", "contains no plain bucket")]
)
def test_invalid_state_address_is_rejected(load: Load, state: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        load(("state",), state)


def test_anonymous_state_is_rejected(load: Load) -> None:
    text = EXAMPLE.replace("./state", "s3://bucket/state")
    with pytest.raises(UsageError, match=r"which `s3\.anonymous` cannot write"):
        load(text + "s3: {anonymous: true}\n")


def test_state_inside_storage_uses_storage_connection(load: Load) -> None:
    text = EXAMPLE.replace("./state", "s3a://lake/own/state") + "s3: {endpoint: 'http://everywhere:1'}\n"
    assert load(text).state_settings().endpoint == "http://everywhere:1"
    config = load(text)
    own = config.storages[0].model_copy(update={"location": "s3://lake/own/", "s3": S3Config(endpoint="http://own:1")})
    assert config.model_copy(update={"storages": (own,)}).state_settings().endpoint == "http://own:1"


def test_unknown_name_error_lists_configured_names(load: Load) -> None:
    with pytest.raises(UsageError, match="unknown lake 'snow'; configured: weather, sales"):
        load().lake("snow")


@pytest.mark.parametrize(
    "keys, value",
    [
        (("storages", 0, "grace"), "96h"),
        (("storages", 0, "quarantine"), "deferred"),
        (("storages", 0, "quarantine_days"), 8),
        (("storages", 0, "gates", "max_live_drop"), 0.3),
        (("storages", 0, "location"), "file:///elsewhere/"),
        (("storages", 0, "aliases"), ["/mnt/lake/"]),
        (("lakes", 0, "retention", "default"), "29d"),
        (("lakes", 0, "retention", "refs", 0, "match"), "release/1"),
        (("lakes", 0, "retention", "tags"), "policy"),
        (("lakes", 0, "expiry", "semantics"), "icechunk-v1"),
        (("lakes", 1, "tables"), ["db.*"]),
        (("lakes", 1, "retention", "max_ref_age"), "1d"),
        (("lakes", 1, "history", "keep"), "1d"),
    ],
)
def test_policy_digest_changes_with_policy(load: Load, keys: tuple[str | int, ...], value: Any) -> None:
    assert load(keys, value).policy_digest() != load().policy_digest()


@pytest.mark.parametrize(
    "keys, value",
    [
        (("storages", 0, "grace"), "3d"),
        (("storages", 0, "mode"), "apply"),
        (("storages", 0, "money"), {"usd_per_gb_month": 0.02}),
        (("storages", 0, "gates", "max_delete_bytes"), 10**13),
        (("lakes", 0, "retention", "default"), {"max_age": "P30D"}),
        (("lakes", 1, "catalog", "password"), "another"),
        (("spark", "mode"), "connect"),
        (("state",), "/elsewhere"),
    ],
)
def test_policy_digest_ignores_spelling(load: Load, keys: tuple[str | int, ...], value: Any) -> None:
    assert load(keys, value).policy_digest() == load().policy_digest()


LAKEFS = {
    "name": "ml",
    "kind": "lakefs",
    "endpoint": "http://localhost:8000/api/v1/",
    "repository": "ml",
    "access_key_id": "${GC_KEY}",
    "secret_access_key": "${GC_SECRET}",
}


def lakefs(config: Config) -> LakeFsLakeConfig:
    lake = config.lakes[1]
    assert isinstance(lake, LakeFsLakeConfig)
    return lake


def test_lakefs_defaults_use_server_rules(load: Load) -> None:
    lake = lakefs(load(("lakes", 1), LAKEFS, environment={"GC_KEY": "AKIA", "GC_SECRET": "s3cr3t"}))
    assert (lake.endpoint, lake.retention.source, lake.retention.tags, lake.location) == ("http://localhost:8000", "server", "keep", None)
    assert lake.secret_access_key.get_secret_value() == "s3cr3t"
    assert "s3cr3t" not in f"{lake!r} {lake.model_dump_json()}"


def test_lakefs_location_is_relative_to_configuration_file(load: Load, tmp_path: Path) -> None:
    found = lakefs(load(("lakes", 1), {**LAKEFS, "location": "blocks/ml"}, environment={"GC_KEY": "k", "GC_SECRET": "s"}))
    assert found.location == str(tmp_path / "blocks" / "ml")


@pytest.mark.parametrize(
    "change, found",
    [
        ({"endpoint": "localhost:8000"}, "lakes[1].endpoint: expected the server's address"),
        ({"endpoint": "http://user:password@localhost:8000"}, "lakes[1].endpoint: the address must not contain credentials"),
        ({"repository": "Not A Name"}, "lakes[1].repository"),
        ({"retention": {"default": "30d"}}, "lakes[1].retention: default, refs and dangling require `source: configured`"),
        ({"retention": {"source": "guessed"}}, "lakes[1].retention.source"),
        ({"retention": {"tags": "maybe"}}, "lakes[1].retention.tags"),
        ({"secret": "x"}, "lakes[1].secret: unknown key"),
    ],
)
def test_wrong_lakefs_key_is_reported(load: Load, change: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError, match=re.escape(found)) as refused:
        load(("lakes", 1), {**LAKEFS, **change}, environment={"GC_KEY": "k", "GC_SECRET": "the-secret"})
    assert "the-secret" not in str(refused.value)
