"""Run a Postgres server of Debian on loopback, for the instance of Dagster.

`python -m tests.postgres` installs it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2

from tests.browser import WANTED, WITHOUT
from tests.debian import install, run_fetch, skip_or_fail
from tests.s3.daemons import daemons

PACKAGES = "postgresql"
# The server refuses to run as root.
AS_UNPRIVILEGED = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


@contextmanager
def run_postgres(user: str, password: str, port: int) -> Iterator[None]:
    """Run a server with one user and a database of the same name. If Postgres is missing, skip or fail the test."""
    programs = _programs() or skip_or_fail(f"Postgres is missing: apt-get install {PACKAGES}, {WITHOUT}", WANTED)
    address = {"host": "127.0.0.1", "port": port, "user": user, "password": password}
    with tempfile.TemporaryDirectory(prefix="gc-assets-postgres-", ignore_cleanup_errors=True) as name:
        folder, data = Path(name), f"{name}/data"
        (folder / "password").write_text(password)
        prefix = ()
        if os.geteuid() == 0:
            prefix = AS_UNPRIVILEGED
            for path in (folder, folder / "password"):
                shutil.chown(path, "nobody")
        with daemons(folder / "log", {}) as group:
            entry = ("--username", user, "--pwfile", f"{name}/password", "--auth=scram-sha-256")
            group.run(*prefix, str(programs / "initdb"), "-D", data, *entry, "--no-sync", "--encoding=UTF8", "--locale=C")
            settings = (f"unix_socket_directories={name}", "listen_addresses=127.0.0.1", f"port={port}", "fsync=off")
            group.start(
                *prefix, str(programs / "postgres"), "-D", data, *(argument for setting in settings for argument in ("-c", setting))
            )
            group.wait(lambda: _answers(address))
            connection = psycopg2.connect(dbname="postgres", **address)
            connection.autocommit = True
            connection.cursor().execute(f'CREATE DATABASE "{user}"')
            connection.close()
            try:
                yield
            finally:  # a killed server does not free its shared memory
                group.run(*prefix, str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop")


def _answers(address: dict[str, object]) -> bool:
    try:
        psycopg2.connect(dbname="postgres", **address).close()
    except psycopg2.OperationalError:
        return False
    return True


def _programs() -> Path | None:
    """Return the directory of initdb and postgres, which Debian does not add to the PATH."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: int(path.parts[-3])).parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path is not None else None


def fetch() -> None:
    """Install Postgres if it is missing. Raise `Unavailable` if this user or machine cannot."""
    if _programs() is None:
        install("Postgres", PACKAGES, WITHOUT)


if __name__ == "__main__":
    run_fetch(fetch)
