"""Open a session on an existing Spark Connect server, and refuse unsuitable servers before a run
starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import grpc
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder

from gc_assets.config.spark import without_parameters
from gc_assets.core.errors import GcError, UsageError
from gc_assets.resources.executors import build_package
from gc_assets.resources.spark_version import require_equal

ANSWER_SECONDS = 30.0
_ARCHIVES: Final = "spark.archives"
_SESSION_PREFIX: Final = "spark.sql."


def open_service(remote: str, token: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Open a new session on the server, with this package and `spark.archives` as its artifacts.

    Raises:
        UsageError: If the server refuses the session, or has another minor version of Spark.
        GcError: If the server does not answer.
    """
    url, place = _address_with_token(remote, token), without_parameters(remote)
    _require_answer(url, place)
    if SparkContext._active_spark_context is not None:  # pyright: ignore[reportPrivateUsage]  (pyspark checks it in the same way)
        raise UsageError(f"this process already has a Spark session, so it cannot open one on {place}. Stop that session first.")
    others = SparkSession.getActiveSession()
    builder = SparkSession.builder.remote(url).appName("gc-assets")
    for key, value in conf.items():
        if key.startswith(_SESSION_PREFIX):
            builder = builder.config(key, value)
    try:
        # `getOrCreate` could return an existing session of another server.
        spark = builder.create()
        version = spark.version
    except PySparkException as error:
        _stop_refused(others)
        raise UsageError(f"the Spark Connect server at {place} refused a session: {error}. Check `spark.token`.") from error
    try:
        require_equal(version, f"the Spark Connect server at {place}")
        send_artifacts(spark, conf, place)
    except UsageError:
        spark.stop()
        raise
    return spark


def send_artifacts(spark: SparkSession, conf: Mapping[str, str], place: str) -> None:
    """Send this package and `spark.archives` to the server.

    Raises:
        UsageError: If the server does not accept them, because it is not Spark's.
    """
    try:
        spark.addArtifacts(str(build_package()), pyfile=True)
        for archive in filter(None, conf.get(_ARCHIVES, "").split(",")):
            spark.addArtifacts(archive.strip(), archive=True)
    except PySparkException as error:
        raise UsageError(
            f"the server at {place} does not accept the package of gc-assets: {error}. Other engines with Spark Connect's protocol are not "
            "supported (docs/clusters.md). Set `spark.remote` to a server of Apache Spark."
        ) from error


def _stop_refused(others: SparkSession | None) -> None:
    """Stop a session that the server refused. pyspark keeps it as the active session."""
    refused = SparkSession.getActiveSession()
    if refused is not None and refused is not others:
        with suppress(PySparkException):
            refused.stop()


def _address_with_token(remote: str, token: str | None) -> str:
    """Return the address with the token as a parameter of Spark Connect."""
    if token is None:
        return remote
    place = remote.rstrip("/;")
    return f"{place}{';' if ';' in place else '/;'}token={quote(token, safe='')}"


def _require_answer(url: str, place: str) -> None:
    # pyspark itself would retry for ten minutes.
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
