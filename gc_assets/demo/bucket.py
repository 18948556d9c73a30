"""The demo lakes in a bucket, and the shell variables to use them (`s3.env`).

The age of an object cannot be changed. Therefore the lakes are written for a run that is one grace
period ahead, and files that this run treats as young are uploaded last.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import UsageError
from gc_assets.demo.s3_server import PID, ensure_running
from gc_assets.demo.sample import CONFIG_NAME, begin_demo, finish_demo, write_lakes
from gc_assets.resources.platform import NOW_VARIABLE
from gc_assets.s3.client import get_client, translate_errors

ENVIRONMENT: Final = "s3.env"
_SERVER: Final = "server"
_REGION: Final = "us-east-1"
_GRACE: Final = timedelta(hours=72)
_MAX_UPLOADS: Final = 16
# Some servers, such as Ceph 16, refuse the checksums that pyiceberg's client adds by default.
_NO_CHECKSUMS: Final = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required", "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"}


def is_on_s3(directory: Path) -> bool:
    return (directory / ENVIRONMENT).exists()


def ensure_demo_on_s3(directory: Path, endpoint: str | None = None) -> Path:
    """Return the `lakes.yaml` in `directory`. If it does not exist, create it and its lakes in a
    new bucket.

    Sets the variables of `s3.env` in this process.

    Args:
        endpoint: The S3 server, with the credentials of the environment. By default, the demo
            starts its own server, and restarts it later if necessary.

    Raises:
        UsageError: As `ensure_demo`, and if there is no server.
        OSError: If the server refuses a request.
    """
    root = directory.resolve()
    config, variables = root / CONFIG_NAME, root / ENVIRONMENT
    if config.exists():
        if not is_on_s3(root):
            raise UsageError(f"{config} is a demo on a local disk. Choose another --dir for the demo on S3.")
        if owns_server(root):
            ensure_running(root / _SERVER)
        _set_variables(_read_variables(variables))
        return config
    keys: dict[str, str] = {}
    if endpoint is None:
        server = ensure_running(root / _SERVER)
        settings = S3Config(endpoint=server.endpoint, region=_REGION)
        keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        keys |= dict.fromkeys(("AWS_PROFILE", "AWS_SESSION_TOKEN"), "")
    else:
        settings = _settings(endpoint)
    _set_variables(keys | _NO_CHECKSUMS)
    lake = begin_demo(root)
    client = get_client(settings, "change")
    bucket = f"gc-assets-demo-{secrets.token_hex(4)}"
    write_lakes(root, lake, datetime.now(UTC) + _GRACE, f"s3://{bucket}")
    with translate_errors(f"s3://{bucket}"):
        run_time = _fill_bucket(client, bucket, lake)
    shutil.rmtree(lake)
    variables.touch(0o600)
    variables.write_text(_shell_script(keys | _NO_CHECKSUMS | {NOW_VARIABLE: run_time.isoformat()}), encoding="utf-8")
    _set_variables({NOW_VARIABLE: run_time.isoformat()})
    connection, region = f'endpoint: "{settings.endpoint}"', client.meta.region_name
    return finish_demo(
        root,
        location=f"s3://{bucket}/",
        warehouse=f"s3://{bucket}",
        quarantine="copied to .gc-assets/trash/<plan id>/ and then deleted",
        connection=f"\ns3: {{{connection}, region: {region}}}   # credentials: {ENVIRONMENT}\n",
        client=f"      s3.{connection}   # for pyiceberg's own client, which also uses the credentials of the environment\n"
        f"      s3.region: {region}\n",
    )


def owns_server(directory: Path) -> bool:
    """Return whether the demo started the server itself."""
    return (directory / _SERVER / PID).exists()


def pid_file(directory: Path) -> Path:
    return directory / _SERVER / PID


def _settings(endpoint: str) -> S3Config:
    try:
        return S3Config(endpoint=endpoint)
    except ValidationError:
        raise UsageError(
            f"--s3-endpoint is {endpoint!r}, expected the address of a server without a path, such as http://127.0.0.1:9000"
        ) from None


def _fill_bucket(client: Any, bucket: str, lake: Path) -> datetime:
    """Upload all files to a new bucket. Return the time of a run for which exactly the young files
    are young.
    """
    region = client.meta.region_name
    location = {} if region == _REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    client.create_bucket(Bucket=bucket, **location)
    files = {path: datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in lake.rglob("*") if path.is_file()}
    young = {path for path, modified in files.items() if modified > datetime.now(UTC)}
    _upload(client, bucket, lake, files.keys() - young)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    newest = max(item["LastModified"] for page in pages for item in page["Contents"])
    boundary = newest.replace(microsecond=0) + timedelta(seconds=1)
    while _server_time(client, bucket) < boundary:
        time.sleep(0.1)
    _upload(client, bucket, lake, young)
    return boundary + _GRACE


def _upload(client: Any, bucket: str, lake: Path, paths: Iterable[Path]) -> None:
    def put(path: Path) -> None:
        client.put_object(Bucket=bucket, Key=path.relative_to(lake).as_posix(), Body=path.read_bytes())

    with ThreadPoolExecutor(_MAX_UPLOADS) as pool:
        list(pool.map(put, paths))


def _server_time(client: Any, bucket: str) -> datetime:
    return parsedate_to_datetime(client.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]["date"])


def _shell_script(variables: Mapping[str, str]) -> str:
    lines = (f"export {name}={shlex.quote(value)}" if value else f"unset {name}" for name, value in variables.items())
    return "".join(
        f"{line}\n" for line in ("# Credentials of the demo's S3 server, and the clock of the rehearsal. Usage: . s3.env", *lines)
    )


def _read_variables(file: Path) -> dict[str, str]:
    lines = (shlex.split(line, comments=True) for line in file.read_text(encoding="utf-8").splitlines())
    variables = (parts[1].partition("=") for parts in lines if parts)
    return {name: value for name, _, value in variables}


def _set_variables(variables: Mapping[str, str]) -> None:
    """Set the variables, and unset those without a value."""
    for name, value in variables.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
