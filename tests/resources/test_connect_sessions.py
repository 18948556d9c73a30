"""Processes that run one after the other use the same session of a Connect server."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.core.errors import GcError
from gc_assets.resources import connect_sessions
from gc_assets.resources.connect_sessions import MAX_SESSIONS, SessionFile, SessionPool
from tests.process_kills import CHECKOUT

A, B = {"spark.sql.ansi.enabled": "true"}, {"spark.sql.ansi.enabled": "false"}
HOLD = """
import sys, time
from pathlib import Path
from gc_assets.resources.connect_sessions import SessionFile
held = SessionFile.lock(Path(sys.argv[1]))
print(held is not None, flush=True)
time.sleep(60)
"""


class RefusedError(PySparkException):
    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition

    def getCondition(self) -> str:  # noqa: N802  (a method of pyspark)
        return self.condition


@dataclass
class Server:
    """A server with the settings of each session. `refused` is the error of closed sessions."""

    sessions: dict[str, dict[str, str]] = field(default_factory=dict)
    prepared: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    refused: str = "INVALID_HANDLE.SESSION_CLOSED"

    def open(self, pool: SessionPool, settings: Mapping[str, str]) -> str:
        """Open a session, and return its id."""
        opened = pool.open(settings, lambda session_id: self._connect(session_id, settings), self._prepare)
        return cast("Session", opened).session_id

    def _prepare(self, spark: SparkSession) -> None:
        self.prepared.append(cast("Session", spark).session_id)

    def _connect(self, session_id: str, settings: Mapping[str, str]) -> SparkSession:
        if session_id in self.closed:
            raise RefusedError(self.refused)
        self.sessions.setdefault(session_id, {}).update(settings)
        return cast("SparkSession", Session(self, session_id))


@dataclass
class Session:
    server: Server
    session_id: str

    @property
    def conf(self) -> Any:
        return self

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802  (a method of pyspark)
        return self.server.sessions[self.session_id]

    def set(self, key: str, value: str) -> None:
        self.getAll[key] = value

    def stop(self) -> None:
        self.server.closed.add(self.session_id)


def test_next_process_uses_the_same_session(tmp_path: Path) -> None:
    server, first, second = Server(), SessionPool(tmp_path / "sessions"), SessionPool(tmp_path / "sessions")
    session_id = server.open(first, A)
    assert server.open(first, A) == session_id
    first.close()
    assert server.open(second, A) == session_id
    assert server.prepared == list(server.sessions) == [session_id]


def count_used(directory: Path) -> int:
    """Count the sessions in a directory that processes use."""
    used = 0
    for path in directory.glob("*.json"):
        file = SessionFile.lock(path)
        if file is None:
            used += 1
        else:
            file.close()
    return used


def test_concurrent_processes_use_different_sessions(tmp_path: Path) -> None:
    server, first, second = Server(), SessionPool(tmp_path), SessionPool(tmp_path)
    assert server.open(first, A) != server.open(second, A)
    assert count_used(tmp_path) == 2
    first.close()
    assert count_used(tmp_path) == 1


def test_closed_session_is_replaced(tmp_path: Path) -> None:
    server, first, second = Server(), SessionPool(tmp_path), SessionPool(tmp_path)
    server.closed.add(closed := server.open(first, A))
    first.close()
    assert (opened := server.open(second, A)) != closed
    second.close()
    assert server.open(first, A) == opened


def test_session_unknown_to_a_restarted_server_is_replaced(tmp_path: Path) -> None:
    """A restarted server opens any id, without the files of the former session."""
    server, first, second = Server(), SessionPool(tmp_path), SessionPool(tmp_path)
    forgotten = server.open(first, A)
    first.close()
    server.sessions.clear()
    opened = server.open(second, A)
    assert server.closed == {forgotten}
    assert server.prepared == [forgotten, opened]


def test_session_with_other_settings_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, pool = Server(), SessionPool(tmp_path)
    former = server.open(pool, {**A, "package": "of the former release"})
    pool.close()
    current = server.open(pool, {**A, "package": "of this release"})
    assert server.prepared == [former, current]
    pool.close()
    monkeypatch.setattr(connect_sessions, "MAX_SESSIONS", 1)
    assert server.open(pool, {**A, "package": "of this release"}) not in server.closed
    assert server.closed == {former}  # it had to make room


def test_session_with_failed_preparation_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, pool = Server(), SessionPool(tmp_path)
    with monkeypatch.context() as failing:
        failing.setattr(server, "_prepare", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            server.open(pool, A)
    assert server.closed == set(server.sessions)
    assert server.open(pool, A) not in server.closed


def test_unexpected_session_errors_are_raised(tmp_path: Path) -> None:
    server, pool = Server(refused="CONNECT"), SessionPool(tmp_path)
    server.closed.add(server.open(pool, A))
    with pytest.raises(PySparkException):
        server.open(pool, A)


def test_session_with_changed_settings_is_stopped_and_replaced(tmp_path: Path) -> None:
    server, first, second = Server(), SessionPool(tmp_path), SessionPool(tmp_path)
    server.sessions[changed := server.open(first, A)]["spark.sql.caseSensitive"] = "true"
    first.close()
    assert server.open(second, A) != changed
    assert server.closed == {changed}


def test_session_with_matching_settings_is_preferred(tmp_path: Path) -> None:
    server, first, second = Server(), SessionPool(tmp_path), SessionPool(tmp_path)
    of_a, of_b = server.open(first, A), server.open(second, B)
    first.close()
    second.close()
    assert server.open(second, B) == of_b
    assert server.open(first, A) == of_a


def test_session_of_killed_process_can_be_reused(tmp_path: Path) -> None:
    server, pool = Server(), SessionPool(tmp_path)
    server.open(pool, A)
    pool.close()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "0.json")], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "True\n"
        assert count_used(tmp_path) == 1
        held.kill()
    assert count_used(tmp_path) == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"session_id": 1}', '{"session_id": "no uuid"}'])
def test_damaged_session_file_is_replaced(tmp_path: Path, content: str) -> None:
    server, first, second = Server(), SessionPool(tmp_path), SessionPool(tmp_path)
    (tmp_path / "0.json").write_text(content)
    opened = server.open(first, A)
    first.close()
    assert server.open(second, A) == opened


def test_number_of_sessions_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_sessions, "MAX_SESSIONS", 3)
    monkeypatch.setattr(connect_sessions, "WAIT_SECONDS", 0)
    server, pools = Server(), [SessionPool(tmp_path) for _ in range(4)]
    assert len({server.open(pool, A) for pool in pools[:3]}) == 3
    with pytest.raises(GcError, match=r"^3 other processes use all sessions of the Spark Connect server"):
        server.open(pools[3], A)


def test_random_processes_never_share_sessions_and_open_the_minimum(tmp_path: Path) -> None:
    for seed in range(40):
        choose, server, running, most = random.Random(seed), Server(), dict[str, SessionPool](), 0
        for _ in range(60):
            if len(running) == MAX_SESSIONS or (running and choose.random() < 0.5):
                running.pop(choose.choice(list(running))).close()
                continue
            pool = SessionPool(tmp_path / str(seed))
            session_id = server.open(pool, A)
            assert session_id not in running
            running[session_id] = pool
            most = max(most, len(running))
            if choose.random() < 0.1:
                server.closed.add(session_id)
        assert len(server.sessions) - len(server.closed) <= most
        for pool in running.values():
            pool.close()
