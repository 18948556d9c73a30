"""A Spark Connect server that others keep: how a session opens there, and what is refused before a
night begins on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import grpc
import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder

from gc_assets.config.spark import place_of
from gc_assets.core.errors import GcError, UsageError
from gc_assets.resources.executors import build_package

ANSWER_SECONDS = 30.0
_ARCHIVES: Final = "spark.archives"
_SESSION_PREFIX: Final = "spark.sql."


def open_service(remote: str, token: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Opens a session of our own on the server. This package goes along, and `spark.archives` of
    the settings; no other run sees either.

    Raises `UsageError` where the server opens none for this token, or is of another minor version
    of Spark, and `GcError` where nobody answers.
    """
    url, place = _address_with_token(remote, token), place_of(remote)
    _require_answer(url, place)
    if SparkContext._active_spark_context is not None:  # pyright: ignore[reportPrivateUsage]  (pyspark asks so itself)
        raise UsageError(f"this process has a Spark of its own, beside which it opens no session at {place}: stop it first")
    others = SparkSession.getActiveSession()
    builder = SparkSession.builder.remote(url).appName("gc-assets")
    for key, value in conf.items():
        if key.startswith(_SESSION_PREFIX):
            builder = builder.config(key, value)
    try:
        # `getOrCreate` would return a session that is there, whatever server it is on and whoever's.
        spark = builder.create()
        version = spark.version
    except PySparkException as error:
        _stop_refused(others)
        raise UsageError(f"the Spark Connect server at {place} opens no session. Is `spark.token` its token? It says: {error}") from error
    if _minor(version) != _minor(pyspark.__version__):
        spark.stop()
        raise UsageError(
            f"the Spark Connect server at {place} runs Spark {version}, and this process has pyspark {pyspark.__version__}: both must be "
            f"of one minor version. Name a server that runs Spark {_minor(pyspark.__version__)} by `spark.remote` (docs/clusters.md)"
        )
    spark.addArtifacts(str(build_package()), pyfile=True)
    for archive in filter(None, conf.get(_ARCHIVES, "").split(",")):
        spark.addArtifacts(archive.strip(), archive=True)
    return spark


def _stop_refused(others: SparkSession | None) -> None:
    """Stops a session that the server refused, which pyspark keeps as the active one unless `others`
    was that already.
    """
    refused = SparkSession.getActiveSession()
    if refused is not None and refused is not others:
        with suppress(PySparkException):
            refused.stop()


def _address_with_token(remote: str, token: str | None) -> str:
    """Returns the address with the token as a parameter of it, as Spark Connect defines them."""
    if token is None:
        return remote
    place = remote.rstrip("/;")
    return f"{place}{';' if ';' in place else '/;'}token={quote(token, safe='')}"


def _require_answer(url: str, place: str) -> None:
    # pyspark itself would ask for ten minutes.
    channel = DefaultChannelBuilder(url).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
    except grpc.FutureTimeoutError:
        raise GcError(
            f"no Spark Connect server answers at {place} within {ANSWER_SECONDS:.0f} s. Does it run? Has one side TLS and the "
            "other not, or a certificate that is not trusted here? With a token TLS is spoken to every host but localhost "
            "(docs/clusters.md)"
        ) from None
    finally:
        channel.close()


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
