"""Records of dead tables: required fields, location and validity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GcError, StateError, UsageError
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.dead_tables import accept_dead_table, dead_tables
from tests.records import run_context_at

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"


def counting(context: RunContext, clock: Clock) -> list[tuple[str, str]]:
    run_context = RunContext.of(context.config, clock, clock.today())
    return [(record.prefix, record.by) for record in dead_tables(run_context, context.config.storages[0].name)]


def location(context: RunContext, below: str) -> str:
    return f"{context.config.storages[0].location.rstrip('/')}/{below}"


def test_last_acceptance_of_table_and_location_applies(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    accept_dead_table(context.config, Clock(), UUID.upper(), location(context, "db/t"), "ada", "dropped in spring")
    accept_dead_table(context.config, Clock(), UUID, location(context, "db/u/"), "bob")
    assert counting(context, Clock()) == [("db/t/", "ada"), ("db/u/", "bob")]
    storage, record = accept_dead_table(context.config, Clock(), UUID, location(context, "db/t/"), "bob", withdraw=True)
    assert counting(context, Clock()) == [("db/u/", "bob")]
    text = context.state.files.read(f"{storage}/dead_tables.json").decode()
    assert (text.count(UUID), "dropped in spring" in text, record.decision) == (3, True, "withdrawn")


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(days=400)])
def test_acceptance_in_rehearsal_applies_only_to_rehearsals(tmp_path: Path, ahead: timedelta) -> None:
    context, rehearsed = run_context_at(tmp_path), Clock(datetime.now(UTC) + ahead)
    accept_dead_table(context.config, rehearsed, UUID, location(context, "db/t/"), "ada")
    assert counting(context, rehearsed) == [("db/t/", "ada")]
    assert counting(context, Clock()) == []


@pytest.mark.parametrize(
    "uuid, below, by, withdraw, message",
    [
        ("orders", "db/t/", "ada", False, "not a table uuid"),
        (UUID, "", "ada", False, "not a directory inside a configured storage"),
        (UUID, "../db/", "ada", False, r"\.\."),
        (UUID, "db/t/", " ", False, "--by WHO"),
        (UUID, "db/t/", "ada", True, "nothing to withdraw"),
    ],
)
def test_acceptance_needs_uuid_location_and_user_name(tmp_path: Path, uuid: str, below: str, by: str, withdraw: bool, message: str) -> None:
    context = run_context_at(tmp_path)
    with pytest.raises(GcError, match=message):
        accept_dead_table(context.config, Clock(), uuid, location(context, below), by, withdraw=withdraw)
    with pytest.raises(UsageError, match="not a directory inside"):
        accept_dead_table(context.config, Clock(), UUID, "file:///elsewhere/db/t/", "ada")
    assert counting(context, Clock()) == []


def test_damaged_acceptance_record_raises_error(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    storage, _ = accept_dead_table(context.config, Clock(), UUID, location(context, "db/t/"), "ada")
    context.state.files.replace(f"{storage}/dead_tables.json", b"[{")
    with pytest.raises(StateError, match=r"dead_tables\.json: the file is damaged"):
        counting(context, Clock())
