"""Pass notifications to a command configured by the user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence

from gc_assets.config.notify import Command
from gc_assets.core.notifications import Notification, to_document
from gc_assets.notify import TIMEOUT_SECONDS, DeliveryError


def run_command(target: Command, notifications: Sequence[Notification]) -> None:
    """Run the command and write the notifications to its standard input as JSON.

    The command's standard output is discarded. Its standard error is inherited.

    Raises:
        DeliveryError: If the command cannot be started, fails or times out. After a timeout, the
            command and its child processes are killed.
    """
    try:
        running = subprocess.Popen(  # noqa: S603  (a command of lakes.yaml, without a shell)
            target.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise DeliveryError(f"cannot start the command: {error.strerror or type(error).__name__}") from None
    try:
        running.communicate(json.dumps(to_document(notifications)).encode(), timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        raise DeliveryError(f"the command did not end within {TIMEOUT_SECONDS:.0f} s") from None
    if running.returncode != 0:
        raise DeliveryError(f"the command ended with code {running.returncode}")
