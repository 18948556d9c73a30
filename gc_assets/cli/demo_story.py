"""The walkthrough of `gc-assets demo`: a run on sample lakes, explained with example files.

Everything it prints comes from published tables, so users can reproduce it with `gc-assets show`
and `gc-assets explain`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.cli.explain import explanation_lines
from gc_assets.cli.progress import CommandProgress, show_progress
from gc_assets.core.commands import command as command_line
from gc_assets.core.commands import quote
from gc_assets.core.plan import Amount, PlanHeader
from gc_assets.core.units import count_of, format_bytes, format_duration
from gc_assets.demo.bucket import STORES, ensure_demo_in_bucket, find_demo_store, owns_server, pid_file
from gc_assets.demo.sample import ensure_demo
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.kinds import KINDS, reversible_titles
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED
from gc_assets.resources.platform import NOW_VARIABLE, Platform, load_platform
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.read.explain import explain
from gc_assets.stages.sweep.probe import UNOWNED, YOUNG
from gc_assets.state.schemas import COMMIT_GRAPH, LIVE_FILES, ORPHAN_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.summaries import LiveFilesSummary, OrphanFilesSummary
from gc_assets.stores.protocol import RESERVED_PREFIX

Echo = Callable[[str], None]
STATE_MEANING = {
    RETAINED: "the policy keeps it",
    EXPIRED: "a ref reaches it, but the policy does not keep it",
    DANGLING: "no ref reaches it",
}
REASON_MEANING = {
    "unreferenced": "no snapshot needs it",
    "expired": "only expired snapshots need it",
}
MOST_REASONS = 4
WAITS = "planned after the history edits that make them garbage"


def run_demo(
    directory: Path, echo: Echo = click.echo, *, store: str | None = None, endpoint: str | None = None, verbose: bool = False
) -> None:
    """Create the demo lakes if necessary, run on them in `plan` mode, and print the results.

    Args:
        directory: The directory of the demo.
        echo: Called with each line of output.
        store: The object store in which to create the lakes, a key of `demo.bucket.STORES`. By
            default, an existing demo keeps its store, and a new one is created on disk.
        endpoint: The S3 server to use. By default, the demo starts its own.
        verbose: Print log lines instead of the progress display.
    """
    # Importing this loads Dagster, which is slow and not needed to create the lakes.
    from gc_assets.cli.dagster_run import run_partition

    demo_store = find_demo_store(directory) if store is None else STORES[store]
    path = ensure_demo(directory) if demo_store is None else ensure_demo_in_bucket(directory, demo_store, endpoint)
    platform = load_platform(os.environ, str(path))
    location = path.parent if demo_store is None else platform.config.storages[0].location
    echo(f"The demo lakes are in {location}, and their configuration is {path}.")
    if demo_store is not None:
        shown = {lake.kind for lake in platform.config.lakes}
        others = " and ".join(kind.title for name, kind in KINDS.items() if name not in shown)
        echo(f"{others} need a server and have no demo. Their lakes in buckets are supported.")
        echo(f"The age of objects in a bucket cannot be changed, so this run is a rehearsal at {platform.clock.now():%F %T}Z.")
    day = platform.clock.today()
    echo(f"Run date {day}, in plan mode: find live files and garbage. Nothing is deleted.\n")
    with show_progress(CommandProgress(), verbose=verbose) as progress:
        plans = run_partition(platform, day, mode="plan", observer=progress, verbose=verbose)
    context = platform.run_context(day)
    for section in (_live_section(context), *(_storage_section(context, header) for header in plans), _next_section(platform, path, plans)):
        for line in section:
            echo(line)


def _live_section(context: RunContext) -> Iterator[str]:
    yield "\nLIVE FILES"
    for lake in context.config.lakes:
        summary = context.table(LIVE_FILES, lake.name).summary(LiveFilesSummary)
        kinds = ", ".join(f"{amount.files:,} {name}" for name, amount in summary.by_kind.items())
        yield f"  lake {lake.name} ({lake.kind}): {count_of(summary.files, 'file')}, {format_bytes(summary.live_bytes)}: {kinds}"
        reachable = read_rows(context.state, REACHABLE_SNAPSHOTS, context.table(REACHABLE_SNAPSHOTS, lake.name))
        yield from _snapshot_lines(reachable)
    yield "  Why one of them is live:"
    yield from _explanation(context, *_oldest_live_file(context))


def _snapshot_lines(reachable: pa.Table) -> Iterator[str]:
    """Describe how many snapshots of each table are kept or expire, and which rules decide this."""
    rows = reachable.select(["table_name", "state", "reason"]).to_pylist()
    for table in sorted({row["table_name"] or "" for row in rows}):
        yield f"    table {table}:" if table else "    snapshots:"
        for state, meaning in STATE_MEANING.items():
            reasons = Counter(row["reason"] for row in rows if (row["table_name"] or "") == table and row["state"] == state)
            if reasons:
                yield f"      {reasons.total():,} {state}: {meaning}"
                yield from (f"        {count:,} x {reason}" for reason, count in reasons.most_common(MOST_REASONS))


def _oldest_live_file(context: RunContext) -> tuple[str, str]:
    """Choose an example file: a data file that is live because of the first lake's oldest commit."""
    lake, state = context.config.lakes[0].name, context.state
    live = pa.Table.from_batches(LiveSet(context, context.table(LIVE_FILES, lake)).batches(), LIVE_FILES.schema)
    graph = read_rows(state, COMMIT_GRAPH, context.table(COMMIT_GRAPH, lake))
    committed_at = dict(zip(*(graph.column(name).to_pylist() for name in ("commit_id", "committed_at")), strict=True))
    data = live.filter(pc.and_(pc.equal(live.column("kind"), Kind.DATA), pc.is_valid(live.column("commit_id"))))
    oldest = min(data.to_pylist(), key=lambda row: (committed_at[row["commit_id"]], row["key"]))
    return oldest["storage"], oldest["key"]


def _storage_section(context: RunContext, header: PlanHeader) -> Iterator[str]:
    published = context.table(ORPHAN_FILES, header.storage)
    summary, orphans = published.summary(OrphanFilesSummary), read_rows(context.state, ORPHAN_FILES, published)
    yield f"\nGARBAGE IN STORAGE {header.storage}"
    for name, amount in summary.by_reason.items():
        reason, _, lake = name.partition("/")
        waits = f"; {WAITS}" if reason == "expired" else ""
        yield f"  {reason}, lake {lake}: {count_of(amount.files, 'file')}, {format_bytes(amount.bytes)}: {REASON_MEANING[reason]}{waits}"
        of_both = pc.and_(pc.equal(orphans.column("reason"), reason), pc.equal(orphans.column("lake"), lake))
        yield from _explanation(context, header.storage, orphans.filter(of_both).column("key")[0].as_py())
    yield "\nPROTECTED FILES"
    grace = format_duration(context.storage(header.storage).grace)
    for name, reason in (
        (YOUNG, f"younger than the grace period of {grace}: a writer may still commit them"),
        (UNOWNED, "no lake claims them"),
    ):
        amount = summary.storage_breakdown.get(name, Amount())
        yield f"  {name}: {count_of(amount.files, 'file')}, {format_bytes(amount.bytes)}: {reason}"
    yield "\nTHE PLAN"
    yield f"  {header.plan_id}"
    for action, amount in header.totals.items():
        yield f"  {action} {count_of(amount.files, 'file')}, {format_bytes(amount.bytes)}"
    freed = header.after_expiry
    for lake, edits in header.expiry_actions.items():
        yield f"  expire: {count_of(edits, 'edit')} of the history of lake {lake}, executed first"
    amount = f"{freed.files:,} of the files ({format_bytes(freed.bytes)})"
    yield f"  {amount} are moved only after a second check that the edited history does not need them"
    passed = sum(gate.passed for gate in header.gates)
    yield f"  {passed} of {len(header.gates)} safety gates passed"
    yield from (f"  refused by {gate.name}: {gate.message}" for gate in header.failed_gates)


def _explanation(context: RunContext, storage: str, key: str) -> Iterator[str]:
    for item in explain(context, key, storage):
        yield from (f"      {line}" for line in explanation_lines(item))


def _next_section(platform: Platform, path: Path, plans: tuple[PlanHeader, ...]) -> Iterator[str]:
    command = f"gc-assets --config {quote(_relative_path(path))}"
    store, folder = find_demo_store(path.parent), path.parent
    yield "\nNEXT COMMANDS"
    if store is not None:
        environment = quote(_relative_path(folder / store.environment))
        yield f"  . {environment}      # credentials of the demo's server, and the clock of the rehearsal"
    yield f"  {command} report -o report.html      # the run as one page"
    for header in plans:
        if not header.has_work:
            yield f"  Nothing to do: storage {header.storage} has no planned file."
            continue
        plan, storage = header.plan_id[:12], platform.config.storage(header.storage)
        root = storage.location if store is not None else f"{_relative_path(folder)}/lake/"
        now = platform.clock.now().replace(microsecond=0)
        yield f"  {command} approve {plan} --by YOUR_NAME"
        yield f"  {command} apply {plan}      # edits histories, then moves files to quarantine in {root}{RESERVED_PREFIX}"
        yield f"  {command} restore --plan {plan} --history      # undo: restores all files, and the history of {reversible_titles()}"
        yield "  A restored plan cannot be applied again. To see a purge, rehearse two later runs with another clock:"
        steps = ((1, "its plan quarantines the files again"), (storage.quarantine_days + 2, "its plan purges files that are still garbage"))
        for days, effect in steps:
            yield f"  export {NOW_VARIABLE}={(now + timedelta(days=days)).isoformat()}"
            yield f"  {command} run      # a later run: {effect}"
            yield f"  {command} approve PLAN_ID --by YOUR_NAME && {command} apply PLAN_ID"
        if store is None:
            yield f"  unset {NOW_VARIABLE}"
    if store is not None and owns_server(folder):
        start = command_line("demo", dir=_relative_path(folder))
        yield f"  kill $(cat {quote(_relative_path(pid_file(folder)))})      # stops the {store.title} server; {start} starts it again"
    elif store is not None:
        yield f"  The bucket {platform.config.storages[0].location} remains until you delete it."


def _relative_path(path: Path) -> str:
    """Shorten a path in the working directory to its relative form."""
    current = Path.cwd()
    return str(path.relative_to(current)) if path.is_relative_to(current) else str(path)
