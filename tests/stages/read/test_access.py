"""Access to all catalogs, storages and the state: one error per cause, and whether it stops the
run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import config_of
from gc_assets.stages.read.access import AccessError, find_access_errors
from gc_assets.state.schemas import LAKE_REFS
from tests.lakes.iceberg.builder import LakeBuilder
from tests.records import NOW, publish_table
from tests.s3.proxy import Rule, always, error_answer, run_proxy
from tests.s3.servers import S3Server


def context_of(root: Path, *locations: str, **settings: object) -> RunContext:
    """Return the context of a run with an Iceberg lake and one storage for each location."""
    lake = LakeBuilder(root)
    document = {
        "state": f"{root}/state",
        "storages": [{"name": f"s{number}", "location": location} for number, location in enumerate(locations)],
        "lakes": [{"name": "sales", "kind": "iceberg", "catalog": lake.properties}],
        **settings,
    }
    return RunContext.of(config_of(document), Clock(NOW), NOW.date())


def errors_of(context: RunContext) -> list[AccessError]:
    return find_access_errors(context, [lake.name for lake in context.config.lakes], [storage.name for storage in context.config.storages])


def stops_by_subject(errors: Collection[AccessError]) -> dict[tuple[str, ...], bool]:
    """Map the first words of the places of each error to whether it stops the run."""
    return {tuple(place.partition(" (")[0] for place in error.subjects): error.stops_run for error in errors}


def existing(root: Path, name: str = "warehouse") -> str:
    (root / name).mkdir(exist_ok=True)
    return f"file://{root}/{name}/"


def test_access_check_of_accessible_locations_leaves_no_files(tmp_path: Path) -> None:
    context = context_of(tmp_path, existing(tmp_path))
    assert errors_of(context) == []
    assert not [path for path in (tmp_path / "state").rglob(".access*") if path.suffix != ".lock"]


def test_missing_storage_stops_run_only_if_no_storage_is_left(tmp_path: Path) -> None:
    missing, other = f"file://{tmp_path}/missing/", existing(tmp_path)
    (error,) = errors_of(context_of(tmp_path, missing))
    assert (stops_by_subject([error]), "mount it or correct `location`" in str(error)) == ({("storage s0",): True}, True)
    assert stops_by_subject(errors_of(context_of(tmp_path, missing, other))) == {("storage s0",): False}


def test_message_contains_lake_or_storage_once(tmp_path: Path) -> None:
    context = context_of(tmp_path, missing := f"file://{tmp_path}/missing/")
    (tmp_path / "catalog.db").unlink()
    lake, storage = map(str, errors_of(context))
    assert lake.startswith(f"Cannot use lake sales: its catalog {tmp_path}/catalog.db does not exist")
    assert storage.startswith(f"Cannot use storage s0 ({missing}): expected a directory at {tmp_path}/missing, found nothing")


def test_missing_catalog_stops_run_unless_refs_were_already_read(tmp_path: Path) -> None:
    context = context_of(tmp_path, existing(tmp_path))
    (tmp_path / "catalog.db").unlink()
    (error,) = errors_of(context)
    assert (stops_by_subject([error]), "catalog.db does not exist" in str(error)) == ({("lake sales",): True}, True)
    publish_table(context, "sales", LAKE_REFS)
    assert errors_of(context) == []


def test_damaged_catalog_stops_the_run(tmp_path: Path) -> None:
    context = context_of(tmp_path, existing(tmp_path))
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        database.execute("drop table iceberg_tables")
    assert stops_by_subject(errors_of(context)) == {("lake sales",): True}


def test_unwritable_state_stops_the_run(tmp_path: Path) -> None:
    context = context_of(tmp_path, existing(tmp_path))
    (tmp_path / "state").write_text("a file")
    assert [error.stops_run for error in errors_of(context)] == [True]


class _Refusal(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    """Return the address of a server that refuses all requests."""
    with HTTPServer(("127.0.0.1", 0), _Refusal) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_server_that_refuses_the_token_stops_the_run(tmp_path: Path, refusing: str) -> None:
    lake = {"name": "sales", "kind": "nessie", "uri": f"{refusing}/api/v2", "claims": [existing(tmp_path)]}
    assert stops_by_subject(errors_of(context_of(tmp_path, existing(tmp_path), lakes=[lake]))) == {("lake sales",): True}


def test_lakefs_server_that_refuses_the_key_does_not_stop_the_run(tmp_path: Path, refusing: str) -> None:
    """The repository becomes unreadable, and its files are kept."""
    lake = {"name": "sales", "kind": "lakefs", "endpoint": refusing, "repository": "r", "access_key_id": "a", "secret_access_key": "b"}
    assert stops_by_subject(errors_of(context_of(tmp_path, existing(tmp_path), lakes=[lake]))) == {("lake sales",): False}


def test_wrong_access_key_is_one_error_for_all_affected_storages(ceph: S3Server, tmp_path: Path) -> None:
    with run_proxy(ceph, Rule(always, lambda exchange: exchange.reply(error_answer(403, "InvalidAccessKeyId")), times=99)) as proxy:
        s3 = {**ceph.settings.model_dump(mode="json", exclude_defaults=True), "endpoint": proxy.server.endpoint}
        context = context_of(tmp_path, "s3://one/lake/", "s3://two/lake/", existing(tmp_path), s3=s3)
        (error,) = errors_of(context)
    assert stops_by_subject([error]) == {("storage s0", "storage s1"): False}
    assert "the server does not know this access key; check AWS_PROFILE" in error.reason
    assert "s3://one/lake/" in str(error)
