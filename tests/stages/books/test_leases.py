"""Who changes a storage takes its lease by the real clock, under a token that no record of the storage has yet."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.engine.run_context import Night
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stores.protocol import LEASE_DURATION, Lease
from tests.records import STORAGE, night_at


@pytest.fixture
def night(tmp_path: Path) -> Night:
    (tmp_path / "warehouse").mkdir()
    return night_at(tmp_path)


def taken(night: Night) -> Lease:
    return take_lease(night, STORAGE, night.store(STORAGE), "plan", "ada")


def test_a_lease_runs_by_the_real_clock_in_a_rehearsal_too(night: Night) -> None:
    assert night.clock.is_rehearsal
    taken(night)
    holder = night.store(STORAGE).holder()
    assert holder is not None
    left = datetime.fromisoformat(holder.expires_at) - datetime.now(UTC)
    assert LEASE_DURATION - timedelta(minutes=1) < left <= LEASE_DURATION


def test_a_rehearsal_in_the_future_takes_over_no_live_lease(night: Night, tmp_path: Path) -> None:
    taken(night)
    with pytest.raises(GateRefused, match="is being changed by ada"):
        taken(night_at(tmp_path, night.clock.now() + timedelta(days=400)))


def test_the_token_grows_though_the_storage_forgot_its_counter(night: Night, tmp_path: Path) -> None:
    """A new disk under the old name: what is done on it comes after all that was ever done."""
    for _ in range(4):
        taken(night).release()
    shutil.rmtree(tmp_path / "warehouse" / ".gc-assets")
    assert taken(night).token == 5


def test_a_record_of_tokens_that_cannot_be_read_stops(night: Night, tmp_path: Path) -> None:
    taken(night).release()
    (path,) = (tmp_path / "state").rglob("_token.json")
    assert json.loads(path.read_text()) == {"token": 1}
    path.write_text("x")
    with pytest.raises(StateError, match=r"_token\.json is damaged.*largest `token`"):
        taken(night)
    assert night.store(STORAGE).holder() is None


def test_a_rehearsal_changes_only_a_storage_that_allows_it(night: Night) -> None:
    with pytest.raises(GateRefused, match=r"by which no age is true.*rehearsals: allowed"):
        refuse_rehearsal(night, STORAGE)
    refuse_rehearsal(Night(night.config, Clock(), night.run_date, night.as_of), STORAGE)
    storage = night.storage(STORAGE).model_copy(update={"rehearsals": "allowed"})
    allowed = night.config.model_copy(update={"storages": (storage,)})
    refuse_rehearsal(Night(allowed, night.clock, night.run_date, night.as_of), STORAGE)
