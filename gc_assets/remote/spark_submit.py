"""Run a job with spark-submit: the driver on this machine, the executors on the master."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import dagster as dg
import pyspark
from dagster import PipesTempFileContextInjector

import gc_assets
from gc_assets.config.jobs import CLIENT
from gc_assets.config.models import SparkConfig
from gc_assets.config.spark import is_local
from gc_assets.core.errors import GcError, UsageError
from gc_assets.remote.message_file import MessageFileReader
from gc_assets.resources.spark import SparkRuntime, write_properties

ENTRY_POINT: Final = Path(gc_assets.__file__).parent / "job" / "__main__.py"
_POLL_SECONDS: Final = 0.5
_END_SECONDS: Final = 20.0
_LAST_CHARACTERS: Final = 2_000


def run_job(config: SparkConfig, context: dg.AssetExecutionContext | dg.OpExecutionContext, extras: Mapping[str, Any]) -> Iterator[Any]:
    """Start a job with spark-submit and yield its reports.

    Raises:
        UsageError: If spark-submit cannot be started.
        GcError: If the job failed.
    """
    count = 0
    with tempfile.TemporaryDirectory(prefix="gc-assets-job-") as directory, (Path(directory) / "output").open("w+b") as output:
        program = submit_program(config)
        settings, version = SparkRuntime.from_config(config).application(), submit_version(program) or pyspark.__version__
        options = write_properties(Path(directory) / "spark.conf", settings, version, _home(program))
        command = [program, "--deploy-mode", CLIENT, *options, str(ENTRY_POINT)]
        with _open_session(context, extras, Path(directory) / "messages") as session:
            # Executors on other machines use the Python of those machines.
            python_variables = ["PYSPARK_DRIVER_PYTHON", *(["PYSPARK_PYTHON"] if is_local(config.master) else [])]
            variables = {**dict.fromkeys(python_variables, sys.executable), **os.environ, **session.get_bootstrap_env_vars()}
            process = _start_process(command, variables, output)
            try:
                while process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_SECONDS)
                    messages = session.get_custom_messages()
                    yield from messages[count:]
                    count = len(messages)
            finally:
                _terminate(process)
        yield from session.get_custom_messages()[count:]
        if process.returncode:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_CHARACTERS))
            last = output.read().decode(errors="replace").strip()
            raise GcError(f"{program} exited with code {process.returncode}. Last output of the job: {last or 'none'}")


@contextmanager
def _open_session(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, extras: Mapping[str, Any], messages: Path
) -> Generator[dg.PipesSession]:
    with ExitStack() as opened:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.PreviewWarning)  # Dagster's own code causes them
            session = dg.open_pipes_session(context, PipesTempFileContextInjector(), MessageFileReader(messages), dict(extras))
            entered = opened.enter_context(session)
        yield entered


def submit_program(config: SparkConfig) -> str:
    """Return the path of the configured spark-submit program, or of pyspark's own."""
    return config.submit_program or str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


def submit_version(program: str) -> str | None:
    """Return the Spark version of a spark-submit program, or None if it is unknown.

    The version is taken from the file name of a jar in the same Spark distribution.
    """
    jars = (path.stem for path in _home(program).glob("jars/spark-core_*.jar"))
    return next((name.split("-", 2)[2] for name in jars if name.count("-") >= 2), None)


def _home(program: str) -> Path:
    """Return the directory of the Spark distribution that contains a spark-submit program."""
    return Path(shutil.which(program) or program).resolve().parent.parent


def _start_process(command: Sequence[str], variables: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        # In a session of their own, all processes of the job can be ended, and Ctrl-C does not
        # reach them.
        return subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603
    except OSError as error:
        raise UsageError(f"Cannot start spark-submit as {command[0]}: {error.strerror}. Set spark.submit_program.") from None


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Terminate all processes of a job with SIGTERM, or with SIGKILL after 20 seconds."""
    deadline = time.monotonic() + _END_SECONDS
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
