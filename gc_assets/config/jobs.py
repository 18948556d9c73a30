"""Settings for running Spark jobs on EMR Serverless or Databricks."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from gc_assets.config.values import Model

DEPLOY_MODE: Final = "spark.submit.deployMode"
CLIENT: Final = "client"


class EmrServerless(Model):
    """EMR Serverless application with its job run parameters."""

    application_id: str = Field(min_length=1, description="The application.")
    execution_role_arn: str = Field(pattern=r"^arn:[a-z0-9-]+:iam::\d*:role/.+$", description="The role that the job runs as.")
    entry_point: str = Field(pattern=r"^s3://[^/]+/.+$", description="Address of the uploaded `gc_assets/job/__main__.py`.")
    exchange: str = Field(pattern=r"^s3://[^/]+(/.*)?$", description="Directory in which Dagster and the job exchange requests and events.")
    parameters: str = Field(default="", description="Parameters of spark-submit, such as `--conf spark.executor.memory=8g`.")
    region: str | None = Field(default=None, description="Default: from the environment or the profile.")


class Databricks(Model):
    """Databricks workspace with its run parameters. Credentials come from the environment."""

    host: str | None = Field(
        default=None,
        pattern=r"^https://[^/@\s]+/?$",
        description="The workspace, such as https://dbc-0123.cloud.databricks.com. Default: DATABRICKS_HOST.",
    )
    entry_point: str = Field(
        pattern=r"^(/|dbfs:/|s3://[^/]+/).+$",
        description="Path of the uploaded `gc_assets/job/__main__.py`: /Workspace/…, /Volumes/…, s3://…",
    )
    exchange: str = Field(pattern=r"^s3://[^/]+(/.*)?$", description="Directory in which Dagster and the job exchange requests and events.")
    cluster: dict[str, Any] = Field(description="The cluster of each run, in the format of `new_cluster` of the Jobs API.")
    libraries: tuple[dict[str, Any], ...] = Field(default=(), description="Libraries of the cluster, in the format of the Jobs API.")
