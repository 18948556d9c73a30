"""How jobs that run Spark elsewhere are started."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from gc_assets.config.values import Model

DEPLOY_MODE: Final = "spark.submit.deployMode"
CLIENT: Final = "client"


class EmrServerless(Model):
    """An application of EMR Serverless, and what a job run of it is started with."""

    application_id: str = Field(min_length=1, description="The application.")
    execution_role_arn: str = Field(pattern=r"^arn:[a-z0-9-]+:iam::\d*:role/.+$", description="The role that the job runs as.")
    entry_point: str = Field(pattern=r"^s3://[^/]+/.+$", description="Where `gc_assets/job/__main__.py` was uploaded to.")
    exchange: str = Field(
        pattern=r"^s3://[^/]+(/.*)?$", description="Where Dagster and the job exchange what is asked and what is reported."
    )
    parameters: str = Field(default="", description="Parameters of spark-submit, such as `--conf spark.executor.memory=8g`.")
    region: str | None = Field(default=None, description="Default: the environment's or the profile's.")


class Databricks(Model):
    """A workspace of Databricks, and what a run there is started with. Who Dagster is to it, the
    environment says.
    """

    host: str | None = Field(
        default=None,
        pattern=r"^https://[^/@\s]+/?$",
        description="The workspace, such as https://dbc-0123.cloud.databricks.com. Default: the environment's (DATABRICKS_HOST).",
    )
    entry_point: str = Field(
        pattern=r"^(/|dbfs:/|s3://[^/]+/).+$",
        description="Where `gc_assets/job/__main__.py` was uploaded to: /Workspace/…, /Volumes/…, s3://…",
    )
    exchange: str = Field(
        pattern=r"^s3://[^/]+(/.*)?$", description="Where Dagster and the job exchange what is asked and what is reported."
    )
    cluster: dict[str, Any] = Field(description="The cluster of each run, as the Jobs API has it in `new_cluster`.")
    libraries: tuple[dict[str, Any], ...] = Field(default=(), description="Libraries of that cluster, as the Jobs API has them.")
