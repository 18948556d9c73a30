"""What a job elsewhere is asked for, and what it reports: values of JSON, exchanged by Dagster
Pipes.

The job gets the text of `lakes.yaml` with its `${NAME}`. Their values come from the environment of
the job's own machine, so no secret goes along.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self

import dagster as dg
import pyspark
import yaml
from pydantic import Field, model_validator

import gc_assets
from gc_assets.assets.failures import StepFailure
from gc_assets.config.values import Model
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.resources.platform import Platform, read_config

# Keys whose value is a secret, and addresses with a password. `credentials.provider` names a class.
_SECRET_KEY: Final = re.compile(
    r"(secret|password|passphrase|token|credential|(secret|account|plan)[a-z._-]*key)$|^notify\[\d+\]\.(url$|headers\.)", re.IGNORECASE
)
_WITH_PASSWORD: Final = re.compile(r"[a-z0-9+.-]+://[^/@:]*:[^/@]+@", re.IGNORECASE)
# What is replaced where a job runs: a variable, or a secret of Databricks.
_REFERENCE: Final = re.compile(r"\$\{|\{\{secrets/[^{}]+\}\}")


class JobRequest(Model):
    """Assets of one run date or, where `job` is named, that job of the code location."""

    versions: dict[str, str]
    path: str
    text: str
    state: str
    policy_digest: str
    modes: dict[str, Literal["plan", "apply"]]
    full_every: int
    now: datetime | None
    unsafe: tuple[str, ...]
    as_of: datetime | None
    first: date
    run_date: str | None = None
    assets: tuple[tuple[str, ...], ...] = ()
    job: str | None = None
    ops: dict[str, Any] = Field(default_factory=dict[str, Any])

    @model_validator(mode="after")
    def _names_assets_or_job(self) -> Self:
        if bool(self.assets) == (self.job is not None):
            raise ValueError("a request names assets or a job, and not both: without either a job would make every asset there is")
        return self

    @classmethod
    def from_platform(cls, platform: Platform, as_of: datetime | None, first: date, **asked: Any) -> Self:
        """Returns the request of a platform. Raises `UsageError` where its file cannot be read."""
        path = platform.path.resolve()
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be read, and a job runs by what it says: {error.strerror}") from None
        return cls(
            versions=versions(),
            path=str(path),
            text=text,
            state=platform.config.state,
            policy_digest=platform.config.policy_digest(),
            modes={storage.name: storage.mode for storage in platform.config.storages},
            full_every=platform.config.full_every,
            now=platform.clock.fixed,
            unsafe=platform.unsafe,
            as_of=as_of,
            first=first,
            **asked,
        )

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Returns the request of a JSON document. Raises `UsageError` where the packages here are of
        other versions than those of Dagster's machine.
        """
        here, there = versions(), dict(document.get("versions", {}))
        if here != there:
            ours, theirs = (", ".join(f"{name} {version}" for name, version in sorted(side.items())) for side in (here, there))
            raise UsageError(f"this job has {ours}, and Dagster, which asked for it, has {theirs}; install the same versions on both sides")
        return cls.model_validate(document)

    def platform(self, environment: Mapping[str, str]) -> Platform:
        """Returns the platform on the machine of the job. Raises `UsageError` where the configuration
        asks for something else here.
        """
        # Dagster has compared the grace periods with its floor, and the digests hold them.
        config = read_config(Path(self.path), environment, timedelta(0), self.text)
        if config.policy_digest() != self.policy_digest:
            raise UsageError(
                f"{self.path} asks for another policy where the job runs than where Dagster runs: either the file was changed since "
                "Dagster loaded it, and the code location is to be reloaded, or a variable that it names has another value here"
            )
        if config.state != self.state:
            raise UsageError(
                f"{self.path} names the state {config.state} where the job runs, and {self.state} where Dagster runs: reload the code "
                "location if the file was changed, or give the variable that `state` names the same value on both sides"
            )
        storages = tuple(storage.model_copy(update={"mode": self.modes[storage.name]}) for storage in config.storages)
        platform = Platform(config, Clock(self.now), self.unsafe, Path(self.path))
        return replace(platform, config=config.model_copy(update={"storages": storages, "full_every": self.full_every}))


class JobReport(Model):
    """What a job reports while it runs: an event of Dagster, the metadata that an op ends with, what
    stopped a step, or that all is done. Events and metadata are in Dagster's own words
    (`dg.serialize_value`).
    """

    event: str | None = None
    metadata: str | None = None
    failure: StepFailure | None = None
    done: bool = False


def refuse_literal_secrets(path: Path, text: str) -> None:
    """Raises `UsageError` for a secret that stands in the text of a configuration by its value. The
    text goes along with a request, to where others may read it.
    """
    found = [where for where, value in _strings(yaml.safe_load(text), "") if _is_secret(where, value)]
    if found:
        raise UsageError(
            f"{path}: {', '.join(found)}: a secret stands there by its value, and a job's request holds the whole file. Write ${{NAME}}, "
            "and give Dagster and the job's machine that variable (docs/managed_spark.md)"
        )


def _strings(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{where}[{index}]")
    elif isinstance(value, str):
        yield where, value


def _is_secret(where: str, value: str) -> bool:
    return (
        _REFERENCE.search(value) is None
        and bool(value)
        and (_SECRET_KEY.search(where) is not None or _WITH_PASSWORD.match(value) is not None)
    )


def versions() -> dict[str, str]:
    """Returns the versions that Dagster and a job of it must have in common. Of Spark that is the
    minor version: a service has its own build of it.
    """
    return {"gc-assets": gc_assets.__version__, "dagster": dg.__version__, "spark": ".".join(pyspark.__version__.split(".")[:2])}
