"""Entry point of `gc-assets`. It dispatches to the commands and turns errors into exit codes.

Each command's module is imported only when the command runs, which keeps `--help` and usage errors
fast.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
import traceback
from contextlib import suppress
from typing import Any, Final

import click

from gc_assets._version import __version__
from gc_assets.cli.context import Settings
from gc_assets.cli.interrupt import exit_at_next_interrupt, install_handler, interrupt_code, restore_interrupts, was_interrupted
from gc_assets.cli.output import print_message, with_commands
from gc_assets.core.errors import GcError

# The module and one-line description of each command. They are listed here so that `--help` does
# not have to import every command.
COMMANDS: Final = {
    "init": ("init", "Find lakes in catalogs and repositories, and write lakes.yaml."),
    "scan": ("scan", "Estimate the live and unused files in a location. Needs no configuration."),
    "demo": ("demo", "Create sample lakes and run on them."),
    "run": ("run", "Find live files and garbage of a run date, and create the plans. Deletes nothing."),
    "show": ("show", "Print a table of a run date."),
    "history": ("history", "Draw commit histories now and after expiry."),
    "report": ("report", "Write the report of a run date as one HTML page."),
    "blame": ("blame", "Show what each table, ref or age keeps."),
    "what-if": ("what_if", "Show what another retention or a deleted ref would free."),
    "explain": ("explain", "Explain why a file is kept, planned or deleted."),
    "plans": ("plans", "List the plans and their status."),
    "approve": ("decision", "Approve one plan."),
    "reject": ("decision", "Reject one plan."),
    "apply": ("plans", "Execute an approved plan."),
    "restore": ("plans", "Restore quarantined files."),
    "rename": ("records", "Record that a storage or lake continues the records of another name."),
    "adopt": ("records", "Record quarantined files that are missing from the state."),
    "forget": ("records", "Record that a lake is removed on purpose, so that plans are not refused."),
    "accept": ("records", "Accept that a table that no catalog lists is dead, so that its metadata does not block plans."),
    "accept-prefix": ("records", "Accept that files under a prefix, possibly of other applications, are garbage."),
    "set-aside": ("records", "Record that purges do not wait for an unreadable table."),
    "retry": ("records", "Plan actions again that a store or catalog denied."),
    "doctor": ("doctor", "Check that every lake is readable and every storage safe to sweep."),
    "export": ("export", "Write results of runs for other programs, such as the cost of each table."),
    "metrics": ("metrics", "Write the last run of each storage and lake as Prometheus metrics."),
    "prune": ("prune", "Remove old run directories from the state."),
    "schema": ("init", "Print the JSON Schema of lakes.yaml, for editors."),
}


# Printed after an interrupt, to explain what the command has changed so far.
_UNCHANGED: Final = "Nothing was changed in the lakes, the storages and the state."
_RECORDED: Final = "All steps so far are complete and recorded. Run the same command again to continue."
_REPEAT: Final = "Run the same command again. It may already be recorded, but never partially."
_LEFT: Final[dict[str, str]] = {
    "doctor": "Nothing was changed, but probe files of doctor may remain in the state and under .gc-assets/ in the storages.",
    "what-if": "Nothing was changed in the lakes and storages. Temporary files may remain in the state.",
    **dict.fromkeys(("run", "demo", "apply", "restore", "prune", "rename"), _RECORDED),
    **dict.fromkeys(("init", "approve", "reject", "adopt", "forget", "accept", "accept-prefix", "set-aside", "retry"), _REPEAT),
}


class Commands(click.Group):
    """The top-level group, which lists commands in the order of a typical workflow.

    Commands are imported lazily, and every error ends with a message and an exit code.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  (click's signature)
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gc_assets.cli.{COMMANDS[cmd_name][0]}")
        return getattr(module, f"{cmd_name.replace('-', '_')}_command")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        # click 8.4 added suggestions, but they cover only commands that are already imported.
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from gc_assets.core.suggest import did_you_mean

            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _readable(error, ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  (click's signature)
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        settings = ctx.ensure_object(Settings)
        try:
            with restore_interrupts():
                return super().invoke(ctx)
        except click.UsageError as error:
            raise _readable(error, ctx) from error
        except GcError as error:
            for line in with_commands(f"gc-assets: {error}"):
                print_message(line, "failed")
            if settings.verbose:
                traceback.print_exc()
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            exit_at_next_interrupt()
            print_message(f"gc-assets: interrupted. {_LEFT.get(ctx.invoked_subcommand or '', _UNCHANGED)}")
            ctx.exit(interrupt_code())
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001  (every error becomes a message and an exit code)
            print_message(f"gc-assets: unexpected {type(error).__name__}: {error}", "failed")
            if settings.verbose:
                traceback.print_exc()
            else:
                print_message("Run the command again with -v for a traceback.")
            ctx.exit(1)


def _readable(error: click.UsageError, ctx: click.Context) -> click.UsageError:
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # since click 8.2
        return error
    from gc_assets.cli.usage_errors import ReadableUsageError

    return ReadableUsageError(error, " ".join(filter(None, (ctx.command_path, ctx.invoked_subcommand))))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gc-assets")
@click.option("--config", "config", metavar="FILE", help="The configuration. Default: $GC_ASSETS_CONFIG, then ./lakes.yaml.")
@click.option("-v", "--verbose", is_flag=True, help="Show log lines and tracebacks.")
@click.pass_context
def cli(ctx: click.Context, config: str | None, verbose: bool) -> None:
    """Collect the garbage of versioned data lakes. Files are deleted only after an approval.

    \b
    From a plan to a restore:
      gc-assets run                          find garbage and create a plan
      gc-assets report -o report.html        review the plan
      gc-assets approve PLAN_ID --by ada     approve exactly this plan
      gc-assets apply PLAN_ID                move its files to quarantine
      gc-assets restore --plan PLAN_ID       move them back

    Data goes to standard output, messages to standard error. Exit codes: 0 done, 1 failed, 2 wrong
    usage or configuration, 3 refused by a gate, 130 interrupted by Ctrl-C (143 by SIGTERM).
    """
    settings = ctx.ensure_object(Settings)
    settings.config = config
    if verbose:
        settings.enable_logging(ctx)


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    """Filter out the errors that py4j logs when an interrupt cuts its connection."""
    if was_interrupted():
        return False
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return False
        error = error.__context__
    return True


def _end_process(codes: list[int]) -> None:
    """Exit with the recorded code, skipping the interpreter's own cleanup.

    Threads of Arrow may still be running during this cleanup. If one uses an object that Python has
    already destroyed, the process aborts although the command has succeeded.
    """
    if not codes or "pyarrow" not in sys.modules:
        return
    logging.shutdown()
    with suppress(OSError, ValueError):  # Python itself would print the error and exit with code 120
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None if the shell closed it
            stream.flush()
        os._exit(codes[0])


def main() -> None:
    """Run the command line and exit."""
    codes: list[int] = []
    atexit.register(_end_process, codes)  # the first registered handler runs last
    install_handler()
    # No command uses pydantic plugins, and searching for them reads the metadata of every package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    logging.getLogger().addFilter(_is_not_interrupt)  # py4j uses the root logger
    try:
        cli(prog_name="gc-assets")
    except SystemExit as end:
        if isinstance(end.code, int):  # Python prints any other value and exits with 1
            codes.append(end.code)
        raise
    except BrokenPipeError:  # the program that reads our output, such as head or less, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
