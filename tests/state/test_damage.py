"""A missing or damaged file stops readers of its run, until `repair` moves the run aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gc_assets.core.errors import StateError
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from tests.state.test_parts import SCHEMA
from tests.state.test_receipts import DAY, publish_table, receipt, root, start_run

REPAIR = "run `gc-assets doctor --repair`"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {"missing": Path.unlink, "shorter": truncate, "flipped bit": flip_bit}


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State.at(f"file://{tmp_path}/state")


@pytest.mark.parametrize("asset", ["lake_refs", "live_files", "orphan_files", "deletion_plan", "manifest_entries"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_repair_moves_damaged_run_aside(state: State, asset: str, damage: Callable[[Path], None]) -> None:
    found = publish_table(state, "a", asset=asset)
    path = root(state) / found.paths()[0]
    damage(path)
    assert state.repair()
    assert state.current("sales", asset, DAY) is None
    assert state.history("sales", asset) == ()
    assert state.find_index_errors() == []
    assert state.repair() == []
    again = publish_table(state, "a", asset=asset)
    assert state.current("sales", asset, DAY) == again


def test_repair_keeps_the_files_of_a_damaged_run(state: State) -> None:
    found = publish_table(state, "a")
    path = root(state) / found.paths()[0]
    content = (root(state) / found.path / "_receipt.json").read_bytes()
    truncate(path)
    assert state.repair()[0] == f"{found.path}/_receipt.json.damaged"
    assert path.exists()
    assert (root(state) / found.path / "_receipt.json.damaged").read_bytes() == content


def test_repair_moves_run_with_damaged_receipt_aside(state: State) -> None:
    earlier, later = publish_table(state, "a"), publish_table(state, "b")
    (root(state) / later.path / "_receipt.json").write_text("{")
    state.repair()
    assert [run.path for run in state.history("sales", "live_files")] == [earlier.path]
    assert state.current("sales", "live_files", DAY) is None


def test_repair_moves_run_with_changed_receipt_aside(state: State) -> None:
    found = publish_table(state, "a")
    path = root(state) / found.path / "_receipt.json"
    path.write_text(path.read_text().replace('"run_date"', ' "run_date"'))
    assert any("was changed after publication" in sentence for sentence in state.find_index_errors())
    assert state.repair()[0] == f"{found.path}/_receipt.json.damaged"
    assert state.current("sales", "live_files", DAY) is None
    assert state.history("sales", "live_files") == ()


def test_repair_removes_pointer_to_missing_run(state: State) -> None:
    found = publish_table(state, "a")
    (root(state) / found.path / "_receipt.json").unlink()
    with pytest.raises(StateError, match=REPAIR):
        state.current("sales", "live_files", DAY)
    state.repair()
    assert state.current("sales", "live_files", DAY) is None


@pytest.mark.parametrize("content", ["{", "[]", "{}", "null"])
def test_repair_removes_damaged_pointer(state: State, content: str) -> None:
    found = publish_table(state, "a")
    path = root(state) / found.path / "../current.json"
    path.write_text(content)
    with pytest.raises(StateError, match=rf"current\.json is damaged .*{REPAIR}"):
        state.current("sales", "live_files", DAY)
    assert ["current.json is damaged" in message for message in state.find_index_errors()] == [True]
    state.repair()
    assert state.find_index_errors() == []
    assert state.current("sales", "live_files", DAY) is None
    assert [run.path for run in state.history("sales", "live_files")] == [found.path]


def test_repair_keeps_undamaged_runs(state: State) -> None:
    found = [publish_table(state, key) for key in "ab"]
    truncate(root(state) / found[0].paths()[0])
    state.repair()
    assert state.current("sales", "live_files", DAY) == found[1]
    assert [run.path for run in state.history("sales", "live_files")] == [found[1].path]


@pytest.mark.parametrize("asset", ["deletion_log", "expiry_log"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_repair_never_drops_deletion_records(state: State, asset: str, damage: Callable[[Path], None]) -> None:
    found = publish_table(state, "a", asset=asset)
    damage(root(state) / found.paths()[0])
    assert state.repair() == []
    assert [run.path for run in state.history("sales", asset)] == [found.path]
    with pytest.raises(StateError, match="restore it from a backup of the state"):
        state.verify(found)


@pytest.mark.parametrize("name", ["_receipt.json", "part"])
def test_missing_file_of_a_deletion_log_is_reported(state: State, name: str) -> None:
    found = publish_table(state, "a", asset="deletion_log")
    missing = root(state) / (found.paths()[0] if name == "part" else f"{found.path}/{name}")
    missing.unlink()
    assert state.repair() == []
    (message,) = state.find_damaged_records()
    assert missing.name in message
    assert state.find_index_errors() == []


def test_repair_keeps_plan_whose_apply_has_begun(state: State) -> None:
    run, parts = start_run(state, "a", asset="deletion_plan")
    found = state.publish(run, receipt(run, parts, summary={"plan_id": "0123abcd"}))
    state.files.replace("sales/apply/0123abcd/log.json", b"")
    truncate(root(state) / found.paths()[0])
    assert state.repair() == []
    assert [run.path for run in state.history("sales", "deletion_plan")] == [found.path]
    assert len(state.find_damaged_records()) == 1
    (root(state) / "sales/apply/0123abcd/log.json").unlink()  # as if the apply had been killed before it wrote the log
    assert state.repair()
    assert list(state.history("sales", "deletion_plan")) == []


@pytest.mark.parametrize("damage", [Path.unlink, truncate], ids=["missing", "shorter"])
def test_read_errors_contain_file_and_next_step(state: State, damage: Callable[[Path], None]) -> None:
    found = publish_table(state, "a")
    path = root(state) / found.paths()[0]
    damage(path)
    assert [path.name in line for line in state.find_index_errors()] == [True]
    with pytest.raises(StateError, match=f"{path.name}.*{REPAIR}"):
        read_parts(state.files, found.paths(), SCHEMA)
    with pytest.raises(StateError, match=f"{path.name}.*{REPAIR}"):
        state.current("sales", "live_files", DAY)
