"""Report the garbage of each table on the user's own asset that writes the table.

The amounts are reported as observations, and optionally as an asset check. The steps that create
plans report them, because all amounts of a run are known by then.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import dagster as dg
import pyarrow as pa

from gc_assets.assets.names import asset_key
from gc_assets.assets.page_actions import to_page_message
from gc_assets.assets.results import rehearsal_metadata
from gc_assets.assets.user_assets import Binding, configured_bindings, find_bindings, max_garbage_share, written_tables
from gc_assets.config.models import Config
from gc_assets.core.errors import GcError
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.core.units import format_bytes
from gc_assets.engine.run_context import RunContext
from gc_assets.resources.collector import Collector
from gc_assets.stages.read.table_figures import TableFigures, reporting_storage, table_figures
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_PLAN, LAKE_REFS
from gc_assets.state.summaries import LakeRefsSummary

CHECK: Final = "garbage_share"
CHECK_DESCRIPTION: Final = "Reports garbage and expired history above the share that lakes.yaml allows (`max_garbage_share`)."
_STEP: Final = "garbage_checks"


def observe_tables(context: dg.AssetExecutionContext, run_context: RunContext, storage: str) -> None:
    """Report the garbage of tables as observations on the user's assets that write the tables.

    A lake can use several storages, so its tables are reported with the plan of only one of them
    (`reporting_storage`). Errors are only logged, because the plan is already published.
    """
    if any(freeze.historical for freeze in _freezes(run_context)):
        return  # a historical run does not describe the current state
    try:
        for event in observations(run_context, _project_assets(context), storage):
            context.log_event(event)
    except (GcError, OSError, pa.ArrowException) as error:
        context.log.warning(f"Cannot report the figures of tables on the assets that write them: {error}")


def _freezes(context: RunContext) -> Iterator[LakeRefsSummary]:
    return (table.summary(LakeRefsSummary) for table in context.find_lake_tables(LAKE_REFS))


def observations(context: RunContext, assets: Sequence[dg.AssetsDefinition], storage: str | None = None) -> Iterator[dg.AssetObservation]:
    """Build the observations for all user assets that write a table or lake (bindings).

    Args:
        context: The run context.
        assets: The assets of the code location. Assets that write a table are matched by its name.
        storage: Limit the result to lakes that are reported with this storage's plan.
    """
    written = written_tables(assets)
    lakes = [lake.name for lake in context.config.lakes if written or lake.assets]
    lakes = [lake for lake in lakes if storage in {None, reporting_storage(context, lake)}]
    if not lakes:
        return
    figures = {(item.lake, item.table): item for item in table_figures(context, lakes)}
    for binding in find_bindings(context.config, [(lake, table) for lake, table in figures if table is not None], written):
        if (found := figures.get((binding.lake, binding.table))) is not None:
            yield dg.AssetObservation(binding.key, metadata=_metadata(context, found))


def garbage_checks(config: Config, bindings: Sequence[Binding]) -> list[dg.AssetChecksDefinition]:
    """Build the asset checks for all bindings with a limit for garbage.

    They are one Dagster step, which runs after the plans are created.
    """
    limits = {
        binding.key: (binding, limit)
        for binding in bindings
        if (limit := max_garbage_share(config.lake(binding.lake), binding)) is not None
    }
    if not limits:
        return []
    plans = [asset_key(config, storage.name, DELETION_PLAN) for storage in config.storages]

    @dg.multi_asset_check(
        name=_STEP,
        specs=[dg.AssetCheckSpec(CHECK, asset=key, description=CHECK_DESCRIPTION, additional_deps=plans) for key in limits],
        can_subset=True,
    )
    def run(context: dg.AssetCheckExecutionContext, collector: dg.ResourceParam[Collector]) -> Iterator[dg.AssetCheckResult]:
        keys = sorted(selected.asset_key for selected in context.selected_asset_check_keys)
        # The user's own runs may include this check, and must not fail if the state is unreadable.
        try:
            run_context = _newest_run(collector)
            lakes = {binding.lake for binding, _ in limits.values()}
            figures = {(item.lake, item.table): item for item in table_figures(run_context, lakes)}
        except (GcError, OSError, pa.ArrowException) as error:
            reason = to_page_message(str(error), config)
            yield from (_result(key, False, f"the figures of the table cannot be read: {reason}", {}) for key in keys)
            return
        for key in keys:
            binding, limit = limits[key]
            yield _evaluate(run_context, key, figures.get((binding.lake, binding.table)), limit)

    return [run]


def check_bindings(config: Config, tables: Sequence[tuple[str, str]], own: dg.Definitions | None) -> list[Binding]:
    """Find the bindings of user assets to tables while the code location is being loaded.

    Args:
        config: The configuration.
        tables: The `(lake, table)` pairs of the newest run.
        own: The definitions of the user's project, to find assets that write tables. If None, only
            bindings in `lakes.yaml` are returned.
    """
    if own is None:
        return configured_bindings(config)
    return find_bindings(config, tables, written_tables(list(own.get_repository_def().assets_defs_by_key.values())))


def _project_assets(context: dg.AssetExecutionContext) -> Sequence[dg.AssetsDefinition]:
    """Return all assets of the code location. In tests without a code location, the list is empty."""
    try:
        repository = context.repository_def
    except dg.DagsterError:
        return ()
    except Exception:  # noqa: BLE001  (Dagster raises an internal error without a repository)
        return ()
    return list(repository.assets_defs_by_key.values())


def _newest_run(collector: Collector) -> RunContext:
    """Find the newest complete run, which is neither historical nor a rehearsal.

    The partition of the current step cannot be used, because the user may execute the check with
    assets that are partitioned differently. During a rehearsal, the newest rehearsal is returned.

    Raises:
        GcError: If no run has planned every storage.
    """
    config, clock = collector.platform.config, collector.platform.clock
    state = State.of(config)
    planned = set.intersection(*(set(state.dates(storage.name, DELETION_PLAN.name)) for storage in config.storages))
    # A rehearsal may have published plans for future dates, which have no run context.
    run_dates = sorted((run_date for run_date in planned if run_date <= clock.today()), reverse=True)
    for context in (collector.run_context(run_date.isoformat()) for run_date in run_dates):
        if all(not freeze.historical and freeze.rehearsal == clock.is_rehearsal for freeze in _freezes(context)):
            return context
    raise GcError("no run has planned all storages yet. Run `gc-assets run`.")


def _evaluate(context: RunContext, key: dg.AssetKey, found: TableFigures | None, limit: float) -> dg.AssetCheckResult:
    if found is None:
        return _result(key, False, f"the run of {context.run_date} has no figures for the table. See gc-assets blame.", {})
    metadata = {**_metadata(context, found), "max_garbage_share": limit}
    if found.unreadable is not None:
        passed, text = False, f"the table is unreadable: {found.unreadable}. Run gc-assets doctor."
    else:
        unneeded, passed = format_bytes(found.garbage.bytes + found.expired.bytes), found.garbage_share <= limit
        text = f"{found.garbage_share:.1%} of the bytes are garbage or expired history ({unneeded}); at most {limit:.1%} are allowed"
    return _result(key, passed, mark_rehearsal(text, context.clock.is_rehearsal), metadata)


def _result(key: dg.AssetKey, passed: bool, description: str, metadata: dict[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=passed, asset_key=key, check_name=CHECK, severity=dg.AssetCheckSeverity.WARN, description=description, metadata=metadata
    )


def _metadata(context: RunContext, found: TableFigures) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        **rehearsal_metadata(context),
        "live_bytes": found.live.bytes,
        "live_files": found.live.files,
        "garbage_bytes": found.garbage.bytes,
        "garbage_files": found.garbage.files,
        "expired_bytes": found.expired.bytes,
        "expired_files": found.expired.files,
        "garbage_share": round(found.garbage_share, 6),
        "snapshots": found.snapshots,
        "expiring_snapshots": found.expiring,
    }
    if found.reclaimable_usd is not None:
        metadata["reclaimable_usd"] = found.reclaimable_usd
    if found.small_files is not None:
        metadata["small_files"] = found.small_files
    if found.unreadable is not None:
        metadata["unreadable"] = found.unreadable
    return {**metadata, "gc_lake": found.lake, "gc_table": found.table or "", "gc_run_date": context.run_date.isoformat()}
