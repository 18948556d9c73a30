"""Loads `lakes.yaml` as a `Config`. Wrong keys are named by their paths, and relative paths count
from the file's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

from pydantic import ValidationError

from gc_assets.config.error_messages import sentence
from gc_assets.config.models import GRACE_FLOOR, Config, LakeConfig, StorageConfig
from gc_assets.config.relative_paths import Anchor
from gc_assets.config.text import read_config_text
from gc_assets.core.errors import UsageError
from gc_assets.core.paths import FILE, S3, Location, scheme_of
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
    """Return the configuration at `path`. `${NAME}` is replaced from `environment`, and relative
    paths are made absolute against the file's folder.

    `lake_kinds` are the models of the lakes by the name that an entry's `kind` has. `find_unsupported_settings`
    returns the keys of a storage whose values no store of this release can do, each with what can
    be written instead. `text` is what the file holds where it lies on another machine.

    Raises `UsageError` naming each wrong key by its path, its value, and what is allowed.
    """
    read = read_config_text(path, environment, text)
    try:
        config = Config.of(read.document, lake_kinds)
    except ValidationError as error:
        wrong = (sentence(item, read, Config, lake_kinds) for item in error.errors())
        raise UsageError(f"{path} is not valid:\n" + "\n".join(wrong)) from None
    for index, storage in enumerate(config.storages):
        if storage.grace < grace_floor:
            raise UsageError(
                f"{path}: storages[{index}].grace is {format_duration(storage.grace)}, the floor is {format_duration(grace_floor)}: "
                "a shorter grace deletes files of writers that have not committed yet. "
                "For a trial set GC_ASSETS_UNSAFE_GRACE_FLOOR, and every plan will say so."
            )
    try:
        config = config.anchored(Anchor(path.resolve().parent)).read_from(str(path.absolute()))
    except UsageError as error:
        raise UsageError(f"{path} is not valid:\n  {error}") from None
    _refuse_state(config, path)
    wrong = [
        f"  storages[{index}].{key}: {why}"
        for index, storage in enumerate(config.storages)
        for key, why in find_unsupported_settings(storage)
    ]
    if wrong:
        raise UsageError(f"{path} is not valid:\n" + "\n".join(wrong))
    return config


def _refuse_state(config: Config, path: Path) -> None:
    """Raise `UsageError` for a state where nothing can be kept."""
    if scheme_of(config.state) not in {FILE, S3}:
        raise UsageError(f"{path}: state is {config.state!r}; write a path, such as ./state, or s3://bucket/prefix")
    try:
        Location.parse(config.state)
    except UsageError as error:
        raise UsageError(f"{path}: state: {error}") from None
    if scheme_of(config.state) == S3 and config.state_s3().anonymous:
        raise UsageError(f"{path}: state is {config.state!r}, and `s3.anonymous` can write nothing there; name a profile or a role instead")
