"""Notifications by a command of the user's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence

from gc_assets.config.notify import Command
from gc_assets.core.notifications import Notification, to_document
from gc_assets.notify.undelivered import TIMEOUT_SECONDS, DeliveryError


def run_command(target: Command, told: Sequence[Notification]) -> None:
    """Runs the command with the notifications as JSON on its standard input. What it writes to
    standard error goes where ours goes, and what it writes to standard output goes nowhere.

    Raises `Undelivered` where it cannot be started, ends with another code than 0, or does not end.
    It and what it started are killed then.
    """
    try:
        running = subprocess.Popen(  # noqa: S603  (a command of lakes.yaml, without a shell)
            target.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise DeliveryError(f"the command cannot be started: {error.strerror or type(error).__name__}") from None
    try:
        running.communicate(json.dumps(to_document(told)).encode(), timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        raise DeliveryError(f"the command did not end within {TIMEOUT_SECONDS:.0f} s") from None
    if running.returncode != 0:
        raise DeliveryError(f"the command ended with code {running.returncode}")
