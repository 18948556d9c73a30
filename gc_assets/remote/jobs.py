"""Start remote jobs and yield their reports.

A job runs `gc_assets/job`. Dagster Pipes exchanges its request and reports in local files or S3
objects. No arguments are passed on the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg

from gc_assets.core.errors import UsageError
from gc_assets.remote.job_request import JobReport, JobRequest, refuse_literal_secrets
from gc_assets.resources.platform import Platform


@dataclass(frozen=True)
class Jobs:
    """Starts jobs for a platform. `as_of` and `first` come from the Dagster definitions."""

    platform: Platform
    as_of: datetime | None
    first: date

    def run(self, context: dg.AssetExecutionContext | dg.OpExecutionContext, **request: Any) -> Iterator[JobReport]:
        """Run a job and yield its reports. If the iteration is interrupted, the job is stopped.

        Raises:
            UsageError: If the job cannot be started.
            GcError: If the job failed.
        """
        config = self.platform.config
        spark = config.spark
        job_request = JobRequest.from_platform(self.platform, self.as_of, self.first, **request)
        if spark.mode != "submit":  # with spark-submit, the request does not leave this machine
            refuse_literal_secrets(Path(job_request.path), job_request.text)
        extras = {"request": job_request.model_dump(mode="json")}
        # The modules are imported here, because each import takes seconds.
        if spark.emr_serverless is not None and spark.mode == "emr_serverless":
            from gc_assets.remote.emr_serverless import run_job

            reports = run_job(spark.emr_serverless, config.connections(), context, extras)
        elif spark.databricks is not None and spark.mode == "databricks":
            if find_spec("dagster_databricks") is None:
                raise UsageError("spark.mode databricks needs additional libraries. Run pip install 'gc-assets[databricks]'.")
            from gc_assets.remote import databricks

            reports = databricks.run_job(spark.databricks, config.connections(), context, extras)
        else:
            from gc_assets.remote.spark_submit import run_job

            reports = run_job(spark, context, extras)
        yield from (JobReport.model_validate(payload) for payload in reports)
