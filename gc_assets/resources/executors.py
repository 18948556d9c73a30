"""What executors on other machines run: this very gc-assets, sent along with the work, in a Python
that can run it.
"""

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

# Clusters start machines for work that waits, which takes minutes.
TIMEOUT_SECONDS = 600.0
SPECULATION: Final = "spark.speculation"
# The earliest time that a zip can tell. The same package makes the same bytes, whoever packs it.
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_KNOWN_ERRORS: Final = (
    (
        r"different version: ([\d.]+)",
        "run Python {found} and this process {ours}; Spark wants one minor version on both sides. Name another Python by `spark.python`",
    ),
    (r'Cannot run program "([^"]+)"', "have no program {found}. Name their Python by `spark.python`"),
    (
        r"No module named '([^']+)'",
        "have no module {found} in their Python. Install what gc-assets needs there, send an environment along by `spark.archives`, "
        "or name another Python by `spark.python`",
    ),
)


@cache
def build_package() -> Path:
    """Returns this package as a zip that Python imports from. It is made once in a process, and lies
    there until the process ends: executors that start later fetch it then.
    """
    ours = getattr(gc_assets.__loader__, "archive", None)  # it came here as such a zip
    if ours is not None:
        return Path(ours)
    home, made = Path(gc_assets.__file__).parent, Path(_package_directory().name) / f"gc_assets-{gc_assets.__version__}.zip"
    found = (Path(folder) / name for folder, _, names in os.walk(home) for name in names)
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in found if "__pycache__" not in path.parts):
            packed.writestr(zipfile.ZipInfo(str(path.relative_to(home.parent)), _ZIP_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return made


@cache
def _package_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gc-assets-package-")


def check_executors(spark: SparkSession, where: str) -> None:
    """Raises `UsageError` unless an executor runs this very release and has what that imports, and no
    task is run twice at a time. Raises `GcError` where no executor comes.

    `where` is the engine's address. Costs one task.
    """
    _refuse_speculation(spark, where)
    _refuse_other_release(_describe_executor(spark, where), where)


def _refuse_speculation(spark: SparkSession, where: str) -> None:
    if (spark.conf.get(SPECULATION, "false") or "").strip().lower() == "true":  # Spark reads True and TRUE too
        raise UsageError(
            f"{where} has {SPECULATION} on: two attempts of a task would act on the same files at a time. Switch it off there, or in "
            "`spark.conf`"
        )


def _describe_executor(spark: SparkSession, where: str) -> Row:
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        spark.interruptAll()

    patience = threading.Timer(TIMEOUT_SECONDS, give_up)
    patience.start()
    try:
        (told,) = spark.range(0, 1, 1, 1).mapInArrow(describe_executor, EXECUTOR_DDL).collect()
    except (PySparkException, Py4JError) as error:
        if given_up.is_set():
            raise GcError(
                f"no executor of {where} took up a task in {TIMEOUT_SECONDS:,.0f} s. Is one free, with the cores and the memory that "
                "`spark.conf` asks for?"
            ) from error
        raise UsageError(f"executors of {where} {_explain_error(str(error))} (docs/clusters.md)") from error
    finally:
        patience.cancel()
    return told


def _refuse_other_release(told: Row, where: str) -> None:
    if told["version"] != gc_assets.__version__:
        raise UsageError(
            f"executors of {where} run gc-assets {told['version']}, this process {gc_assets.__version__}: what was sent along is not what "
            f"they import. Take theirs off `{told['machine']}`, or install {gc_assets.__version__} there (docs/clusters.md)"
        )


def _explain_error(said: str) -> str:
    for pattern, words in _KNOWN_ERRORS:
        found = re.search(pattern, said)
        if found is not None:
            return words.format(found=found[1], ours=platform.python_version())
    return f"cannot run gc-assets: {said.strip()[:2000]}"
