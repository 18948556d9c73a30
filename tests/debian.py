"""Install the Debian packages of programs that the tests start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest


class Unavailable(Exception):
    """This machine has no program that a test needs. The message contains the command that installs it."""


def skip_or_fail(reason: str, variable: str) -> NoReturn:
    """Skip the test, or fail it if the environment variable is `required`."""
    if os.environ.get(variable) == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def install(program: str, packages: str, without: str) -> None:
    """Install the packages.

    Args:
        program: Name of the program for messages.
        packages: Names of the packages, separated by spaces.
        without: The command that runs the tests without the program.

    Raises:
        Unavailable: This user or machine cannot install the packages.
    """
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Unavailable(f"{program} is missing, and only root installs it: apt-get install --no-install-recommends {packages}, {without}")
    # Wait for other installations, and retry failed downloads.
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
    command = [*apt, "install", "-y", "--no-install-recommends", *packages.split()]
    if run_command(command).returncode:
        run_command([*apt, "update"])
        result = run_command(command)
        if result.returncode:
            raise Unavailable(f"{' '.join(command)} failed: {result.stdout.strip()[-2000:]}; {without}")


def run_command(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command. Its standard output contains its standard error."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", **environment}
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def run_fetch(fetch: Callable[[], object]) -> None:
    """Run `fetch` as a program. Exit with its message if the program is unavailable."""
    try:
        fetch()
    except Unavailable as unavailable:
        sys.exit(str(unavailable))
