"""Reuse sessions of a Spark Connect server.

Up to Spark 4.3.0, a server keeps a Python daemon and a thread for every session until the server
itself ends (SPARK-54055). They would accumulate if each process opened a new session. Therefore,
processes that run one after the other use the same session, whose workers are already running.
There are as many sessions as concurrent processes, up to `MAX_SESSIONS`.

To make sure that a session is used by one process at a time, each session has a file on this
machine, which the process locks. The lock is released when the process ends, even if it is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.core.errors import GcError

MAX_SESSIONS: Final = 16
WAIT_SECONDS: Final = 600.0
SAME_SETTINGS, NO_SESSION, OTHER_SETTINGS = range(3)
MARKER: Final = "spark.gc_assets.session"
_CLOSED: Final = "INVALID_HANDLE"
_log: Final = logging.getLogger(__name__)


class SessionFile:
    """A file with the id and settings of a session, which is locked until it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._record = self._read()

    @classmethod
    def lock(cls, path: Path) -> SessionFile | None:
        """Open and lock a file, or return None if another process uses it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    @property
    def session_id(self) -> str | None:
        return self._record.get("session_id")

    def rank(self, settings: str) -> int:
        """Rate how suitable the session is for some settings. A lower rank is better."""
        if self.session_id is None:
            return NO_SESSION
        return SAME_SETTINGS if self._record.get("settings") == settings else OTHER_SETTINGS

    def is_unchanged(self, state: str) -> bool:
        """Check if the session still has the settings that it had when it was opened."""
        return self._record.get("state") == state

    def save(self, session_id: str, settings: str, state: str) -> None:
        self._record = {"session_id": session_id, "settings": settings, "state": state}
        with suppress(OSError):  # if this fails, the next process just opens a new session
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(self._record).encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(os.pread(self._descriptor, 10_000, 0))
        except ValueError:  # empty, or incomplete because a process was killed
            return {}
        return found if isinstance(found, dict) and _is_uuid(found.get("session_id")) else {}


class SessionPool:
    """The sessions of a server that processes on this machine share, one process at a time.

    Args:
        directory: The directory for the files of the sessions, which is created if missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._file: SessionFile | None = None

    def open(
        self,
        settings: Mapping[str, str],
        connect: Callable[[str], SparkSession],
        prepare: Callable[[SparkSession], None] = lambda _: None,
    ) -> SparkSession:
        """Reuse the session of an earlier process, or open a new session if none is suitable.

        Args:
            settings: Everything that distinguishes sessions, such as settings and digests of files.
            connect: Opens the session with a given id, and applies the settings.
            prepare: Prepares a new session, for example by sending files.

        Raises:
            GcError: If all sessions are used by other processes.
        """
        with self._lock:
            wanted = _digest(settings)
            if self._file is None:
                self._file = _wait_for_file(self._directory, wanted)
            spark = None if self._file.session_id is None else _reconnect(self._file, wanted, connect)
            return spark or _open_new(self._file, wanted, connect, prepare)

    def close(self) -> None:
        """Let other processes use the session."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


@cache
def session_pool(directory: Path) -> SessionPool:
    """Return this process's pool of sessions for a directory."""
    return SessionPool(directory)


def _reconnect(file: SessionFile, settings: str, connect: Callable[[str], SparkSession]) -> SparkSession | None:
    """Reopen the session that is recorded in a file.

    The result is None if the server has already closed the session. A session that was not prepared
    for `settings`, or whose settings have changed since then, is closed, and the result is None
    too.
    """
    before = SparkSession.getActiveSession()
    try:
        spark = connect(str(file.session_id))
    except PySparkException as error:
        if not str(error.getCondition() or "").startswith(_CLOSED):
            raise
        stop_refused(before)
        return None
    if file.rank(settings) == SAME_SETTINGS and file.is_unchanged(_digest(spark.conf.getAll)):
        return spark
    spark.stop()
    return None


def _open_new(
    file: SessionFile, settings: str, connect: Callable[[str], SparkSession], prepare: Callable[[SparkSession], None]
) -> SparkSession:
    session_id = str(uuid.uuid4())
    spark = connect(session_id)
    try:
        prepare(spark)
        # A server that has forgotten the id would silently open a new session. Such a session does
        # not have this setting.
        spark.conf.set(MARKER, session_id)
        file.save(session_id, settings, _digest(spark.conf.getAll))
    except BaseException:
        spark.stop()
        raise
    return spark


def stop_refused(others: SparkSession | None) -> None:
    """Stop a refused session that pyspark still keeps as active."""
    refused = SparkSession.getActiveSession()
    if refused is not None and refused is not others:
        with suppress(PySparkException):
            refused.stop()


def _wait_for_file(directory: Path, settings: str) -> SessionFile:
    """Lock the most suitable session file. If other processes use all files, wait for one."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    started = monotonic()
    is_logged = False
    while (file := _lock_best(directory, settings)) is None:
        if monotonic() - started > WAIT_SECONDS:
            raise GcError(
                f"{MAX_SESSIONS} other processes use all sessions of the Spark Connect server. Wait until one of them ends, or set "
                "`mode: session` in `spark`."
            )
        if not is_logged:
            _log.warning("waiting for one of the %d sessions of the Spark Connect server", MAX_SESSIONS)
            is_logged = True
        sleep(0.5)
    return file


def _lock_best(directory: Path, settings: str) -> SessionFile | None:
    """Lock the most suitable session file, or return None if other processes use all files."""
    best: SessionFile | None = None
    for number in range(MAX_SESSIONS):
        file = SessionFile.lock(directory / f"{number}.json")
        if file is None:
            continue
        if best is None or file.rank(settings) < best.rank(settings):
            best, file = file, best
        if file is not None:
            file.close()
        if best.rank(settings) < OTHER_SETTINGS:
            break
    return best


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(sorted(settings.items())).encode()).hexdigest()


def _is_uuid(text: object) -> bool:
    try:
        return isinstance(text, str) and uuid.UUID(text).version == 4
    except ValueError:
        return False
