"""Check whether versions of Spark are supported.

pip installs Spark 4.0 or newer. Managed services have their own pyspark, which can be 3.5. With
3.5, sessions and jobs work, but not Spark Connect.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final

import pyspark

from gc_assets.core.errors import UsageError

_SPARK_3: Final = (3, 5)
OLDEST: Final = (4, 0)
NEWEST: Final = (4, 3)
SUPPORTED: Final = f"Spark 3.5 and {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
_LOCAL_SERVER: Final = "pyspark.sql.connect.local_server"


def minor(version: str) -> str:
    """Extract the minor version, for example `4.0` from `4.0.2-amzn-0`."""
    return ".".join(version.split(".")[:2])


def is_supported(version: str) -> bool:
    """Check if a version of Spark is supported."""
    return _pair(version) == _SPARK_3 or OLDEST <= _pair(version) <= NEWEST


def is_spark_3(version: str) -> bool:
    """Check if a version of Spark is older than 4.0."""
    return _pair(version) < OLDEST


def _pair(version: str) -> tuple[int, int]:
    """Parse a minor version as two numbers, which are zero if it cannot be parsed."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found is not None else (0, 0)


def require_supported(version: str, place: str) -> None:
    """Check that a version of Spark is supported.

    Args:
        version: The version of Spark.
        place: The subject of the message, for example `this process`.

    Raises:
        UsageError: If the version is not supported.
    """
    if not is_supported(version):
        raise UsageError(
            f"{place} has Spark {version}, but gc-assets supports {SUPPORTED}. Use a cluster or runtime in this range, with the same minor "
            "version of pyspark (docs/clusters.md)."
        )


def require_equal(version: str, place: str) -> None:
    """Check that Spark has the same minor version as pyspark in this process.

    Args:
        version: The version of Spark.
        place: The subject of the message.

    Raises:
        UsageError: If the versions differ.
    """
    ours = pyspark.__version__
    if minor(version) == minor(ours):
        return
    install = f"run `pip install 'pyspark=={minor(version)}.*'` in this environment, or " if is_supported(version) else ""
    raise UsageError(
        f"{place} runs Spark {version}, but this process has pyspark {ours}. The minor versions must be equal: {install}use a Spark "
        f"{minor(ours)} (docs/clusters.md)."
    )


def require_connect() -> None:
    """Check that pyspark is new enough for Spark Connect.

    Raises:
        UsageError: If pyspark is older than 4.0.
    """
    if is_spark_3(pyspark.__version__):
        raise UsageError(
            f"Spark Connect needs pyspark 4.0 or newer, but this process has pyspark {pyspark.__version__}. Set `mode: session` or "
            "`mode: submit` in `spark`."
        )


def has_local_server() -> bool:
    """Check if pyspark can start a local Spark Connect server that later commands reuse.

    With Spark 4.0 to 4.2, each process starts its own server, and all of them use port 15002.
    """
    return find_spec(_LOCAL_SERVER) is not None


def require_local_server() -> None:
    """Check that a local Spark Connect server can be reused (`remote: local[N]`).

    Raises:
        UsageError: If pyspark is too old.
    """
    if not has_local_server():
        raise UsageError(
            f"pyspark {pyspark.__version__} has no reusable local Spark Connect server, which Spark 4.3 introduced. Set `mode: session` in "
            "`spark`, or specify a server in `spark.remote`."
        )
