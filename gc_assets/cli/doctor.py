"""`gc-assets doctor`: check lakes, storages, state and Spark."""

from __future__ import annotations

import importlib
import os
import platform as machine
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Final

import click

from gc_assets.cli.context import Settings, common_options, format_option, wide_option
from gc_assets.cli.output import print_message, write_json
from gc_assets.core.errors import GcError, UsageError
from gc_assets.core.findings import FAIL, OK, SKIPPED, WARN, Finding
from gc_assets.core.units import count_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gc_assets.cli.progress import CommandProgress
    from gc_assets.config.models import SparkConfig
    from gc_assets.resources.platform import Platform


# Usually, a task on this machine takes about a second. The limit leaves room for a busy machine.
_TASK_SECONDS: Final = 60.0


@click.command("doctor", short_help="Check lakes, storages and state.")
@click.option("--repair", is_flag=True, help="First exclude damaged runs, rebuild indexes, and drop damaged lists of compacted segments.")
@click.option("--all", "show_all", is_flag=True, help="Also print passed checks, as JSON always does.")
@format_option()
@wide_option
@common_options
def doctor_command(settings: Settings, repair: bool, show_all: bool, format_: str, wide: bool) -> None:
    """Check that every lake is readable and every storage safe: claims, links, overlaps, clocks,
    quarantine, leases, plans, interrupted applies, and problems of the last run. Print each problem
    with its cause and what to do.

    Starts Spark and runs one task, as a run does. Changes nothing except probe files, which are
    removed immediately. The exit code is 1 if a check fails. --repair first reads the whole state,
    ignores runs with missing or damaged files from then on, and rebuilds damaged indexes.

    \b
    Examples:
      gc-assets doctor
      gc-assets doctor --all
      gc-assets doctor --format json
      gc-assets doctor --repair
    """
    from gc_assets.cli.progress import CommandProgress, show_progress
    from gc_assets.engine.progress import measure_work
    from gc_assets.state.journal import SET_ASIDE

    platform = settings.platform()
    if repair:
        for path in platform.run_context(platform.clock.today()).state.repair():
            print_message(f"repaired: {platform.config.state}/{path}")
            if path.endswith(SET_ASIDE):
                print_message("  This run is ignored from now on. The next run computes its table again, and does not compare with it.")
    with show_progress(CommandProgress(), verbose=settings.verbose) as progress, measure_work("doctor"):
        found = _run_checks(platform, progress, verbose=settings.verbose)
    rows = [{**asdict(finding), "subject": platform.config.label_of(finding.subject)} for finding in found]
    if format_ == "json":
        write_json(rows)
    elif shown := [row for row in rows if show_all or row["verdict"] in {FAIL, WARN}]:
        from gc_assets.cli.problems import write_problems

        write_problems(shown, wide=wide)
    failed, warned, skipped = (sum(finding.verdict == verdict for finding in found) for verdict in (FAIL, WARN, SKIPPED))
    because = f", {skipped:,} skipped" if skipped else ""
    print_message(f"{count_of(len(found), 'check')}: {failed:,} failed, {count_of(warned, 'warning')}{because}")
    if failed:
        raise click.exceptions.Exit(1)


def _run_checks(platform: Platform, progress: CommandProgress, *, verbose: bool) -> list[Finding]:
    """Run all checks of `doctor`. Since Spark starts slowly, other checks run in a second thread."""
    from gc_assets.engine.progress import set_activity
    from gc_assets.stages.read.doctor import doctor

    importlib.import_module("gc_assets.resources.collector")  # imported here, because both threads need it
    context, config = platform.run_context(platform.clock.today()), platform.config
    others: Future[list[Finding]] = Future()

    def check_others() -> None:
        try:
            found = list(doctor(context, lambda place: progress.announce(f"checking {config.label_of(place)}")))
            set_activity("Spark")
            others.set_result(found)
        except BaseException as error:  # noqa: BLE001  (raised below, in the main thread)
            others.set_exception(error)

    progress.announce("checking Spark, which takes some seconds to start")
    # A daemon thread, because otherwise Ctrl-C would have to wait for servers that do not respond.
    threading.Thread(target=copy_context().run, args=(check_others,), name="doctor", daemon=True).start()
    return [*_check_spark(platform, verbose=verbose), *others.result()]


def _check_spark(platform: Platform, *, verbose: bool) -> Iterator[Finding]:
    from gc_assets.cli.context import open_spark
    from gc_assets.config.spark import is_local, without_parameters

    config = platform.config.spark
    where = config.remote if config.mode == "connect" else config.master
    yield _check_versions()
    if config.mode != "connect" or is_local(where):
        yield from _check_java(config)
    if config.mode == "submit":
        yield _check_submit_program(config)
    if not is_local(where):
        try:
            spark = open_spark(platform, verbose=verbose)
        except GcError as error:
            yield Finding("spark", "executors", FAIL, str(error), "Fix this before the next run.")
        else:
            yield _describe_cluster(spark, without_parameters(where))
            spark.stop()
        return
    if config.mode == "connect":
        from gc_assets.resources.connect_server import describe_server

        try:
            yield Finding("spark", "server", OK, describe_server(os.environ))
        except UsageError as error:
            yield Finding("spark", "server", FAIL, str(error), "Fix this before the next run.")
            return
    yield _check_session(platform, where, verbose=verbose)


def _check_session(platform: Platform, where: str, *, verbose: bool) -> Finding:
    """Run a Python task in the Spark session that a run on this machine would use."""
    from gc_assets.cli.context import open_spark
    from gc_assets.resources.executors import describe_executors

    began, action = monotonic(), "Fix this before the next run."
    try:
        spark = open_spark(platform, verbose=verbose)
        executor = describe_executors(spark, where, _TASK_SECONDS)
        (java,) = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')").first() or ("unknown",)
    except GcError as error:
        return Finding("spark", "session", FAIL, str(error), action)
    except Exception as error:  # noqa: BLE001  (pyspark and the JVM raise errors of many types)
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        return Finding("spark", "session", FAIL, f"Spark cannot run on {where}: {reason}", action)
    versions = f"Spark {spark.version}, Java {java}, Python {executor['python']}"
    return Finding("spark", "session", OK, f"{versions}: a session on {where} ran a Python task after {monotonic() - began:.1f} s")


def _check_versions() -> Finding:
    import pyspark

    from gc_assets.resources.spark_version import require_supported

    found = f"this process has pyspark {pyspark.__version__} and Python {machine.python_version()}"
    try:
        require_supported(pyspark.__version__, "this process")
    except UsageError as error:
        return Finding("spark", "versions", FAIL, str(error), "Install a supported pyspark.")
    return Finding("spark", "versions", OK, found)


def _describe_cluster(spark: SparkSession, where: str) -> Finding:
    from gc_assets.resources.executors import describe_executors

    try:
        executor = describe_executors(spark, where)
    except GcError as error:
        return Finding("spark", "executors", FAIL, str(error), "Fix this before the next run.")
    found = f"the executors of {where} run Spark {spark.version}, Python {executor['python']} and this release of gc-assets"
    return Finding("spark", "executors", OK, found)


def _check_java(config: SparkConfig) -> Iterator[Finding]:
    from gc_assets.resources.class_archive import COMMAND, jvm_options
    from gc_assets.resources.java import ensure_java_home

    try:
        home = ensure_java_home()
    except UsageError as error:
        yield Finding("spark", "java", FAIL, str(error), "Install Java 17 or newer.")
    else:
        yield Finding("spark", "java", OK, f"mode {config.mode}, Java at {home or 'PATH'}")
        mapped = "mapped at every start" if config.class_archive and jvm_options(home) else f"not used; create it with {COMMAND}"
        yield Finding("spark", "class archive", OK, mapped)


def _check_submit_program(config: SparkConfig) -> Finding:
    from gc_assets.remote.spark_submit import submit_program, submit_version
    from gc_assets.resources.spark_version import SUPPORTED, is_supported

    program = submit_program(config)
    if shutil.which(program) is None:
        return Finding("spark", "spark-submit", FAIL, f"the program {program} does not exist", "Set spark.submit_program.")
    version = submit_version(program)
    if version is not None and not is_supported(version):
        return Finding(
            "spark", "spark-submit", FAIL, f"{program} is Spark {version}, but gc-assets supports {SUPPORTED}", "Set spark.submit_program."
        )
    return Finding("spark", "spark-submit", OK, f"jobs use {program} ({f'Spark {version}' if version else 'unknown Spark version'})")
