"""Old names of keys and events in `lakes.yaml` are accepted with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from gc_assets.config.models import Config, Gates
from gc_assets.lakes.kinds import config_of

STORAGE: dict[str, Any] = {"name": "warehouse", "location": "file:///data/warehouse/"}
LAKEFS = {
    "name": "ml",
    "kind": "lakefs",
    "endpoint": "http://localhost:8000",
    "repository": "ml",
    "access_key_id": "key",
    "secret_access_key": "secret",
}
HOOK = {"name": "alerts", "kind": "webhook", "url": "https://alerts.example.org/hook"}

Document = Callable[[str, Any], dict[str, Any]]


def document(storage: dict[str, Any] | None = None, lake: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"state": "/state", "storages": [{**STORAGE, **(storage or {})}], "lakes": [{**LAKEFS, **(lake or {})}], **keys}


CASES: dict[str, tuple[str, Any, Document, Callable[[Config], Any]]] = {
    "max_sick": ("max_unreadable", 3, lambda key, value: document({"gates": {key: value}}), lambda c: c.storages[0].gates.max_unreadable),
    "first_night": ("first_run_date", "2026-02-01", lambda key, value: document(**{key: value}), lambda c: str(c.first_run_date)),
    "recheck_deduplicated": (
        "verify_deduplicated",
        False,
        lambda key, value: document(lake={key: value}),
        lambda c: c.lakes[0].model_dump()["verify_deduplicated"],
    ),
}


@pytest.mark.parametrize("old", CASES)
def test_old_key_is_accepted_with_warning(old: str) -> None:
    new, value, make, read = CASES[old]
    with pytest.warns(FutureWarning, match=rf"`{old}` was renamed to `{new}`; the old name is removed in gc-assets 0\.5\.0"):
        renamed = config_of(make(old, value))
    with warnings.catch_warnings(action="error"):
        current = config_of(make(new, value))
    assert read(renamed) == read(current) == value
    assert renamed.policy_digest() == current.policy_digest()


def test_key_without_effect_is_accepted_with_warning() -> None:
    with pytest.warns(FutureWarning, match=r"`full_every` has no effect any more; gc-assets 0\.5\.0 rejects it\. Remove it\."):
        config = config_of(document(full_every=3))
    assert config.policy_digest() == config_of(document()).policy_digest()


@pytest.mark.parametrize("old", CASES)
def test_old_and_new_key_together_are_rejected(old: str) -> None:
    new, value, make, _ = CASES[old]
    both = make(old, value)
    for mapping in (both, both["storages"][0].get("gates", {}), both["lakes"][0]):
        if old in mapping:
            mapping[new] = value
    with pytest.raises(ValidationError, match=f"the same key occurs twice: {new} and its old name {old}; keep {new}"):
        config_of(both)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_error_in_old_key_contains_new_key() -> None:
    with pytest.raises(ValidationError) as error:
        config_of(document({"gates": {"max_sick": -1}}))
    assert [item["loc"] for item in error.value.errors()] == [("storages", 0, "gates", "max_unreadable")]


def test_schema_contains_only_new_keys() -> None:
    assert "max_unreadable" in Gates.model_json_schema()["properties"]
    assert "max_sick" not in Gates.model_json_schema()["properties"]


@pytest.mark.parametrize("old, new", [("table_sick", "table_unreadable"), ("night_missed", "run_missed")])
def test_old_event_name_is_accepted_with_warning(old: str, new: str) -> None:
    with pytest.warns(FutureWarning, match=f"`{old}` was renamed to `{new}`"):
        renamed = config_of(document(notify=[{**HOOK, "events": ["plan_ready", old]}]))
    assert renamed.notify[0].events == {"plan_ready", new}
