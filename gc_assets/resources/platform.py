"""Load the configuration and everything else that depends on environment variables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gc_assets.config.file import load_config
from gc_assets.config.models import GRACE_FLOOR, Config
from gc_assets.core.clock import Clock
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.errors import GcError, StateError, UsageError
from gc_assets.core.units import format_duration, parse_duration
from gc_assets.lakes.kinds import config_models
from gc_assets.stores.store import find_unsupported_settings

if TYPE_CHECKING:
    from gc_assets.engine.run_context import RunContext

CONFIG_VARIABLE: Final = "GC_ASSETS_CONFIG"
NOW_VARIABLE: Final = "GC_ASSETS_UNSAFE_NOW"
FLOOR_VARIABLE: Final = "GC_ASSETS_UNSAFE_GRACE_FLOOR"
DEFAULT_CONFIG: Final = "lakes.yaml"
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Platform:
    """A configuration with the settings from environment variables.

    Attributes:
        config: The configuration.
        clock: The clock, which is fixed in a rehearsal.
        unsafe: Safety limits lowered by environment variables, as phrases for messages.
        path: The path of the configuration file.
        names_error: Why the recorded names of lakes and storages could not be read, or None.
    """

    config: Config
    clock: Clock
    unsafe: tuple[str, ...]
    path: Path
    names_error: str | None = None

    night = RenamedAttribute("run_context")

    def run_context(self, run_date: date, as_of: datetime | None = None) -> RunContext:
        """Create the context for a run date.

        Raises:
            UsageError: If the date is outside the partitions.
            StateError: If the names recorded in the state could not be read (`names_error`).
        """
        if self.names_error is not None:
            raise StateError(f"{self.names_error}. Reload the code location when the state is readable.")
        from gc_assets.engine.run_context import RunContext

        return RunContext.of(self.config, self.clock, run_date, as_of, self.unsafe)


def config_path(environment: Mapping[str, str], given: str | None = None) -> Path:
    """Choose the configuration file: `given`, `$GC_ASSETS_CONFIG` or `./lakes.yaml`."""
    return Path(given or environment.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)


def load_platform(environment: Mapping[str, str], given: str | None = None, *, require_names: bool = True) -> Platform:
    """Load the configuration and the clock.

    Args:
        environment: The environment variables.
        given: The path of the configuration, if the user has specified one.
        require_names: Whether to raise an error if the names recorded in the state cannot be read.
            With False, Dagster can load the code location although the state is unreadable.
            Creating a run context fails in this case.

    Raises:
        UsageError: If the configuration or a variable is invalid.
        StateError: If the names in the state cannot be read and `require_names` is True.
    """
    path = config_path(environment, given)
    floor, unsafe = GRACE_FLOOR, []
    if environment.get(FLOOR_VARIABLE):
        try:
            floor = parse_duration(environment[FLOOR_VARIABLE])
        except ValueError as error:
            raise UsageError(f"Cannot read {FLOOR_VARIABLE}: {error}") from None
        if floor < GRACE_FLOOR:
            unsafe.append(f"{FLOOR_VARIABLE} lowers the minimum grace period to {format_duration(floor)}")
    clock = clock_of(environment)
    if clock.fixed is not None:
        unsafe.append(f"{NOW_VARIABLE} sets the clock to {clock.now().isoformat()}")
    from gc_assets.engine.recorded_names import with_recorded_names  # slow to import

    config = read_config(path, environment, floor)
    try:
        return Platform(with_recorded_names(config), clock, tuple(unsafe), path)
    except GcError as error:
        if require_names:
            raise
        _log.warning("Cannot read the names recorded in the state %s: %s", config.state, error)
        return Platform(config, clock, tuple(unsafe), path, str(error).rstrip("."))


def read_config(path: Path, environment: Mapping[str, str], floor: timedelta, text: str | None = None) -> Config:
    """Load a configuration file, and add settings that the libraries of lakes would use.

    Args:
        path: The path of the file.
        environment: The environment variables.
        floor: The shortest grace period that is allowed.
        text: The content of the file, if the file itself is on another machine.
    """
    config = load_config(path, environment, config_models(), floor, find_unsupported_settings, text)
    return config.model_copy(update={"lakes": tuple(lake.with_library_settings() for lake in config.lakes)})


def clock_of(environment: Mapping[str, str]) -> Clock:
    """Create the clock, which is real unless `GC_ASSETS_UNSAFE_NOW` is set.

    The time in this variable is in UTC unless it has a time zone.
    """
    text = environment.get(NOW_VARIABLE)
    if not text:
        return Clock()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{NOW_VARIABLE} is {text!r}; expected an ISO 8601 time such as 2026-11-21T03:00:00+00:00") from None
    return Clock(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
