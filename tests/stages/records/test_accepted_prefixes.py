"""Records of accepted prefixes: required fields, location and validity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GcError, StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.accepted_prefixes import accept_prefix, accepted_prefixes
from gc_assets.stages.records.dead_tables import accept_dead_table
from tests.records import run_context_at

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"


def counting(context: RunContext, clock: Clock) -> list[str]:
    run_context = RunContext.of(context.config, clock, clock.today())
    return [record.prefix for record in accepted_prefixes(run_context, context.config.storages[0].name)]


def location(context: RunContext, below: str) -> str:
    return f"{context.config.storages[0].location.rstrip('/')}/{below}"


def test_last_acceptance_of_prefix_applies(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    accept_prefix(context.config, Clock(), location(context, "db/t"), "ada", "an old export")
    accept_prefix(context.config, Clock(), location(context, "db/u/"), "bob")
    assert counting(context, Clock()) == ["db/t/", "db/u/"]
    storage, record = accept_prefix(context.config, Clock(), location(context, "db/t/"), "bob", withdraw=True)
    assert counting(context, Clock()) == ["db/u/"]
    text = context.state.files.read(f"{storage}/accepted_prefixes.json").decode()
    assert (text.count("db/t/"), "an old export" in text, record.decision) == (2, True, "withdrawn")


def test_prefix_can_be_given_with_storage_alias(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    storage = context.config.storages[0].model_copy(update={"aliases": ("s3://bucket-s3alias/w/",)})
    config = context.config.model_copy(update={"storages": (storage,)})
    _, record = accept_prefix(config, Clock(), "s3://bucket-s3alias/w/db/t/", "ada")
    assert record.prefix == "db/t/"


def test_location_of_a_dead_table_is_accepted(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    accept_dead_table(context.config, Clock(), UUID, location(context, "db/t/"), "ada")
    assert counting(context, Clock()) == ["db/t/"]


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(days=400)])
def test_acceptance_in_rehearsal_applies_only_to_rehearsals(tmp_path: Path, ahead: timedelta) -> None:
    context, rehearsed = run_context_at(tmp_path), Clock(datetime.now(UTC) + ahead)
    accept_prefix(context.config, rehearsed, location(context, "db/t/"), "ada")
    assert counting(context, rehearsed) == ["db/t/"]
    assert counting(context, Clock()) == []


@pytest.mark.parametrize(
    "below, by, withdraw, message",
    [
        ("", "ada", False, "not a directory inside a configured storage"),
        ("../db/", "ada", False, r"\.\."),
        ("db/t/", " ", False, "--by WHO"),
        ("db/t/", "ada", True, "nothing to withdraw"),
    ],
)
def test_acceptance_needs_location_and_user_name(tmp_path: Path, below: str, by: str, withdraw: bool, message: str) -> None:
    context = run_context_at(tmp_path)
    with pytest.raises(GcError, match=message):
        accept_prefix(context.config, Clock(), location(context, below), by, withdraw=withdraw)
    assert counting(context, Clock()) == []


def test_damaged_acceptance_record_raises_error(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    storage, _ = accept_prefix(context.config, Clock(), location(context, "db/t/"), "ada")
    context.state.files.replace(f"{storage}/accepted_prefixes.json", b"[{")
    with pytest.raises(StateError, match=r"accepted_prefixes\.json: the file is damaged"):
        counting(context, Clock())
