"""Debian's packages of the programs that the tests start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest


class Unavailable(Exception):
    """This machine cannot run what a test needs, and how it gets it."""


def skip_or_fail(why: str, variable: str) -> NoReturn:
    """Skips the test, or fails it where the variable of the environment says that what it needs is required."""
    if os.environ.get(variable) == "required":
        pytest.fail(why)
    pytest.skip(why)


def install(what: str, packages: str, without: str) -> None:
    """Installs the packages. Raises `Unavailable` where this user or machine cannot; `without` says how the tests are run without."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Unavailable(f"{what} is missing, and only root installs it: apt-get install --no-install-recommends {packages}, {without}")
    # Another installation may be at work, and a mirror may answer at the second try.
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
    command = [*apt, "install", "-y", "--no-install-recommends", *packages.split()]
    if run_command(command).returncode:
        run_command([*apt, "update"])
        last = run_command(command)
        if last.returncode:
            raise Unavailable(f"{' '.join(command)} failed: {last.stdout.strip()[-2000:]}; {without}")


def run_command(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, ended, with all that it said on its standard output."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", **environment}
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def run_fetch(fetch: Callable[[], None]) -> None:
    """What a module does as a program: it fetches, or ends with why it cannot."""
    try:
        fetch()
    except Unavailable as unavailable:
        sys.exit(str(unavailable))
