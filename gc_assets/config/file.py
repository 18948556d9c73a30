"""Load a `lakes.yaml`.

Relative paths are resolved against the directory of the file, and error messages show the invalid
key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

from pydantic import ValidationError

from gc_assets.config.error_messages import format_error
from gc_assets.config.models import GRACE_FLOOR, STORE_SETTINGS, Config, LakeConfig, StorageConfig
from gc_assets.config.relative_paths import BaseFolder
from gc_assets.config.text import read_config_text
from gc_assets.core.errors import UsageError
from gc_assets.core.paths import FILE, Location, scheme_of
from gc_assets.core.units import format_duration

Unsupported = Callable[[StorageConfig], Iterable[tuple[str, str]]]


def load_config(
    path: Path,
    environment: Mapping[str, str],
    lake_kinds: Mapping[str, type[LakeConfig]],
    grace_floor: timedelta = GRACE_FLOOR,
    find_unsupported_settings: Unsupported = lambda _: (),
    text: str | None = None,
) -> Config:
    """Load and validate a configuration.

    Args:
        path: The path of the file.
        environment: The environment variables that replace `${NAME}`.
        lake_kinds: The model of each kind of lake.
        grace_floor: The shortest grace period that is allowed.
        find_unsupported_settings: Called with each storage. Yields the keys that its kind of store
            does not support, with advice.
        text: The content of the file, if the file itself is on another machine.

    Raises:
        UsageError: If the configuration is invalid. The message lists every invalid key with its
            value and the allowed values.
    """
    read = read_config_text(path, environment, text)
    try:
        config = Config.of(read.document, lake_kinds)
    except ValidationError as error:
        wrong = (format_error(item, read, Config, lake_kinds) for item in error.errors())
        raise UsageError(f"{path} is not valid:\n" + "\n".join(wrong)) from None
    for index, storage in enumerate(config.storages):
        if storage.grace < grace_floor:
            raise UsageError(
                f"{path}: storages[{index}].grace is {format_duration(storage.grace)}, but must be at least "
                f"{format_duration(grace_floor)}. With a shorter grace period, files could be deleted before their writers commit. "
                "For a trial, set GC_ASSETS_UNSAFE_GRACE_FLOOR. Every plan then contains a warning."
            )
    try:
        config = config.resolve_paths(BaseFolder(path.resolve().parent)).with_path(str(path.absolute()))
    except UsageError as error:
        raise UsageError(f"{path} is not valid:\n  {error}") from None
    _check_state(config, path)
    wrong = [
        f"  storages[{index}].{key}: {why}"
        for index, storage in enumerate(config.storages)
        for key, why in find_unsupported_settings(storage)
    ]
    if wrong:
        raise UsageError(f"{path} is not valid:\n" + "\n".join(wrong))
    return config


def _check_state(config: Config, path: Path) -> None:
    """Check that the state can be stored at its address.

    Raises:
        UsageError: If the address is invalid or read-only.
    """
    if scheme_of(config.state) not in {FILE, *STORE_SETTINGS}:
        raise UsageError(f"{path}: state is {config.state!r}; write a path, such as ./state, or s3://bucket/prefix")
    try:
        Location.parse(config.state)
    except UsageError as error:
        raise UsageError(f"{path}: state: {error}") from None
    settings = config.state_settings()
    if settings is not None and settings.anonymous:
        raise UsageError(f"{path}: state is {config.state!r}, which `s3.anonymous` cannot write; configure a profile or a role instead")
