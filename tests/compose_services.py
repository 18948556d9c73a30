"""Run the services of compose.yaml as local processes, with its commands, environment and instance."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dagster._grpc.client import DagsterGrpcClient

from tests.ports import free_port
from tests.postgres import run_postgres
from tests.s3.daemons import daemons
from tests.s3.servers import versity_program

ROOT = Path(__file__).parents[1]
PASSWORD = "not-a-secret"  # noqa: S105
FILES = ("compose.yaml", "Dockerfile", "deploy/dagster.yaml", "deploy/workspace.yaml")


@dataclass(frozen=True)
class ComposeServices:
    """The address of the page, and the environment in which other processes use the same instance."""

    page: str
    environment: Mapping[str, str]


@contextmanager
def run_services(folder: Path, environment: Mapping[str, str]) -> Iterator[ComposeServices]:
    """Start Postgres, the S3 server, the code, the webserver and the daemon, in this order.

    Their environment is that of compose.yaml with `environment`.
    """
    database, s3, code, web = (free_port() for _ in range(4))
    home, buckets = folder / "dagster", folder / "buckets"
    home.mkdir(parents=True)
    buckets.mkdir()
    # Replace the networks and disks of containers by local ports and directories.
    texts = _replace(
        {
            "${GC_ASSETS_PASSWORD:?give the database and the S3 server a password, in .env or here}": PASSWORD,
            "${GC_ASSETS_PASSWORD}": PASSWORD,
            "PGHOST: db": "PGHOST: 127.0.0.1",
            "port: 5432": f"port: {database}",
            "http://s3:7070": f"http://127.0.0.1:{s3}",
            '":7070"': f'"127.0.0.1:{s3}"',
            '"/buckets"': f'"{buckets}"',
            "0.0.0.0": "127.0.0.1",  # noqa: S104
            '"4000"': f'"{code}"',
            "host: code, port: 4000": f"host: 127.0.0.1, port: {code}",
            '"3000"': f'"{web}"',
            "/opt/dagster/workspace": f"{home}/workspace",
        }
    )
    for name in ("dagster.yaml", "workspace.yaml"):
        (home / name).write_text(texts[f"deploy/{name}"])
    services: dict[str, dict[str, Any]] = yaml.safe_load(texts["compose.yaml"])["services"]
    variables = {name: str(value) for service in services.values() for name, value in service.get("environment", {}).items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables |= {"DAGSTER_HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), **environment}
    program = versity_program()
    assert program is not None, "versitygw is missing: python -m tests.s3.servers versity"
    (command,) = (line.removeprefix("CMD ") for line in texts["Dockerfile"].splitlines() if line.startswith("CMD "))
    with run_postgres(variables["POSTGRES_USER"], PASSWORD, database), daemons(folder / "log", variables) as group:
        group.start(program, *services["s3"]["command"])
        group.wait(lambda: _listens(s3))
        group.run(*services["bucket"]["command"])
        group.start(*json.loads(command))
        group.wait(lambda: _serves_code(code))
        group.start(*services["webserver"]["command"])
        group.start(*services["daemon"]["command"])
        group.wait(lambda: _listens(web))
        yield ComposeServices(f"http://127.0.0.1:{web}", variables)


def _replace(replacements: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the files after the replacements. Each of them must occur."""
    texts = {name: (ROOT / name).read_text() for name in FILES}
    unknown = [old for old in replacements if not any(old in text for text in texts.values())]
    assert unknown == [], f"tests/compose_services.py replaces {unknown}, which is in none of {FILES}"
    for old, new in replacements.items():
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    return texts


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _serves_code(port: int) -> bool:
    """Run the health check of compose.yaml."""
    return _listens(port) and DagsterGrpcClient(port=port, host="127.0.0.1").health_check_query() == "SERVING"
