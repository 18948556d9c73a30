"""Run Dagster steps as remote jobs (`spark.mode`), so that Dagster itself needs no Spark.

The assets, checks and op configurations stay the same. A job executes the steps, and Dagster
repeats the job's events. Because starting Spark takes seconds to minutes, all steps of a run that
delete nothing are combined into one step, which starts one job.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date
from typing import Any, Final, cast

import dagster as dg

from gc_assets.assets.asset_step import SPARK_POOL
from gc_assets.assets.deletion_log import DELETE_POOL
from gc_assets.assets.failures import StepFailure, translate_errors
from gc_assets.assets.names import owner_and_table
from gc_assets.core.errors import GcError, StateError, UsageError
from gc_assets.lakes.kinds import all_tables
from gc_assets.remote.jobs import Jobs

STEP_NAME: Final = "spark_job"
DATA_VERSION: Final = "dagster/data_version"
TABLE_URI: Final = "dagster/uri"


def remote_steps(assets: Sequence[dg.AssetsDefinition], jobs: Jobs) -> list[dg.AssetsDefinition]:
    """Return assets computed by remote jobs. Steps that delete files stay separate steps."""
    deleting = [asset for asset in assets if asset.op.pool == DELETE_POOL]
    others = [asset for asset in assets if asset not in deleting]
    return [
        _remote_step(STEP_NAME, others, SPARK_POOL, jobs),
        *(_remote_step(asset.op.name, [asset], DELETE_POOL, jobs) for asset in deleting),
    ]


def remote_jobs(defined: Sequence[dg.JobDefinition], jobs: Jobs) -> list[dg.JobDefinition]:
    """Return the same Dagster jobs, but with ops that need Spark executed by remote jobs."""
    return [_remote_job(job, jobs) if cast(dg.OpDefinition, job.nodes[0].definition).pool is not None else job for job in defined]


def _remote_step(name: str, assets: Sequence[dg.AssetsDefinition], pool: str, jobs: Jobs) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=name,
        specs=[spec for asset in assets for spec in asset.specs],
        check_specs=[check for asset in assets for check in asset.check_specs],
        can_subset=len(assets) > 1,
        pool=pool,
        config_schema=_config_schema(assets[0].op) if len(assets) == 1 else None,
    )
    def run(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        keys = sorted(tuple(key.path) for key in context.selected_asset_keys)
        if not keys:
            checks = ", ".join(sorted(f"{key.name} of {key.asset_key.to_user_string()}" for key in context.selected_asset_check_keys))
            raise UsageError(f"no table is selected, but a job only checks tables that it publishes ({checks}). Select the tables too.")
        request = {"run_date": context.partition_key, "assets": keys, "ops": _op_config(name, context.run)}
        left, failed = set(context.selected_asset_keys), list[str]()
        with translate_errors(retry_io=False), closing(_job_events(context, jobs, request)) as events:
            for event in events:
                match event:
                    case dg.AssetMaterialization() if event.asset_key in left:
                        left.remove(event.asset_key)
                        yield _build_result(event, jobs, context.partition_key)
                    case dg.AssetCheckEvaluation():
                        failed += [] if event.passed else [f"{event.check_name} of {event.asset_key.to_user_string()}"]
                        yield _build_check(event)
                    case _:
                        context.log_event(event)
            if left:
                missing = ", ".join(sorted(key.to_user_string() for key in left))
                raise GcError(f"the job did not publish {missing}. Failed checks: {', '.join(failed) or 'none'}.")

    return run


def _remote_job(defined: dg.JobDefinition, jobs: Jobs) -> dg.JobDefinition:
    op = cast(dg.OpDefinition, defined.nodes[0].definition)

    @dg.op(name=op.name, description=op.description, pool=op.pool, config_schema=_config_schema(op))
    def run(context: dg.OpExecutionContext) -> Iterator[Any]:
        metadata: dict[str, Any] = {}
        request = {"job": defined.name, "ops": _op_config(op.name, context.run)}
        with translate_errors(retry_io=False), closing(_job_events(context, jobs, request)) as events:
            for event in events:
                if isinstance(event, dict):
                    metadata |= event
                else:
                    yield event
        yield dg.Output(None, metadata=metadata)

    choices: Any = defined.partitioned_config

    @dg.job(name=defined.name, description=defined.description, tags=defined.tags, config=choices)
    def job() -> None:
        run()

    return job


def _config_schema(op: dg.OpDefinition) -> dict[str, Any]:
    """Return the configuration fields of an op."""
    return dict(getattr(op.config_schema.config_type, "fields", {}))


def _op_config(op: str, run: dg.DagsterRun) -> dict[str, Any]:
    """Return the configuration of an op in a run."""
    ops = cast(Mapping[str, Any], run.run_config.get("ops", {}))
    return {op: ops[op]} if op in ops else {}


def _job_events(context: dg.AssetExecutionContext | dg.OpExecutionContext, jobs: Jobs, request: dict[str, Any]) -> Generator[Any]:
    """Yield the events and metadata of a remote job while it runs.

    Closing the generator stops the job. A failed check does not raise an error here, because its
    result is repeated in Dagster, which then ends the step.

    Raises:
        dg.Failure: With the errors of the failed steps.
        GcError: If the job did not finish.
    """
    stopped, is_done = list[StepFailure](), False
    try:
        for report in jobs.run(context, **request):
            is_done |= report.done
            if report.failure is not None:
                stopped.append(report.failure)
            for text in (report.event, report.metadata):
                if text is not None:
                    yield dg.deserialize_value(text)
    except GcError:
        if not stopped:
            raise  # otherwise the reported failures are the better explanation
    if causes := [cause for cause in stopped if not cause.checks]:
        metadata = {"error": causes[0].error, "exit_code": causes[0].exit_code}
        raise dg.Failure("\n".join(cause.text for cause in causes), metadata=metadata, allow_retries=False)
    if not stopped and not is_done:
        raise GcError("the job ended, but its last report did not arrive. Run it again.")


def _build_result(event: dg.AssetMaterialization, jobs: Jobs, partition_key: str) -> dg.MaterializeResult:
    """Build the result for a table published by a job.

    Raises:
        StateError: If Dagster's process cannot find the table in the state.
    """
    # If an asset has published no table, Dagster generates a version, but there is no address.
    version = (event.tags or {}).get(DATA_VERSION) if TABLE_URI in event.metadata else None
    owner, name = owner_and_table(event.asset_key)
    if version is not None:
        run_context = jobs.platform.run_context(date.fromisoformat(partition_key), jobs.as_of)
        published = run_context.find(all_tables()[name], owner)
        if published is None or published.receipt.digest != version:
            raise StateError(
                f"a job published {owner}/{name} of {partition_key}, but it is missing in the state {jobs.platform.config.state} on "
                "Dagster's machine. `state` must be one location for Dagster and its jobs, such as s3://bucket/prefix."
            )
    return dg.MaterializeResult(
        asset_key=event.asset_key, metadata=event.metadata, data_version=dg.DataVersion(version) if version is not None else None
    )


def _build_check(event: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=event.passed,
        asset_key=event.asset_key,
        check_name=event.check_name,
        metadata=event.metadata,
        severity=event.severity,
        description=event.description,
    )
