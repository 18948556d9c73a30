"""Retention rules that apply to no ref are reported."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFS = [("branch", "main"), ("branch", "release#1"), ("tag", "v1")]


def notes(refs: list[tuple[str, str]], *patterns: str, tags: str = "keep") -> tuple[str, ...]:
    rules: list[dict[str, Any]] = [{"match": pattern, "keep": "forever"} for pattern in patterns]
    settings = {"name": "weather", "kind": "icechunk", "location": "file:///lake/", "retention": {"refs": rules, "tags": tags}}
    return IcechunkLakeConfig.model_validate(settings).unused_rules(refs, NOW)


def test_rule_that_matches_no_ref_is_reported() -> None:
    (note,) = notes(REFS, "main", "release%231")
    assert note.startswith("lake weather: retention.refs[1] (match 'release%231') applies to no ref; compare it with the names")


def test_rule_after_wider_rule_is_reported() -> None:
    (note,) = notes(REFS, ".*", "main")
    assert "retention.refs[1] (match 'main') applies to no ref, because earlier rules match the same refs" in note


@pytest.mark.parametrize("patterns", [(), (".*",), ("main", "v1"), ("main|gone",)])
def test_used_rules_are_not_reported(patterns: tuple[str, ...]) -> None:
    assert notes(REFS, *patterns) == ()


def test_no_unused_rule_is_reported_for_lake_without_refs() -> None:
    assert notes([], "main", ".*") == ()


def test_rule_for_ignored_tag_is_reported() -> None:
    (note,) = notes(REFS, "v1", tags="ignore")
    assert "retention.refs[0] (match 'v1') applies to no ref" in note


def test_lifecycle_rule_for_missing_branch_is_reported(tmp_path: Any) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"scratch": {"prefix": "tmp/", "days": 10, "enabled": true, "branch_days": {"main": 30, "dev": 3}}}')
    settings = {"name": "ml", "kind": "lakefs", "endpoint": "http://localhost", "repository": "ml", "rules": str(rules)}
    config = LakeFsLakeConfig.model_validate({**settings, "access_key_id": "a", "secret_access_key": "b"})
    assert config.unused_rules(REFS, NOW, {"default_retention_days": "7"}) == (
        "lake ml: rule 'scratch' applies to branch 'dev', which does not exist",
    )


@pytest.mark.parametrize(
    "retention, properties, note",
    [
        ({}, {}, "the server has no garbage collection rules for this repository, so every commit is kept"),
        ({}, {"default_retention_days": "7"}, None),
        ({"source": "configured"}, {}, "`retention` keeps every commit; set `default` or `refs` to collect files of old commits"),
        ({"source": "configured", "default": "7d"}, {}, None),
        ({"source": "configured", "refs": [{"match": "main", "max_age": "7d"}]}, {}, None),
        ({"source": "configured", "dangling": "7d"}, {}, None),
    ],
)
def test_repository_that_keeps_every_commit_is_reported(retention: dict[str, Any], properties: dict[str, str], note: str | None) -> None:
    settings = {"name": "ml", "kind": "lakefs", "endpoint": "http://localhost", "repository": "ml", "retention": retention}
    config = LakeFsLakeConfig.model_validate({**settings, "access_key_id": "a", "secret_access_key": "b"})
    assert config.unused_rules([], NOW) == ()
    assert config.unused_rules(REFS, NOW, properties) == (() if note is None else (f"lake ml: {note}",))


@pytest.mark.parametrize("option, value", [("lifecycle", "commit"), ("publish_results", True)])
def test_lifecycle_option_without_rules_is_reported(option: str, value: object) -> None:
    settings = {"name": "ml", "kind": "lakefs", "endpoint": "http://localhost", "repository": "ml", option: value}
    config = LakeFsLakeConfig.model_validate({**settings, "access_key_id": "a", "secret_access_key": "b"})
    written = f"{option}: {value}".lower()
    (note,) = config.unused_rules(REFS, NOW, {"default_retention_days": "7"})
    assert note == f"lake ml: `{written}` has no effect without `rules`, the file with lifecycle rules"
