from __future__ import annotations

from typing import Any

import pytest

from gc_assets.core.errors import FormatError
from gc_assets.lakes.iceberg.catalog_policy import NO_POLICY, CatalogPolicy, read_policy
from gc_assets.lakes.iceberg.policy_answers import parse_lakekeeper, parse_polaris
from tests.lakes.iceberg.policy_server import polaris_policy

KEEP_LAST, MAX_AGE, MAX_REF_AGE = (f"history.expire.{name}" for name in ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms"))
DAY_MS = 86_400_000
# The example of Polaris' schema, without its invented key.
EXAMPLE = {"min_snapshot_to_keep": 1, "max_snapshot_age_days": 2, "max_ref_age_days": 3}


def of_polaris(*policies: Any, **properties: str) -> CatalogPolicy:
    return parse_polaris(policies, properties)


def test_polaris_policy_sets_snapshot_limits() -> None:
    found = of_polaris(polaris_policy(EXAMPLE))
    assert found == CatalogPolicy("inherited Polaris policy db.expire v3", {KEEP_LAST: 1, MAX_AGE: 2 * DAY_MS, MAX_REF_AGE: 3 * DAY_MS}, ())
    frozen = read_policy(found.as_property())
    assert frozen is not None
    assert frozen.as_property() == found.as_property()


@pytest.mark.parametrize("value, milliseconds", [(0, 0), (2.5, 216_000_000), ("7", 7 * DAY_MS), (1e-9, 1), (1e300, 2**63 - 1)])
def test_polaris_age_limit_is_rounded_up_and_bounded(value: Any, milliseconds: int) -> None:
    assert of_polaris(polaris_policy({"max_snapshot_age_days": value})).limits == {MAX_AGE: milliseconds}


def test_longer_table_property_replaces_polaris_limit() -> None:
    properties = {MAX_AGE: str(30 * DAY_MS), KEEP_LAST: "1"}
    found = parse_polaris([polaris_policy({"max_snapshot_age_days": 2, "min_snapshots_to_keep": 5})], properties)
    assert (found.limits, found.origin_of(MAX_AGE), found.origin_of(KEEP_LAST)) == (
        {MAX_AGE: 30 * DAY_MS, KEEP_LAST: 5},
        None,
        "inherited Polaris policy db.expire v3",
    )


def test_disabled_polaris_policies_keep_history_and_files() -> None:
    found = of_polaris(polaris_policy(enable=False, any_key=1), polaris_policy(kind="orphan-file-removal", enable=False))
    assert (found.keep_history, found.protect) == ("inherited Polaris policy db.expire v3 is disabled",) * 2


def test_table_without_policy_keeps_history_unless_configured() -> None:
    found = of_polaris(polaris_policy(kind="data-compaction"))
    assert found == CatalogPolicy()
    assert found.with_default(has_default=False).keep_history == NO_POLICY
    assert found.with_default(has_default=True) == found


def test_polaris_orphan_age_sets_minimum_file_age() -> None:
    policy = polaris_policy({"prefix_mismatch_mode": "delete"}, "orphan-file-removal", max_orphan_file_age_in_days=30, locations=[])
    assert of_polaris(policy).min_file_age_seconds == 30 * 86_400


@pytest.mark.parametrize(
    "policies, message",
    [
        ([polaris_policy({"retain_last": 3})], "the key 'config.retain_last', which gc-assets does not support"),
        ([polaris_policy({"max_snapshot_age_days": -1})], "config.max_snapshot_age_days must be a number of 0 or more, got -1"),
        ([polaris_policy({"max_snapshot_age_days": True})], "config.max_snapshot_age_days must be a number of 0 or more, got True"),
        ([polaris_policy({"max_snapshot_age_days": float("nan")})], "config.max_snapshot_age_days must be a number of 0 or more, got nan"),
        ([polaris_policy({"max_snapshot_age_days": "1e999999"})], "config.max_snapshot_age_days must be a number of 0 or more"),
        ([polaris_policy({"min_snapshot_to_keep": "many"})], "config.min_snapshot_to_keep must be a number of 0 or more, got 'many'"),
        ([polaris_policy({"min_snapshot_to_keep": [1]})], "config.min_snapshot_to_keep must be a number of 0 or more, got [1]"),
        ([polaris_policy(version="2030-01-01")], "the schema version must be 2025-02-03, got '2030-01-01'"),
        ([polaris_policy(enable="yes")], "enable must be true or false, got 'yes'"),
        ([polaris_policy(config=None, until="2030")], "the key 'until'"),
        ([polaris_policy() | {"content": "{"}], "content that is not JSON"),
        ([polaris_policy() | {"content": None}], "content must be a JSON object, got None"),
        ([polaris_policy(), polaris_policy()], "2 policies of type system.snapshot-expiry"),
        (["policy"], "not a JSON object"),
        ([polaris_policy(kind="orphan-file-removal", locations=["s3://b/t/data"])], "`locations`, which gc-assets cannot apply"),
        ([polaris_policy(kind="orphan-file-removal", max_orphan_file_age_in_days="x")], "max_orphan_file_age_in_days must be a number"),
    ],
)
def test_unsupported_polaris_policy_raises_error(policies: list[Any], message: str) -> None:
    with pytest.raises(FormatError) as error:
        of_polaris(*policies)
    assert message in str(error.value)


def test_table_properties_override_lakekeeper_queue() -> None:
    queue = {"enable-expire-snapshots": True, "max-snapshot-age-ms": DAY_MS, "min-snapshots-to-keep": None, "min-snapshots-to-expire": 20}
    assert parse_lakekeeper(queue, {}, {}) == CatalogPolicy("Lakekeeper's queue expire_snapshots", {MAX_AGE: DAY_MS}, ())
    found = parse_lakekeeper(queue, {}, {MAX_AGE: "5"})
    assert (found.limits, found.from_table) == ({MAX_AGE: 5}, (MAX_AGE,))


@pytest.mark.parametrize(
    "queue, properties, keeps",
    [
        ({}, {}, None),
        ({"enable-expire-snapshots": False}, {}, "Lakekeeper's queue expire_snapshots is disabled"),
        ({"max-snapshot-age-ms": 1}, {}, "Lakekeeper's queue expire_snapshots is disabled"),
        ({"enable-expire-snapshots": False}, {"lakekeeper.history.expire.enabled": "true"}, None),
        (
            {"enable-expire-snapshots": True},
            {"lakekeeper.history.expire.enabled": "False"},
            "Lakekeeper's queue expire_snapshots is disabled",
        ),
    ],
)
def test_disabled_lakekeeper_queue_keeps_history(queue: dict[str, Any], properties: dict[str, str], keeps: str | None) -> None:
    assert parse_lakekeeper(queue, {}, properties).keep_history == keeps


@pytest.mark.parametrize(
    "queue, properties, protect, age",
    [
        ({}, {}, None, 0),
        ({"enable-remove-orphan-files": True}, {}, None, 7 * 86_400),
        ({"enable-remove-orphan-files": True, "default-older-than-ms": 1500}, {}, None, 2),
        ({"enable-remove-orphan-files": True}, {"lakekeeper.remove-orphan-files.older-than-ms": "5000"}, None, 5),
        ({"enable-remove-orphan-files": True, "dry-run": True}, {}, "Lakekeeper's queue remove_orphan_files is a dry run", 7 * 86_400),
        ({"enable-remove-orphan-files": False}, {}, "Lakekeeper's queue remove_orphan_files is disabled", 7 * 86_400),
        ({}, {"lakekeeper.remove-orphan-files.enabled": "false"}, "Lakekeeper's queue remove_orphan_files is disabled", 7 * 86_400),
    ],
)
def test_lakekeeper_orphan_queue_protects_files(queue: dict[str, Any], properties: dict[str, str], protect: str | None, age: int) -> None:
    found = parse_lakekeeper({}, queue, properties)
    assert (found.protect, found.min_file_age_seconds) == (protect, age)


@pytest.mark.parametrize(
    "expiry, orphans, properties",
    [
        ({"keep-tags": True}, {}, {}),
        ({"enable-expire-snapshots": "yes"}, {}, {}),
        ({"enable-expire-snapshots": True, "max-ref-age-ms": -1}, {}, {}),
        ({}, {"exclude": ["x"]}, {}),
        ({}, {}, {"lakekeeper.history.expire.enabled": "perhaps"}),
        ({}, {"enable-remove-orphan-files": True}, {"lakekeeper.remove-orphan-files.older-than-ms": "a week"}),
    ],
)
def test_unsupported_lakekeeper_queue_raises_error(expiry: dict[str, Any], orphans: dict[str, Any], properties: dict[str, str]) -> None:
    with pytest.raises(FormatError):
        parse_lakekeeper(expiry, orphans, properties)
