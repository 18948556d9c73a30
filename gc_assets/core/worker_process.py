"""Run functions in a child process with limited time and memory.

If native code hangs, it cannot be interrupted within its own process and keeps a core busy. A child
process can be killed instead. Child processes are reused for further calls, and exit if they are
idle for too long or their parent exits.
"""

from __future__ import annotations

import errno
import math
import os
import pickle
import queue
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar, cast

# Address space that a child may use in addition to its usage after the start.
MAX_BYTES: Final = 4 * 2**30
IDLE_SECONDS: Final = 60.0
# A call may take this many times its CPU time limit in wall-clock time, because the machine may be
# busy.
WALL_FACTOR: Final = 4
# Python and its libraries usually start in a second, but a busy machine may take much longer.
START_SECONDS: Final = 120.0
_LENGTH: Final = struct.Struct("<Q")

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WorkerDied(ChildProcessError):
    """Raised if a child process ends during a call, for example because the system killed it.

    Attributes:
        is_limit: True if the child exceeded its limit of CPU time. The same call would fail again.
    """

    is_limit: bool = False


class _Worker:
    """A child process, which executes one call at a time."""

    def __init__(self) -> None:
        # The child must find the same modules, which may be in archives that Spark distributes.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "gc_assets.core.worker_process"]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of this package
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._requests, self._results = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def call(self, wall_seconds: float, request: bytes) -> tuple[bool, Any]:
        """Send a request to the child process and wait for its response.

        Returns:
            True and the result of the function, or False and the exception that it raised.

        Raises:
            TimeoutError: If there is no response after `wall_seconds`.
            WorkerDied: If the child has ended.
        """
        until = time.monotonic() + wall_seconds
        try:
            self._requests.write(_LENGTH.pack(len(request)) + request)
            self._requests.flush()
        except BrokenPipeError:
            raise self._exit_error() from None
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, until))
        return pickle.loads(self._read(length, until))  # noqa: S301 - written by this package's own child

    def _read(self, length: int, until: float) -> bytearray:
        found, poll = bytearray(), select.poll()
        poll.register(self._results.fileno(), select.POLLIN)
        while len(found) < length:
            remaining = until - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                raise TimeoutError(errno.ETIMEDOUT, "no result from the worker process in time")
            content = os.read(self._results.fileno(), min(length - len(found), 2**20))
            if not content:
                raise self._exit_error()
            found += content
        return found

    def _exit_error(self) -> WorkerDied:
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            error = WorkerDied(errno.ECHILD, "the worker process exceeded its limit of CPU time")
            error.is_limit = True
            return error
        return WorkerDied(errno.ECHILD, f"the worker process ended with code {code}; it may use {MAX_BYTES // 2**30} GiB of memory")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._results):
            with suppress(OSError):  # the child was killed before it had read a request
                pipe.close()


class _Pool:
    """The idle workers of this process. After a fork, the new process starts without any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._pid = os.getpid()

    def take(self) -> _Worker:
        with self._lock:
            if self._pid != os.getpid():
                self._idle, self._pid = [], os.getpid()
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                worker.kill()
        worker = _Worker()
        worker.call(START_SECONDS, pickle.dumps((START_SECONDS, _accept_first_call, (), {})))
        return worker

    def put_back(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)

    @property
    def has_idle(self) -> bool:
        return self._pid == os.getpid() and any(worker.is_alive for worker in self._idle)


_pool = _Pool()


def is_started() -> bool:
    """Return True if an idle worker is available, so that a call need not start a process."""
    return _pool.has_idle


def run_in_worker(seconds: float, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a module-level function in a child process.

    The function, its arguments and its result must be picklable.

    Args:
        seconds: Limit of CPU time in seconds. The start of the child process is not included.
        function: The function to call.

    Raises:
        WorkerDied: If the child exceeds its CPU time or ends for another reason.
        TimeoutError: If there is no result within a multiple of the limit. The child is killed.
        Exception: If the function raises it.
    """
    request = pickle.dumps((seconds, function, args, kwargs))
    worker = _pool.take()
    try:
        succeeded, result = worker.call(WALL_FACTOR * (seconds + 1), request)
    except BaseException:  # after an interrupt, the worker may be in the middle of a call
        worker.kill()
        raise
    _pool.put_back(worker)
    if succeeded:
        return result
    raise result


def _accept_first_call() -> None:
    """Do nothing. The first call is only used to wait until the child is ready."""


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Put requests into a queue, and exit the process when the parent closes the pipe."""
    while header := sys.stdin.buffer.read(_LENGTH.size):
        requests.put(sys.stdin.buffer.read(_LENGTH.unpack(header)[0]))
    os._exit(0)


def _execute(request: bytes) -> bytes:
    try:
        seconds, function, args, kwargs = pickle.loads(request)  # noqa: S301 - written by the parent
        _limit_cpu(seconds)
        answer = True, function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised in the parent
        answer = False, error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - an exception class that cannot be pickled
        return pickle.dumps((False, RuntimeError(f"{type(answer[1]).__name__}: {answer[1]}")))


def main() -> None:
    """Execute requests from standard input, until it is closed or idle for `IDLE_SECONDS`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also receives Ctrl-C, and closes the pipe
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output printed by libraries must not be mixed with the results
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    is_limited = False
    while True:
        try:
            request = requests.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            os._exit(0)
        answer = _execute(request)
        results.write(_LENGTH.pack(len(answer)) + answer)
        results.flush()
        if not is_limited:
            _limit_memory()
            is_limited = True


def _limit_cpu(seconds: float) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _limit_memory() -> None:
    limit = MAX_BYTES
    with suppress(OSError):  # not on Linux
        limit += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    main()
