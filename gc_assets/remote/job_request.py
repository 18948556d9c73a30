"""Define the request to a remote job and the job's reports, which Dagster Pipes exchanges as JSON.

The request contains the text of `lakes.yaml` with its `${NAME}` references. The job resolves these
in its own environment, so no secrets are sent.
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
from gc_assets.config.models import ListingConfig, StorageConfig
from gc_assets.config.values import Model
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.secret_names import contains_literal_secret
from gc_assets.engine.recorded_names import with_recorded_names
from gc_assets.resources.platform import Platform, read_config
from gc_assets.resources.spark_version import require_supported

# Addresses and headers of notifications are secrets, whatever their names are.
_NOTIFICATION_SECRET: Final = re.compile(r"notify\[\d+\]\.(url$|headers\.)")


class JobRequest(Model):
    """A request to materialize assets of one run date, or to execute a Dagster job."""

    versions: dict[str, str]
    path: str
    text: str
    state: str
    policy_digest: str
    modes: dict[str, Literal["plan", "apply"]]
    listings: dict[str, timedelta | None]
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
            raise ValueError("a request must contain either assets or a job")
        return self

    @classmethod
    def from_platform(cls, platform: Platform, as_of: datetime | None, first: date, **request: Any) -> Self:
        """Build a request from a platform.

        Raises:
            UsageError: If the configuration file cannot be read.
        """
        path = platform.path.resolve()
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"Cannot read {path}, whose text is sent with the job: {error.strerror}") from None
        return cls(
            versions=versions(),
            path=str(path),
            text=text,
            state=platform.config.state,
            policy_digest=platform.config.policy_digest(),
            modes={storage.name: storage.mode for storage in platform.config.storages},
            listings={storage.name: storage.listing and storage.listing.every for storage in platform.config.storages},
            now=platform.clock.fixed,
            unsafe=platform.unsafe,
            as_of=as_of,
            first=first,
            **request,
        )

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Parse a request.

        Raises:
            UsageError: If a package has different versions in the job and in Dagster, or if the
                job's version of Spark is not supported.
        """
        require_supported(pyspark.__version__, "the job")
        local, requested = versions(), dict(document.get("versions", {}))
        if local != requested:
            ours, theirs = (", ".join(f"{name} {version}" for name, version in sorted(side.items())) for side in (local, requested))
            raise UsageError(f"the job has {ours}, but Dagster has {theirs}. Install the same versions on both machines.")
        return cls.model_validate(document)

    def platform(self, environment: Mapping[str, str]) -> Platform:
        """Return the platform (configuration and clock) on the job's machine.

        Raises:
            UsageError: If the policy or the state differs from that in Dagster.
        """
        # Grace periods do not have to be checked again: Dagster has done so, and the policy digest
        # includes them.
        config = with_recorded_names(read_config(Path(self.path), environment, timedelta(0), self.text))
        if config.policy_digest() != self.policy_digest:
            raise UsageError(
                f"{self.path} has another policy on the job's machine than in Dagster. If the file was changed, reload the code "
                "location. Otherwise give its variables the same values on both machines."
            )
        if config.state != self.state:
            raise UsageError(
                f"{self.path} has the state {config.state} on the job's machine, but {self.state} in Dagster. If the file was changed, "
                "reload the code location. Otherwise give the variables of `state` the same values on both machines."
            )
        storages = tuple(self._with_choices(storage) for storage in config.storages)
        platform = Platform(config, Clock(self.now), self.unsafe, Path(self.path))
        return replace(platform, config=config.model_copy(update={"storages": storages}))

    def _with_choices(self, storage: StorageConfig) -> StorageConfig:
        every = self.listings[storage.name]
        listing = None if every is None else ListingConfig(every=every)
        return storage.model_copy(update={"mode": self.modes[storage.name], "listing": listing})


class JobReport(Model):
    """A report of a running job: an event, the metadata of an op, the error of a step, or the end.

    Attributes:
        event: A Dagster event, serialized with `dg.serialize_value`.
        metadata: The output metadata of an op, serialized with `dg.serialize_value`.
        failure: The error that made a step fail.
        done: True if the job has finished successfully.
    """

    event: str | None = None
    metadata: str | None = None
    failure: StepFailure | None = None
    done: bool = False


def refuse_literal_secrets(path: Path, text: str) -> None:
    """Refuse a configuration that contains secrets, because its text is sent with the request.

    Raises:
        UsageError: If the text contains a secret instead of a reference.
    """
    found = [path_in_file for path_in_file, value in _strings(yaml.safe_load(text), "") if _is_secret(path_in_file, value)]
    if found:
        raise UsageError(
            f"{path}: literal secrets in {', '.join(found)}. The whole file is sent with the job request, so secrets must be references. "
            "Use ${NAME}, and set that variable for Dagster and on the job's machine (docs/managed_spark.md)."
        )


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}[{index}]")
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, str(value)


def _is_secret(path: str, value: str) -> bool:
    name = f"{path}.secret" if _NOTIFICATION_SECRET.match(path) else path
    return contains_literal_secret(name, value)


def versions() -> dict[str, str]:
    """Return the versions of the packages that must be equal in Dagster and in a job."""
    return {"gc-assets": gc_assets.__version__, "dagster": dg.__version__}
