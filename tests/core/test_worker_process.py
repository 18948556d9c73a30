"""Calls in a child process are limited in time and memory, and leave no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gc_assets.core import worker_process
from gc_assets.core.worker_process import WorkerDied, run_in_worker


def children() -> set[int]:
    """Return the child processes of this process."""
    return {int(pid) for thread in Path("/proc/self/task").iterdir() for pid in (thread / "children").read_text().split()}


def test_worker_process_is_reused() -> None:
    assert run_in_worker(5, os.getpid) == run_in_worker(5, os.getpid) != os.getpid()
    assert worker_process.is_started()


def test_function_error_is_raised_and_worker_continues() -> None:
    pid = run_in_worker(5, os.getpid)
    with pytest.raises(ValueError, match="invalid literal"):
        run_in_worker(5, int, "x")
    assert run_in_worker(5, os.getpid) == pid


def test_endless_call_is_killed_at_deadline() -> None:
    pid = run_in_worker(5, os.getpid)
    with pytest.raises(TimeoutError):
        run_in_worker(0, time.sleep, 60)
    assert pid not in children()


def test_call_that_exceeds_its_cpu_time_is_killed() -> None:
    with pytest.raises(WorkerDied, match="exceeded its limit of CPU time") as caught:
        run_in_worker(0.2, pow, 3, 10**9)
    assert caught.value.is_limit


def test_call_that_needs_too_much_memory_fails_alone() -> None:
    with pytest.raises((MemoryError, WorkerDied)):
        run_in_worker(20, bytearray, 2 * worker_process.MAX_BYTES)
    assert run_in_worker(5, pow, 2, 10) == 1024


def test_worker_crash_raises_error_in_call() -> None:
    with pytest.raises(WorkerDied, match="ended with code 3") as caught:
        run_in_worker(5, os._exit, 3)
    assert not caught.value.is_limit
    assert run_in_worker(5, pow, 2, 10) == 1024


def test_killed_idle_worker_is_replaced() -> None:
    pid = run_in_worker(5, os.getpid)
    os.kill(pid, 9)
    time.sleep(0.1)
    assert run_in_worker(5, os.getpid) != pid


def test_worker_ends_when_parent_process_ends() -> None:
    program = "import os; from gc_assets.core.worker_process import run_in_worker; print(run_in_worker(9, os.getpid), flush=True)"
    done = subprocess.run([sys.executable, "-c", f"{program}; os.kill(os.getpid(), 9)"], capture_output=True, text=True, check=False)
    until = time.monotonic() + 60
    while Path(f"/proc/{int(done.stdout)}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_forked_process_does_not_share_a_worker() -> None:
    pid = run_in_worker(5, os.getpid)
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sending, str(run_in_worker(9, os.getpid)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(receiving, 100)) != pid
    assert run_in_worker(5, os.getpid) == pid
    for descriptor in (receiving, sending):
        os.close(descriptor)
