"""The identity of a catalog changes only with settings that select another catalog."""

from __future__ import annotations

from typing import Any

import pytest

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.engine.recorded_names import configured_entries
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.mark.lake_refs import locate_catalog

VARIABLES = [
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_GLUE", "AWS_ENDPOINT_URL_DYNAMODB"),
]
REST = {"type": "rest", "uri": "https://user@polaris.example/api/", "warehouse": "lake"}
SIGNED = {**REST, "rest.sigv4-enabled": "true"}
GLUE = {"type": "glue"}
DYNAMODB = {"type": "dynamodb", "table-name": "iceberg"}
BIGQUERY = {"type": "bigquery"}
SQL = {"type": "sql", "uri": "postgresql://db/lake"}
ROLE = "arn:aws:iam::{}:role/{}"


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def config_of(catalog: dict[str, Any]) -> Config:
    lake = IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": catalog})
    return Config(state="/nowhere/state", storages=(StorageConfig(name="disk", location="file:///nowhere/wh/"),), lakes=(lake,))


def locate(catalog: dict[str, Any]) -> str:
    return locate_catalog(RunContext.of(config_of(catalog), Clock(), Clock().today()), "sales")


@pytest.mark.parametrize(
    "catalog, stored",
    [
        (REST, "iceberg https://polaris.example/api warehouse=lake"),
        ({**REST, "prefix": "p", "token": "t"}, "iceberg https://polaris.example/api warehouse=lake prefix=p"),
        ({"uri": "thrift://hive:9083"}, "iceberg thrift://hive:9083"),
        (GLUE, "iceberg default type=glue"),
        ({**GLUE, "glue.id": "1", "glue.region": "eu-1"}, "iceberg default type=glue glue.id=1 glue.region=eu-1"),
        ({**GLUE, "glue.endpoint": "http://moto"}, "iceberg default type=glue glue.endpoint=http://moto"),
        (DYNAMODB, "iceberg default type=dynamodb table-name=iceberg"),
        (SQL, "iceberg default postgresql://db/lake"),
        ({"uri": "sqlite:////nowhere/catalog.db"}, "iceberg default /nowhere/catalog.db"),
    ],
)
def test_catalog_identity_without_selectors_equals_earlier_releases(catalog: dict[str, Any], stored: str) -> None:
    assert locate(catalog) == stored


@pytest.mark.parametrize(
    "catalog, selector",
    [
        (REST, {"header.Polaris-Realm": "b"}),
        ({"py-catalog-impl": "own.PolarisCatalog", "uri": "https://polaris.example"}, {"header.Polaris-Realm": "b"}),
        (SIGNED, {"client.profile-name": "b"}),
        (GLUE, {"client.region": "eu-1"}),
        (GLUE, {"client.profile-name": "b"}),
        (GLUE, {"glue.profile-name": "b"}),
        (GLUE, {"client.role-arn": ROLE.format("2", "gc")}),
        (DYNAMODB, {"dynamodb.region": "eu-1"}),
        (DYNAMODB, {"dynamodb.endpoint": "http://moto"}),
        (DYNAMODB, {"dynamodb.profile-name": "b"}),
        (DYNAMODB, {"client.region": "eu-1"}),
        ({"py-catalog-impl": "pyiceberg.catalog.glue.GlueCatalog"}, {"client.region": "eu-1"}),
        (BIGQUERY, {"gcp.bigquery.project-id": "b"}),
        (BIGQUERY, {"gcp.bigquery.location": "eu"}),
    ],
)
def test_catalog_selecting_property_changes_identity(catalog: dict[str, Any], selector: dict[str, str]) -> None:
    other = {name: value.replace("b", "c").replace("eu", "us").replace("2", "3") for name, value in selector.items()}
    other = {name: value if value != selector[name] else f"{value}2" for name, value in other.items()}
    assert len({locate(catalog), locate({**catalog, **selector}), locate({**catalog, **other})}) == 3


@pytest.mark.parametrize(
    "catalog, name, values",
    [
        *((catalog, name, ("eu-1", "us-1")) for catalog in (GLUE, DYNAMODB) for name in ("AWS_DEFAULT_REGION",)),
        *((catalog, name, ("a", "b")) for catalog in (GLUE, DYNAMODB, SIGNED) for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")),
        *((catalog, "AWS_ROLE_ARN", (ROLE.format("1", "gc"), ROLE.format("2", "gc"))) for catalog in (GLUE, DYNAMODB, SIGNED)),
        *((catalog, "AWS_ENDPOINT_URL", ("http://a", "http://b")) for catalog in (GLUE, DYNAMODB)),
        (GLUE, "AWS_ENDPOINT_URL_GLUE", ("http://a", "http://b")),
    ],
)
def test_catalog_selecting_environment_variable_changes_identity(
    monkeypatch: pytest.MonkeyPatch, catalog: dict[str, Any], name: str, values: tuple[str, str]
) -> None:
    found = {locate(catalog)}
    for value in values:
        monkeypatch.setenv(name, value)
        found.add(locate(catalog))
    assert len(found) == 3


@pytest.mark.parametrize(
    "catalog, explicit",
    [(GLUE, {"glue.region": "eu-1"}), (GLUE, {"client.region": "eu-1"}), (DYNAMODB, {"dynamodb.region": "eu-1"})],
)
def test_overridden_variable_keeps_identity(monkeypatch: pytest.MonkeyPatch, catalog: dict[str, Any], explicit: dict[str, str]) -> None:
    before = locate({**catalog, **explicit})
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-1")
    assert locate({**catalog, **explicit}) == before


def test_region_from_property_or_environment_gives_equal_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    of_property = locate({**GLUE, "client.region": "eu-1"})
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
    assert locate(GLUE) == of_property


@pytest.mark.parametrize("catalog", [REST, SQL, {"uri": "thrift://hive:9083"}])
def test_aws_variables_do_not_change_identity_of_other_catalogs(monkeypatch: pytest.MonkeyPatch, catalog: dict[str, Any]) -> None:
    before = locate(catalog)
    for name in VARIABLES:
        monkeypatch.setenv(name, "x")
    assert locate(catalog) == before


@pytest.mark.parametrize(
    "name, value",
    [
        ("header.Authorization", "Bearer hunter2"),
        ("header.Proxy-Authorization", "Basic hunter2"),
        ("header.X-Api-Key", "hunter2"),
        ("header.Cookie", "id=hunter2"),
        ("header.X-Session", "hunter2"),
        ("header.X-Forward", "Bearer hunter2"),
        ("header.X-Forward", "eyJhunter2.eyJhunter2.hunter2"),
        ("token", "hunter2"),
        ("credential", "id:hunter2"),
    ],
)
def test_rotated_secret_does_not_change_identity(name: str, value: str) -> None:
    assert locate({**REST, name: value}) == locate({**REST, name: value.replace("hunter2", "hunter3")}) == locate(REST)


def test_glue_access_key_does_not_change_identity() -> None:
    keys = {"client.access-key-id": "a", "client.secret-access-key": "hunter2", "glue.session-token": "hunter2"}
    assert locate({**GLUE, **keys}) == locate(GLUE)


def test_identity_contains_no_header_in_plain_text() -> None:
    assert "hunter2" not in locate({**REST, "header.X-Unknown": "hunter2"})


def test_endpoint_is_stored_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://ada:hunter2@moto/?key=hunter2")
    assert locate(GLUE) == "iceberg default type=glue endpoint=http://moto"


def test_another_role_in_account_does_not_change_identity() -> None:
    one, other = ({**GLUE, "client.role-arn": ROLE.format("1", name)} for name in ("gc", "etl"))
    assert locate(one) == locate(other)


@pytest.mark.parametrize(
    "tuning",
    [
        {"py-io-impl": "x"},
        {"s3.endpoint": "http://s3", "s3.region": "eu-1", "s3.connect-timeout": "5"},
        {"client.region": "eu-1"},
        {"header.X-Iceberg-Access-Delegation": "vended-credentials"},
        {"header.User-Agent": "gc", "header.X-Request-Id": "7", "header.traceparent": "00-1"},
        {"rest-page-size": "100", "ssl": "x"},
    ],
)
def test_rest_tuning_properties_do_not_change_identity(tuning: dict[str, str]) -> None:
    assert locate({**REST, **tuning}) == locate(REST)


def test_header_names_are_case_insensitive() -> None:
    assert locate({**REST, "header.Polaris-Realm": "a"}) == locate({**REST, "header.polaris-realm": "a"})


def test_registry_entry_does_not_depend_on_selectors() -> None:
    """If the entry changed, the registry would start new records for the lake and lose those of its
    tables.
    """
    before = configured_entries(config_of(REST))
    assert configured_entries(config_of({**REST, "header.Polaris-Realm": "b"})) == before
