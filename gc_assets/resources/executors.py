"""Send gc-assets to executors on other machines, and check that they can run it."""

from __future__ import annotations

import os
import platform
import re
import tempfile
import threading
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import gc_assets
from gc_assets.core.errors import GcError, UsageError
from gc_assets.engine.executor_info import EXECUTOR_DDL, describe_executor
from gc_assets.resources.spark_version import minor

# A cluster may first have to start machines for a task, which takes minutes.
TIMEOUT_SECONDS = 600.0
SPECULATION: Final = "spark.speculation"
# Entries of a zip file cannot be older. With a constant time, the package is reproducible.
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_KNOWN_ERRORS: Final = (
    (
        r"different version: ([\d.]+)",
        "run Python {found}, but this process runs {ours}. The minor versions must be equal. Set `spark.python`",
    ),
    (r'Cannot run program "([^"]+)"', "have no program {found}. Set `spark.python`"),
    (
        r"No module named '([^']+)'",
        "have no module {found} in their Python. Install the dependencies of gc-assets there, send an environment with "
        "`spark.archives`, or set `spark.python`",
    ),
)


@cache
def build_package() -> Path:
    """Pack gc-assets into a zip file that Python can import.

    The file is created once and kept until this process ends, because executors that start later
    need it too.
    """
    ours = getattr(gc_assets.__loader__, "archive", None)  # set if this process itself runs from such a zip
    if ours is not None:
        return Path(ours)
    home, package = Path(gc_assets.__file__).parent, Path(package_directory().name) / f"gc_assets-{gc_assets.__version__}.zip"
    found = (Path(folder) / name for folder, _, names in os.walk(home) for name in names)
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in found if "__pycache__" not in path.parts):
            packed.writestr(zipfile.ZipInfo(str(path.relative_to(home.parent)), _ZIP_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return package


@cache
def package_directory() -> tempfile.TemporaryDirectory[str]:
    """Create a temporary directory for the package, once in each process."""
    return tempfile.TemporaryDirectory(prefix="gc-assets-package-")


def check_executors(spark: SparkSession, address: str) -> None:
    """Check that executors have this release of gc-assets and its dependencies, by running a task.

    Args:
        spark: The session.
        address: The address of the Spark master or server, for messages.

    Raises:
        UsageError: If an executor cannot run this release, or if speculative execution is enabled.
        GcError: If no executor accepts a task.
    """
    _refuse_speculation(spark, address)
    executor = describe_executors(spark, address, TIMEOUT_SECONDS)
    _refuse_other_release(executor, address)
    _refuse_other_spark(executor, spark.version, address)


def _refuse_speculation(spark: SparkSession, address: str) -> None:
    if (spark.conf.get(SPECULATION, "false") or "").strip().lower() == "true":  # Spark ignores case too
        raise UsageError(
            f"{address} has {SPECULATION} enabled. Two attempts of a task would change the same files at the same time. Disable it there "
            "or in `spark.conf`."
        )


def describe_executors(spark: SparkSession, address: str, seconds: float = TIMEOUT_SECONDS) -> Row:
    """Find out which versions of software an executor has, by running a Python task on it.

    Args:
        spark: The session.
        address: The address of the Spark master or server, for messages.
        seconds: How long to wait for the task.

    Returns:
        A row with the `EXECUTOR_DDL` columns.

    Raises:
        UsageError: If the Python of the executor cannot run gc-assets.
        GcError: If no executor accepts the task.
    """
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        spark.interruptAll() if hasattr(spark, "interruptAll") else spark.sparkContext.cancelAllJobs()  # Spark 3.5

    patience = threading.Timer(seconds, give_up)
    patience.start()
    try:
        (info,) = spark.range(0, 1, 1, 1).mapInArrow(describe_executor, EXECUTOR_DDL).collect()
    except (PySparkException, Py4JError) as error:
        if given_up.is_set():
            raise GcError(
                f"no executor of {address} accepted a task within {seconds:,.0f} s. Check that one is free and has the cores and "
                "memory of `spark.conf`."
            ) from error
        raise UsageError(f"executors of {address} {_explain_error(str(error))} (docs/clusters.md)") from error
    finally:
        patience.cancel()
    return info


def _refuse_other_release(info: Row, address: str) -> None:
    if info["version"] != gc_assets.__version__:
        raise UsageError(
            f"executors of {address} import gc-assets {info['version']} instead of the driver's release {gc_assets.__version__}. "
            f"Uninstall it on `{info['machine']}`, or install {gc_assets.__version__} there (docs/clusters.md)."
        )


def _refuse_other_spark(info: Row, version: str, address: str) -> None:
    if minor(info["spark"]) != minor(version):
        raise UsageError(
            f"executors of {address} have pyspark {info['spark']}, but the driver runs Spark {version}. The minor versions must be equal. "
            f"Remove pyspark from the Python of `{info['machine']}` or from `spark.archives` (docs/clusters.md)."
        )


def _explain_error(error: str) -> str:
    for pattern, template in _KNOWN_ERRORS:
        found = re.search(pattern, error)
        if found is not None:
            return template.format(found=found[1], ours=platform.python_version())
    return f"cannot run gc-assets: {error.strip()[:2000]}"
