"""Properties of the test servers that all other tests rely on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gc_assets.s3.client import error_code
from tests.debian import Unavailable
from tests.depth import in_turn
from tests.ports import free_port
from tests.s3.servers import SERVERS, S3Server, ceph_rgw, fetch, shared_server, versitygw

pytestmark = in_turn

CHECKOUT = Path(__file__).parents[2]
ODD_KEYS = [
    "k//double",
    "k/./dot",
    "k/../dots",
    "k/trailing/",
    "k/trailing",
    "/k",
    "k/a%2Fb",
    "k/a+b",
    "k/a b",
    "k/tab\tline\ncarriage\rreturn",
    "k/control\x01\x1f\x7f",
    "k/e\u0301",
    "k/\U0001f9ca",
    "k/'\"&<>",
    "k/" + "n" * 1022,
]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> S3Server:
    return shared_server(request.param)


def test_new_buckets_are_distinct_and_empty(server: S3Server) -> None:
    first, second = server.bucket(), server.bucket()
    assert first != second
    assert server.client().list_objects_v2(Bucket=first)["KeyCount"] == 0


def test_conditional_create_succeeds_once_for_eight_writers_on_ceph(ceph: S3Server) -> None:
    """versitygw checks before it writes and not when it links, so two may win."""
    bucket, client = ceph.bucket(), ceph.client(retries={"total_max_attempts": 1})

    def creates(number: int) -> str:
        try:
            client.put_object(Bucket=bucket, Key="k", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            return error_code(error)
        return "won"

    with ThreadPoolExecutor(8) as threads:
        ends = list(threads.map(creates, range(8)))
    assert ends.count("won") == 1
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == str(ends.index("won")).encode()


def test_delete_in_a_versioned_bucket_keeps_the_version(server: S3Server) -> None:
    bucket, client = server.bucket(versioned=True), server.client()
    version = client.put_object(Bucket=bucket, Key="k", Body=b"x")["VersionId"]
    marker = client.delete_object(Bucket=bucket, Key="k")["VersionId"]
    listed = client.list_object_versions(Bucket=bucket)
    assert [(item["VersionId"], item["IsLatest"]) for item in listed["DeleteMarkers"]] == [(marker, True)]
    assert [(item["VersionId"], item["IsLatest"]) for item in listed["Versions"]] == [(version, False)]


def test_second_user_is_denied(server: S3Server) -> None:
    client, bucket = server.as_stranger().client(), server.bucket()
    for refused in (lambda: client.list_objects_v2(Bucket=bucket), lambda: client.put_object(Bucket=bucket, Key="k", Body=b"")):
        with pytest.raises(ClientError, match="AccessDenied"):
            refused()


@pytest.mark.parametrize("key", ODD_KEYS)
def test_ceph_stores_keys_with_special_characters(ceph: S3Server, key: str) -> None:
    bucket, client = ceph.bucket(), ceph.client()
    client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert [item["Key"] for item in client.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()


def test_ceph_accepts_small_parts(ceph: S3Server) -> None:
    bucket, client = ceph.bucket(), ceph.client()
    upload = {"Bucket": bucket, "Key": "k", "UploadId": client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]}
    etags = [client.upload_part(**upload, PartNumber=number, Body=b"x" * number)["ETag"] for number in (1, 2)]
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"xxx"


def test_two_servers_run_concurrently(tmp_path: Path, ceph: S3Server) -> None:
    with ceph_rgw(tmp_path) as other:
        bucket = other.bucket()
        with pytest.raises(ClientError):
            ceph.client().head_bucket(Bucket=bucket)


def test_process_shares_one_server_per_kind(server: S3Server) -> None:
    assert shared_server(server.kind) is server


# The end of a server

ALONE = """
import sys, time
from pathlib import Path
from tests.ports import free_port
from tests.s3.servers import SERVERS
with SERVERS[sys.argv[1]](Path(sys.argv[2])) as server:
    print(server.endpoint, flush=True)
    time.sleep(600)
"""


def test_server_ends_if_the_test_process_is_killed(server: S3Server, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALONE, server.kind, str(tmp_path)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"http://")
        assert processes_of(tmp_path)
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of(tmp_path) == []


def test_stopped_server_leaves_no_process(server: S3Server, tmp_path: Path) -> None:
    with SERVERS[server.kind](tmp_path):
        assert processes_of(tmp_path)
    assert processes_of(tmp_path) == []


def test_failed_server_start_is_reported_and_leaves_no_process(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr("tests.s3.servers.free_port", lambda: next(ports))
        with pytest.raises(RuntimeError, match=r"ended early: .*(radosgw|versitygw)"), SERVERS[server.kind](tmp_path):
            pass
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the servers for a directory, which is in their command or
    environment.
    """
    return [line for path in Path("/proc").iterdir() if path.name.isdecimal() if (line := _line_of(path, str(folder)))]


def _line_of(process: Path, folder: str) -> str:
    try:
        line, environment = ((process / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ"))
    except OSError:
        return ""
    return line if folder in line + environment and "tests.s3.servers" not in line else ""


# A machine without the servers


@pytest.mark.parametrize(
    "start,packages", [(ceph_rgw, "apt-get install .* ceph-mon ceph-osd radosgw"), (versitygw, "go install .*versitygw@v")]
)
def test_missing_server_reports_how_to_install_it(start: Any, packages: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{packages}.* make test S3=none"), start(tmp_path):
        pass


@pytest.mark.parametrize("mode,end", [("", "Skipped"), ("required", "Failed")])
def test_missing_server_skips_or_fails_the_test(mode: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVERS, "missing", _missing)
    monkeypatch.setenv("GC_ASSETS_TEST_S3", mode)
    with pytest.raises(BaseException, match="not here") as raised:
        shared_server("missing")
    assert type(raised.value).__name__ == end


def _missing(folder: Path) -> Any:
    raise Unavailable("not here")


def test_no_server_is_started_if_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GC_ASSETS_TEST_S3", "none")
    with pytest.raises(pytest.skip.Exception, match="S3 servers are disabled"):
        shared_server("ceph")


def test_installed_servers_are_not_downloaded(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", _missing)
    shared_server("ceph"), shared_server("versity")
    fetch({"ceph", "versity"})


def test_only_root_may_install_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}" if program == "apt-get" else None)
    with pytest.raises(Unavailable, match="only root installs it: apt-get install"):
        fetch({"ceph"})
