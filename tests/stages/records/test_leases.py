"""A lease uses the real clock, and a token that no record of the storage has yet."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.engine.recorded_names import read_storage_id, record_names, with_recorded_names
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.leases import refuse_holder, refuse_rehearsal, take_lease
from gc_assets.stages.records.renames import rename
from gc_assets.state.registry import read_registry
from gc_assets.stores.protocol import LEASE_DURATION, Lease
from tests.records import STORAGE, run_context_at


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    (tmp_path / "warehouse").mkdir()
    return run_context_at(tmp_path)


@pytest.fixture
def known(context: RunContext) -> RunContext:
    """A context of a storage that has had a lease, so that it has an id on record."""
    named = with_names(context)
    take(named).release()
    return named


def with_names(context: RunContext) -> RunContext:
    """Return the context with the names on record, which commands use."""
    config = with_recorded_names(context.config)
    record_names(config, context.state, context.clock)
    return RunContext.of(config, context.clock, context.run_date)


def take(context: RunContext) -> Lease:
    return take_lease(context, STORAGE, context.store(STORAGE), "plan", "ada")


def recorded_id(context: RunContext) -> str | None:
    entry = read_registry(context.state).find("storage", STORAGE)
    return None if entry is None else entry.storage_id


def unmount(root: Path) -> Path:
    """Move the storage away, and return the empty directory in its place."""
    (root / "warehouse").rename(root / "disk")
    (root / "warehouse").mkdir()
    return root / "warehouse"


def test_lease_of_a_rehearsal_uses_the_real_clock(context: RunContext) -> None:
    assert context.clock.is_rehearsal
    take(context)
    holder = context.store(STORAGE).holder()
    assert holder is not None
    left = datetime.fromisoformat(holder.expires_at) - datetime.now(UTC)
    assert LEASE_DURATION - timedelta(minutes=1) < left <= LEASE_DURATION


def test_rehearsal_in_future_cannot_take_active_lease(context: RunContext, tmp_path: Path) -> None:
    take(context)
    with pytest.raises(GateRefused, match="is being changed by ada"):
        take(run_context_at(tmp_path, context.clock.now() + timedelta(days=400)))


def test_lease_holder_is_reported_without_taking_lease(context: RunContext) -> None:
    refuse_holder(context, STORAGE)
    lease = take(context)
    expected = r"being changed by ada \(host .*, process [0-9]+, plan plan\) since [0-9-]{10} [0-9:]{8}Z until .*continues the plan"
    with pytest.raises(GateRefused, match=expected):
        refuse_holder(context, STORAGE)
    lease.release()
    refuse_holder(context, STORAGE)
    assert take(context).token == lease.token + 1


def test_fencing_token_increases_after_storage_lost_its_counter(context: RunContext, tmp_path: Path) -> None:
    """A new disk under the same storage name: its actions come after all earlier ones."""
    for _ in range(4):
        take(context).release()
    shutil.rmtree(tmp_path / "warehouse" / ".gc-assets")
    assert take(context).token == 5


def test_damaged_token_record_raises_error(context: RunContext, tmp_path: Path) -> None:
    take(context).release()
    (path,) = (tmp_path / "state").rglob("_token.json")
    assert json.loads(path.read_text()) == {"token": 1}
    path.write_text("x")
    with pytest.raises(StateError, match=r"_token\.json.*is damaged.*largest `token`"):
        take(context)
    assert context.store(STORAGE).holder() is None


def test_rehearsal_changes_only_storages_that_allow_it(context: RunContext) -> None:
    with pytest.raises(GateRefused, match=r"in a rehearsal .*ages of files are not real.*rehearsals: allowed"):
        refuse_rehearsal(context, STORAGE)
    refuse_rehearsal(replace(context, clock=Clock()), STORAGE)
    storage = context.storage(STORAGE).model_copy(update={"rehearsals": "allowed"})
    allowed = context.config.model_copy(update={"storages": (storage,)})
    refuse_rehearsal(replace(context, config=allowed), STORAGE)


def test_lease_is_refused_on_unmounted_disk(known: RunContext, tmp_path: Path) -> None:
    """With a lease, a restore would not find its files and would end their records."""
    first, directory = recorded_id(known), unmount(tmp_path)
    with pytest.raises(GateRefused, match=f"has no id and no lease, but {first} is on record.*Mount it.*rename warehouse warehouse"):
        take(known)
    assert list(directory.iterdir()) == []
    directory.rmdir()
    (tmp_path / "disk").rename(directory)
    take(known)
    assert recorded_id(known) == first


def test_lease_is_refused_on_storage_with_another_id(known: RunContext, tmp_path: Path) -> None:
    (tmp_path / "warehouse" / ".gc-assets" / "storage_id.json").write_text('{"id": "another"}')
    with pytest.raises(GateRefused, match="has the id another"):
        take(known)


def test_lost_storage_id_is_written_again(known: RunContext, tmp_path: Path) -> None:
    (tmp_path / "warehouse" / ".gc-assets" / "storage_id.json").unlink()
    take(known)
    assert recorded_id(known) == read_storage_id(known.config, known.storage(STORAGE)) is not None


def test_lease_is_granted_if_only_token_counter_is_lost(known: RunContext, tmp_path: Path) -> None:
    (tmp_path / "warehouse" / ".gc-assets" / "fencing_token").unlink()
    take(known)


def test_rename_accepts_an_emptied_storage(known: RunContext, tmp_path: Path) -> None:
    first = recorded_id(known)
    unmount(tmp_path)
    rename(known.config, Clock(), STORAGE, STORAGE, "ada")
    take(known)
    assert first != recorded_id(known) == read_storage_id(known.config, known.storage(STORAGE)) is not None
