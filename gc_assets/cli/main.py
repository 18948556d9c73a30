"""The entry point. It looks up the command, and turns every end of it into a message and an exit
code.

Commands are imported when they are called, so that help and wrong usage answer at once.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from typing import Any, Final

import click

from gc_assets._version import __version__
from gc_assets.cli.context import Settings
from gc_assets.cli.interrupt import install_handler
from gc_assets.cli.output import print_message
from gc_assets.core.errors import GcError

# Command to the module that holds it and what it does, so that the list of commands imports none of
# them.
COMMANDS: Final = {
    "init": ("init", "Ask catalogs and repositories what there is, and write lakes.yaml."),
    "demo": ("demo", "Build real sample lakes and run one night on them."),
    "run": ("run", "Work out one run date: what is live, what is garbage, the plan. Deletes nothing."),
    "show": ("show", "Print a table of a run date."),
    "history": ("history", "Draw commit histories now and after the edits that the policy asks for."),
    "report": ("report", "Write a run date as one HTML page."),
    "blame": ("blame", "Say what each ref, table or age holds."),
    "what-if": ("what_if", "Say what another retention, or a deleted ref, would free."),
    "explain": ("explain", "Say why a file is kept, planned or gone."),
    "plans": ("plans", "List the plans and what may be done with each."),
    "approve": ("plans", "Approve a plan by name."),
    "reject": ("plans", "Say no to a plan, by name."),
    "apply": ("plans", "Execute an approved plan."),
    "restore": ("plans", "Put quarantined files back."),
    "forget": ("forget", "Say that a lake is to go, so that its absence no longer stops the plans."),
    "accept": ("accept", "Say that a table which no catalog knows is dead, so that its metadata no longer stops the plans."),
    "doctor": ("doctor", "Check that every lake is readable and every storage safe to sweep."),
    "metrics": ("metrics", "Write the last night of each storage and lake as Prometheus metrics."),
    "prune": ("prune", "Remove old run directories from the state."),
    "schema": ("init", "Print the JSON Schema of lakes.yaml, for editors."),
}


INTERRUPTED: Final = "interrupted. What was done so far is whole and on record; the same command goes on from there."


class Commands(click.Group):
    """Lists the commands in the order of a night, and imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  (click's signature)
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gc_assets.cli.{COMMANDS[cmd_name][0]}")
        return getattr(module, f"{cmd_name.replace('-', '_')}_command")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click knows only what was imported, and so suggests nothing
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  (click's signature)
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        settings = ctx.ensure_object(Settings)
        try:
            return super().invoke(ctx)
        except GcError as error:
            print_message(f"gc-assets: {error}", "failed")
            if settings.verbose:
                traceback.print_exc()
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            print_message(f"gc-assets: {INTERRUPTED}")
            ctx.exit(1)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001  (the last stop: every end of a command is a message and an exit code)
            print_message(f"gc-assets: unexpected {type(error).__name__}: {error}", "failed")
            if settings.verbose:
                traceback.print_exc()
            else:
                print_message("Repeat the command with -v to see where it happened.")
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gc-assets")
@click.option("--config", "config", metavar="FILE", help="The configuration; default $GC_ASSETS_CONFIG, else ./lakes.yaml.")
@click.option("-v", "--verbose", is_flag=True, help="Show log lines and tracebacks.")
@click.pass_context
def cli(ctx: click.Context, config: str | None, verbose: bool) -> None:
    """Collects the garbage of versioned data lakes: says what is dead and why, and deletes it only
    after your approval.

    \b
    A night, step by step:
      gc-assets run                          what is live, what is garbage, the plan
      gc-assets report -o report.html        look at it
      gc-assets approve PLAN_ID --by ada     say yes to exactly this plan
      gc-assets apply PLAN_ID                move its files to quarantine
      gc-assets restore --plan PLAN_ID       put them back

    Data goes to standard output, messages to standard error. Exit codes: 0 done, 1 failed, 2 wrong
    usage or configuration, 3 refused by a gate.
    """
    settings = ctx.ensure_object(Settings)
    settings.config = config
    if verbose:
        settings.enable_logging(ctx)


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    """Returns false for what py4j logs of a call that Ctrl-C interrupted, or that was made while it
    interrupted another one.
    """
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return False
        error = error.__context__
    return True


def main() -> None:
    """The console script."""
    install_handler()
    # Commands want no plugin of pydantic, and looking for one reads what every package installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    logging.getLogger().addFilter(_is_not_interrupt)  # py4j logs by the root logger
    try:
        cli(prog_name="gc-assets")
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
