"""Open sessions on an existing Spark Connect server, which this package does not start or stop.

Unsuitable servers are rejected before a run starts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder

from gc_assets.config.spark import without_parameters
from gc_assets.core.errors import GcError, UsageError
from gc_assets.resources.connect_server import create_private
from gc_assets.resources.connect_sessions import session_pool, stop_refused
from gc_assets.resources.executors import build_package
from gc_assets.resources.spark_version import require_equal

ANSWER_SECONDS = 30.0
_ARCHIVES: Final = "spark.archives"
_SESSION_PREFIX: Final = "spark.sql."


def open_service(remote: str, token: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Open a session on a Spark Connect server, and send this package and `spark.archives` to it.

    If an earlier process on this machine had a session with the same settings and artifacts, that
    session is reused.

    Raises:
        UsageError: If the server refuses the session, or runs another minor version of Spark.
        GcError: If the server does not answer, or if all sessions are used by other processes.
    """
    url, place = _with_parameter(remote, "token", token), without_parameters(remote)
    _require_answer(url, place)
    if SparkContext._active_spark_context is not None:  # pyright: ignore[reportPrivateUsage]  (pyspark checks it in the same way)
        raise UsageError(f"Cannot open a session on {place}: this process already has a Spark session. Stop that session first.")
    settings = {key: value for key, value in conf.items() if key.startswith(_SESSION_PREFIX)}

    def connect(session_id: str) -> SparkSession:
        builder = SparkSession.builder.remote(_with_parameter(url, "session_id", session_id)).appName("gc-assets")
        for key, value in settings.items():
            builder = builder.config(key, value)
        # Unlike `getOrCreate`, this never returns an existing session of another server.
        return builder.create()

    before = SparkSession.getActiveSession()
    pool = session_pool(create_private(os.environ) / "services" / hashlib.sha256(url.encode()).hexdigest()[:16])
    try:
        spark = pool.open({**settings, **_artifact_versions(conf)}, connect, lambda spark: _prepare(spark, conf, place))
    except PySparkException as error:
        stop_refused(before)
        raise UsageError(f"the Spark Connect server at {place} refused a session: {error}. Check `spark.token`.") from error
    return spark


def _prepare(spark: SparkSession, conf: Mapping[str, str], place: str) -> None:
    require_equal(spark.version, f"the Spark Connect server at {place}")
    send_artifacts(spark, conf, place)


def _artifact_versions(conf: Mapping[str, str]) -> dict[str, str]:
    """Return digests of the artifacts to send, so that sessions with outdated ones are not reused."""
    found = {"package": hashlib.sha256(build_package().read_bytes()).hexdigest()}
    for archive in _archives(conf):
        file = Path(archive.partition("#")[0])
        status = file.stat() if file.exists() else None
        found[f"archive {archive}"] = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}" if status is not None else "missing"
    return found


def _archives(conf: Mapping[str, str]) -> list[str]:
    return [archive.strip() for archive in conf.get(_ARCHIVES, "").split(",") if archive]


def send_artifacts(spark: SparkSession, conf: Mapping[str, str], place: str) -> None:
    """Send this package and `spark.archives` to a server.

    Raises:
        UsageError: If the server does not accept artifacts, for example because it is not one of
            Apache Spark.
    """
    try:
        spark.addArtifacts(str(build_package()), pyfile=True)
        for archive in _archives(conf):
            spark.addArtifacts(archive, archive=True)
    except PySparkException as error:
        raise UsageError(
            f"the server at {place} does not accept the package of gc-assets: {error}. Other engines with Spark Connect's protocol are not "
            "supported (docs/clusters.md). Set `spark.remote` to a server of Apache Spark."
        ) from error


def _with_parameter(address: str, name: str, value: str | None) -> str:
    """Add a parameter to the address of a Spark Connect server, unless its value is None."""
    if value is None:
        return address
    place = address.rstrip("/;")
    return f"{place}{';' if ';' in place else '/;'}{name}={quote(value, safe='')}"


def _require_answer(url: str, place: str) -> None:
    # Without this check, pyspark would retry for ten minutes.
    channel = DefaultChannelBuilder(url).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
    except grpc.FutureTimeoutError:
        raise GcError(
            f"no Spark Connect server answered at {place} within {ANSWER_SECONDS:.0f} s. Check that it is running, that both sides use "
            "TLS or neither does, and that its certificate is trusted. With a token, TLS is used for every host except localhost "
            "(docs/clusters.md)."
        ) from None
    finally:
        channel.close()
