"""Where Spark work runs (`spark:` in `lakes.yaml`)."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from gc_assets.config.values import Model

DEPLOY_MODE: Final = "spark.submit.deployMode"


class EmrServerless(Model):
    """An application of EMR Serverless, and what a job run of it is started with."""

    application_id: str = Field(min_length=1, description="The application.")
    execution_role_arn: str = Field(pattern=r"^arn:[a-z0-9-]+:iam::\d*:role/.+$", description="The role that the job runs as.")
    entry_point: str = Field(pattern=r"^s3://[^/]+/.+$", description="Where `gc_assets/job/__main__.py` was uploaded to.")
    exchange: str = Field(
        pattern=r"^s3://[^/]+(/.*)?$", description="Where this process and the job exchange what is asked and what is reported."
    )
    parameters: str = Field(default="", description="Parameters of spark-submit, such as `--conf spark.executor.memory=8g`.")
    region: str | None = Field(default=None, description="Default: the environment's or the profile's.")


class SparkConfig(Model):
    """Where Spark work runs."""

    mode: Literal["session", "connect", "submit", "emr_serverless"] = "session"
    master: str = Field(default="local[*]", description="For `session` and `submit`: the Spark master.")
    remote: str = Field(default="local[*]", description="For `connect`: sc://host:port, or local[N] for pyspark's reusable local server.")
    conf: dict[str, str] = Field(default_factory=dict[str, str], description="Further Spark settings.")
    class_archive: bool = Field(
        default=True,
        description="A JVM that is started here maps the archive of Spark's classes that `make env` wrote, where there is one.",
    )
    s3a: bool = Field(default=False, description="Spark has hadoop-aws, and reads a state on S3 by itself instead of through Python.")
    submit_program: str | None = Field(
        default=None, min_length=1, description="For `submit`: a spark-submit by its path, or by its name on PATH. Default: pyspark's own."
    )
    emr_serverless: EmrServerless | None = Field(default=None, description="For `emr_serverless`.")

    @property
    def in_jobs(self) -> bool:
        """True if Dagster's steps start jobs elsewhere, and no Spark of their own."""
        return self.mode in {"submit", "emr_serverless"}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.mode == "emr_serverless" and self.emr_serverless is None:
            raise ValueError("mode emr_serverless needs the key emr_serverless with application_id, execution_role_arn and others")
        if self.mode == "submit" and self.conf.get(DEPLOY_MODE, "client") != "client":
            raise ValueError(f"mode submit keeps the driver on this machine; take {DEPLOY_MODE} out of conf")
        return self
