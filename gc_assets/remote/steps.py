"""Steps that run as jobs elsewhere, where `spark.mode` says so. The Dagster process starts no Spark.

The assets, their checks and the ops' configurations stay what they are. A job runs their bodies,
and its events are repeated here while it runs. The boxes of a night become one step, and so one
job: each start of Spark costs seconds to minutes.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date
from typing import Any, Final, cast

import dagster as dg

from gc_assets.assets.asset_step import SPARK_POOL
from gc_assets.assets.deletion_log import DELETE_POOL
from gc_assets.assets.failures import StepFailure, translate_errors
from gc_assets.core.errors import GcError, StateError, UsageError
from gc_assets.lakes.kinds import all_tables
from gc_assets.remote.jobs import Jobs

STEP_NAME: Final = "spark_job"
DATA_VERSION: Final = "dagster/data_version"
TABLE_URI: Final = "dagster/uri"


def remote_steps(assets: Sequence[dg.AssetsDefinition], jobs: Jobs) -> list[dg.AssetsDefinition]:
    """Returns the same assets, made by jobs. A step that deletes stays a step of its own."""
    deleting = [asset for asset in assets if asset.op.pool == DELETE_POOL]
    boxes = [asset for asset in assets if asset not in deleting]
    return [
        _remote_step(STEP_NAME, boxes, SPARK_POOL, jobs),
        *(_remote_step(asset.op.name, [asset], DELETE_POOL, jobs) for asset in deleting),
    ]


def remote_jobs(defined: Sequence[dg.JobDefinition], jobs: Jobs) -> list[dg.JobDefinition]:
    """Returns the same jobs of Dagster. Those of an op that needs Spark run elsewhere."""
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
            raise UsageError(f"no table is asked for, and checks judge a table while its job makes it ({checks}): select the tables too")
        asked = {"run_date": context.partition_key, "assets": keys, "ops": _op_config(name, context.run)}
        left, failed = set(context.selected_asset_keys), list[str]()
        with translate_errors(retry_io=False), closing(_job_events(context, jobs, asked)) as told:
            for said in told:
                match said:
                    case dg.AssetMaterialization() if said.asset_key in left:
                        left.remove(said.asset_key)
                        yield _build_result(said, jobs, context.partition_key)
                    case dg.AssetCheckEvaluation():
                        failed += [] if said.passed else [f"{said.check_name} of {said.asset_key.to_user_string()}"]
                        yield _build_check(said)
                    case _:
                        context.log_event(said)
            if left:
                missing = ", ".join(sorted(key.to_user_string() for key in left))
                raise GcError(f"failed checks: {', '.join(failed) or 'none'}. So the job did not make {missing}")

    return run


def _remote_job(defined: dg.JobDefinition, jobs: Jobs) -> dg.JobDefinition:
    op = cast(dg.OpDefinition, defined.nodes[0].definition)

    @dg.op(name=op.name, description=op.description, pool=op.pool, config_schema=_config_schema(op))
    def run(context: dg.OpExecutionContext) -> Iterator[Any]:
        metadata: dict[str, Any] = {}
        asked = {"job": defined.name, "ops": _op_config(op.name, context.run)}
        with translate_errors(retry_io=False), closing(_job_events(context, jobs, asked)) as told:
            for said in told:
                if isinstance(said, dict):
                    metadata |= said
                else:
                    yield said
        yield dg.Output(None, metadata=metadata)

    @dg.job(name=defined.name, description=defined.description, tags=defined.tags)
    def job() -> None:
        run()

    return job


def _config_schema(op: dg.OpDefinition) -> dict[str, Any]:
    """Returns the keys that an op is configured by."""
    return dict(getattr(op.config_schema.config_type, "fields", {}))


def _op_config(op: str, run: dg.DagsterRun) -> dict[str, Any]:
    """Returns what somebody launched the run with for this op, as it was written."""
    ops = cast(Mapping[str, Any], run.run_config.get("ops", {}))
    return {op: ops[op]} if op in ops else {}


def _job_events(context: dg.AssetExecutionContext | dg.OpExecutionContext, jobs: Jobs, asked: dict[str, Any]) -> Generator[Any]:
    """Yields the events and the metadata of a job while it runs. Who stops listening ends the job.

    Raises `dg.Failure` with what stopped its steps, and `GcError` where it did not come to its end.
    A failed check stops nothing here: Dagster ends this step by it, as it ended that of the job.
    """
    stopped, is_done = list[StepFailure](), False
    try:
        for report in jobs.run(context, **asked):
            is_done |= report.done
            if report.failure is not None:
                stopped.append(report.failure)
            for text in (report.event, report.metadata):
                if text is not None:
                    yield dg.deserialize_value(text)
    except GcError:
        if not stopped:
            raise  # else a job that was stopped says why, and that it ended badly is no news
    if causes := [cause for cause in stopped if not cause.checks]:
        metadata = {"error": causes[0].error, "exit_code": causes[0].exit_code}
        raise dg.Failure("\n".join(cause.text for cause in causes), metadata=metadata, allow_retries=False)
    if not stopped and not is_done:
        raise GcError("the job ended, and what it reported last did not arrive here: run it again")


def _build_result(said: dg.AssetMaterialization, jobs: Jobs, partition_key: str) -> dg.MaterializeResult:
    """Returns the table that a job published. Raises `StateError` where the state, as it is seen
    here, does not hold it.
    """
    # Dagster makes up a version for what published nothing, and so has no address.
    version = (said.tags or {}).get(DATA_VERSION) if TABLE_URI in said.metadata else None
    owner, name = said.asset_key.path
    if version is not None:
        run_context = jobs.platform.run_context(date.fromisoformat(partition_key), jobs.as_of)
        published = run_context.find(all_tables()[name], owner)
        if published is None or published.receipt.digest != version:
            raise StateError(
                f"a job published {owner}/{name} of {partition_key}, and the state {jobs.platform.config.state} does not hold it as "
                "seen from here: `state` must be one place for Dagster and for its jobs, such as s3://bucket/prefix"
            )
    return dg.MaterializeResult(
        asset_key=said.asset_key, metadata=said.metadata, data_version=dg.DataVersion(version) if version is not None else None
    )


def _build_check(said: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=said.passed,
        asset_key=said.asset_key,
        check_name=said.check_name,
        metadata=said.metadata,
        severity=said.severity,
        description=said.description,
    )
