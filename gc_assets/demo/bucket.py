"""Create the demo lakes in a bucket or container, and the shell variables to use them.

The modification time of an object in a bucket cannot be set. The lakes are therefore written for a
run that takes place one grace period later. Files that should be younger than the grace
period in this run are uploaded last.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import UsageError
from gc_assets.demo import azure_server, s3_server
from gc_assets.demo.sample import CONFIG_NAME, begin_demo, finish_demo, write_lakes
from gc_assets.demo.server import PID
from gc_assets.resources.platform import NOW_VARIABLE

if TYPE_CHECKING:
    from gc_assets.s3.bucket import S3Bucket

_SERVER: Final = "server"
_REGION: Final = "us-east-1"
_GRACE: Final = timedelta(hours=72)
_MAX_UPLOADS: Final = 16
# Some servers, such as Ceph 16, reject the checksums that pyiceberg's client sends by default.
_NO_CHECKSUMS: Final = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required", "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"}


@dataclass(frozen=True)
class DemoBucket:
    """A new bucket for the lakes.

    Attributes:
        bucket: The bucket. It does not exist until `create` is called.
        create: Creates the bucket.
        variables: Shell variables with credentials and settings. Variables with an empty value are
            unset.
        connection: Lines for the top level of `lakes.yaml`.
        client: Lines for the catalog in `lakes.yaml`, for pyiceberg's own client.
    """

    bucket: ConditionalBucket
    create: Callable[[], object]
    variables: Mapping[str, str]
    connection: str
    client: str


@dataclass(frozen=True)
class DemoStore:
    """A kind of object store that can contain the lakes of the demo.

    Attributes:
        title: The name for messages.
        environment: The name of the file with the shell variables.
        start: Starts the server of a folder if it is not running.
        prepare: Returns a new bucket on the server of a folder, or on a server that the user has
            chosen.
    """

    title: str
    environment: str
    start: Callable[[Path], object]
    prepare: Callable[[Path, str | None], DemoBucket]


def find_demo_store(directory: Path) -> DemoStore | None:
    """Return the object store that the demo in a directory uses.

    The result is None if there is no demo, or if the demo is on a disk.
    """
    return next((store for store in STORES.values() if (directory / store.environment).exists()), None)


def ensure_demo_in_bucket(directory: Path, store: DemoStore, endpoint: str | None = None) -> Path:
    """Return the `lakes.yaml` in `directory`. If it does not exist, create the demo in a new bucket.

    Either way, the variables of the demo are set in this process.

    Args:
        directory: The directory of the demo.
        store: The object store.
        endpoint: A server to use with the credentials of the environment. By default, the demo
            starts a server of its own, and later restarts it if necessary.

    Raises:
        UsageError: In the cases that `ensure_demo` lists, and if there is no server.
        OSError: If the server denies a request.
    """
    root = directory.resolve()
    config, variables = root / CONFIG_NAME, root / store.environment
    if config.exists():
        if find_demo_store(root) is not store:
            other = find_demo_store(root)
            found = "a demo on a local disk" if other is None else f"a demo on {other.title}"
            raise UsageError(f"{config} is {found}. Choose another --dir for the demo on {store.title}.")
        if owns_server(root):
            store.start(root / _SERVER)
        _set_variables(_read_variables(variables))
        return config
    target = store.prepare(root / _SERVER, endpoint)
    _set_variables(target.variables)
    lake, location = begin_demo(root), target.bucket.location
    write_lakes(root, lake, datetime.now(UTC) + _GRACE, location.rstrip("/"))
    target.create()
    run_time = _fill_bucket(target.bucket, lake)
    shutil.rmtree(lake)
    variables.touch(0o600)
    variables.write_text(_shell_script(store, {**target.variables, NOW_VARIABLE: run_time.isoformat()}), encoding="utf-8")
    _set_variables({NOW_VARIABLE: run_time.isoformat()})
    return finish_demo(
        root,
        location=location,
        warehouse=location.rstrip("/"),
        quarantine="copied to .gc-assets/trash/<plan id>/ and then deleted",
        connection=target.connection,
        client=target.client,
    )


def owns_server(directory: Path) -> bool:
    """Return True if the demo has started a server of its own."""
    return (directory / _SERVER / PID).exists()


def pid_file(directory: Path) -> Path:
    return directory / _SERVER / PID


def _prepare_s3(folder: Path, endpoint: str | None) -> DemoBucket:
    from gc_assets.s3.bucket import S3Bucket

    keys: dict[str, str] = {}
    if endpoint is None:
        server = s3_server.ensure_running(folder)
        settings = S3Config(endpoint=server.endpoint, region=_REGION)
        keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        keys |= dict.fromkeys(("AWS_PROFILE", "AWS_SESSION_TOKEN"), "")
    else:
        settings = _s3_settings(endpoint)
    _set_variables(keys)
    bucket = S3Bucket(_new_name(), "", settings)
    connection, region = f'endpoint: "{settings.endpoint}"', bucket.client("change").meta.region_name
    client = f"      s3.{connection}   # for pyiceberg's own client, which also uses the credentials of the environment\n"
    return DemoBucket(
        bucket,
        lambda: _create_s3_bucket(bucket, region),
        keys | _NO_CHECKSUMS,
        f"\ns3: {{{connection}, region: {region}}}   # credentials: {STORES['s3'].environment}\n",
        f"{client}      s3.region: {region}\n",
    )


def _create_s3_bucket(bucket: S3Bucket, region: str) -> None:
    from gc_assets.s3.client import translate_errors

    location = {} if region == _REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    with translate_errors(bucket.location):
        bucket.client("change").create_bucket(Bucket=bucket.name, **location)


def _s3_settings(endpoint: str) -> S3Config:
    try:
        return S3Config(endpoint=endpoint)
    except ValidationError:
        raise UsageError(
            f"--s3-endpoint is {endpoint!r}, expected the address of a server without a path, such as http://127.0.0.1:9000"
        ) from None


def _prepare_azure(folder: Path, endpoint: str | None) -> DemoBucket:
    from gc_assets.azure.bucket import AzureBucket
    from gc_assets.azure.client import translate_errors
    from gc_assets.config.azure import CONNECTION_STRING, AzureConfig

    del endpoint
    server = azure_server.ensure_running(folder)
    settings = AzureConfig(endpoint=azure_server.endpoint_of(server))
    variables = {CONNECTION_STRING: azure_server.connection_string(server)}
    bucket = AzureBucket(f"{_new_name()}@{azure_server.ACCOUNT}.dfs.core.windows.net", "", settings)

    def create() -> None:
        with translate_errors(bucket.location):
            bucket.container("change").create_container()

    client = f'      adls.connection-string: "${{{CONNECTION_STRING}}}"   # for adlfs, which pyiceberg uses to open tables\n'
    return DemoBucket(
        bucket,
        create,
        variables,
        f'\nazure: {{endpoint: "{settings.endpoint}"}}   # credentials: {STORES["azure"].environment}\n',
        client,
    )


def _new_name() -> str:
    return f"gc-assets-demo-{secrets.token_hex(4)}"


def _fill_bucket(bucket: ConditionalBucket, lake: Path) -> datetime:
    """Upload all files to a new bucket, and return the time of the run that they are written for.

    For a run at this time, only the files that were uploaded last are younger than the grace
    period.
    """
    files = {path: datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in lake.rglob("*") if path.is_file()}
    young = {path for path, modified in files.items() if modified > datetime.now(UTC)}
    _upload(bucket, lake, files.keys() - young)
    newest = max(datetime.fromisoformat(modified) for page in bucket.list_pages(role="change") for modified in page.modified)
    boundary = newest.replace(microsecond=0) + timedelta(seconds=1)
    while bucket.now() < boundary:
        time.sleep(0.1)
    _upload(bucket, lake, young)
    return boundary + _GRACE


def _upload(bucket: ConditionalBucket, lake: Path, paths: Iterable[Path]) -> None:
    def put(path: Path) -> None:
        bucket.put(path.relative_to(lake).as_posix(), path.read_bytes()).require()

    with ThreadPoolExecutor(_MAX_UPLOADS) as pool:
        list(pool.map(put, paths))


def _shell_script(store: DemoStore, variables: Mapping[str, str]) -> str:
    about = f"# Credentials of the demo's {store.title} server, and the clock of the rehearsal. Usage: . {store.environment}"
    lines = (f"export {name}={shlex.quote(value)}" if value else f"unset {name}" for name, value in variables.items())
    return "".join(f"{line}\n" for line in (about, *lines))


def _read_variables(file: Path) -> dict[str, str]:
    lines = (shlex.split(line, comments=True) for line in file.read_text(encoding="utf-8").splitlines())
    variables = (parts[1].partition("=") for parts in lines if parts)
    return {name: value for name, _, value in variables}


def _set_variables(variables: Mapping[str, str]) -> None:
    """Set variables of this process. Those with an empty value are unset."""
    for name, value in variables.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


STORES: Final[Mapping[str, DemoStore]] = {
    "s3": DemoStore("S3", "s3.env", s3_server.ensure_running, _prepare_s3),
    "azure": DemoStore("Azure", "azure.env", azure_server.ensure_running, _prepare_azure),
}
