"""Report the actions of commands to the Dagster instance, if `DAGSTER_HOME` is set.

Without `DAGSTER_HOME`, Dagster is not even imported. If reporting fails, the command only prints a
message, because its work is already done and recorded.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gc_assets.cli.output import print_message

if TYPE_CHECKING:
    from gc_assets.core.plan import PlanHeader
    from gc_assets.engine.run_context import RunContext
    from gc_assets.stages.delete.apply import ApplyResult
    from gc_assets.stages.records.plans import StoredPlan
    from gc_assets.state.journal import PublishedTable


def has_instance() -> bool:
    return bool(os.environ.get("DAGSTER_HOME"))


def report_apply(context: RunContext, header: PlanHeader, applied: ApplyResult) -> None:
    """Report to Dagster the phases of a plan executed by an apply."""
    if has_instance():
        with _warn_on_failure():
            from gc_assets.assets.command_events import report_plan

            report_plan(context, header, applied)


def report_restore(context: RunContext, storage_name: str, log: PublishedTable) -> None:
    if has_instance():
        with _warn_on_failure():
            from gc_assets.assets.command_events import report_restore

            report_restore(context, storage_name, log)


def report_history_undo(context: RunContext, header: PlanHeader) -> None:
    if has_instance():
        with _warn_on_failure():
            from gc_assets.assets.command_events import report_history_undo

            report_history_undo(context, header)


def report_decision(context: RunContext, plan: StoredPlan) -> None:
    """Report to Dagster that a plan was approved or rejected."""
    if has_instance():
        with _warn_on_failure():
            from gc_assets.assets.command_events import report_decision

            report_decision(context, plan)


@contextmanager
def _warn_on_failure() -> Generator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  (the action is done and recorded, so a Dagster error must not fail the command)
        print_message(f"Cannot report this to Dagster: {type(error).__name__}: {error}")
