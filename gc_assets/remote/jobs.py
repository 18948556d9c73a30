"""Starts jobs elsewhere, and hands on what they report while they run.

A job runs `gc_assets/job`. What it is asked for and what it reports goes through Dagster Pipes:
by files of this machine, or by objects of S3. Nothing of it stands on a command line.
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
    """The jobs of a platform. `as_of` and `first` are those of its definitions."""

    platform: Platform
    as_of: datetime | None
    first: date

    def run(self, context: dg.AssetExecutionContext | dg.OpExecutionContext, **asked: Any) -> Iterator[JobReport]:
        """Runs one job to its end, and yields what it reports meanwhile. Where this is interrupted the
        job is ended too.

        Raises `UsageError` where no job can be started, and `GcError` where it ended badly.
        """
        config = self.platform.config
        spark = config.spark
        request = JobRequest.from_platform(self.platform, self.as_of, self.first, **asked)
        if spark.mode != "submit":  # whose request stays on this machine
            refuse_literal_secrets(Path(request.path), request.text)
        extras = {"request": request.model_dump(mode="json")}
        # Each of them takes seconds to import.
        if spark.emr_serverless is not None and spark.mode == "emr_serverless":
            from gc_assets.remote.emr_serverless import run_job

            said = run_job(spark.emr_serverless, config.places(), context, extras)
        elif spark.databricks is not None and spark.mode == "databricks":
            if find_spec("dagster_databricks") is None:
                raise UsageError("spark.mode databricks needs libraries of its own: pip install 'gc-assets[databricks]'")
            from gc_assets.remote import databricks

            said = databricks.run_job(spark.databricks, config.places(), context, extras)
        else:
            from gc_assets.remote.spark_submit import run_job

            said = run_job(spark, context, extras)
        yield from (JobReport.model_validate(payload) for payload in said)
