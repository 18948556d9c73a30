"""Loads `lakes.yaml`: its text as a `Config`, wrong keys named by their paths, relative paths counted from its folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from gc_assets.config import GRACE_FLOOR, LAKE_KINDS, AnyLake, Config, IcechunkLakeConfig, LakeFsLakeConfig, NessieLakeConfig
from gc_assets.config_text import ConfigText, read_config_text
from gc_assets.core.errors import UsageError
from gc_assets.core.units import format_duration


def load_config(path: Path, environment: Mapping[str, str], grace_floor: timedelta = GRACE_FLOOR) -> Config:
    """The configuration at `path`, `${NAME}` replaced from `environment`, relative paths made absolute against its folder.

    Raises `UsageError` naming each wrong key by its path, what was found and what is allowed.
    """
    text = read_config_text(path, environment)
    try:
        config = Config.model_validate(text.document)
    except ValidationError as error:
        raise UsageError(f"{path} is not valid:\n" + "\n".join(_explained(item, text) for item in error.errors())) from None
    for index, storage in enumerate(config.storages):
        if storage.grace < grace_floor:
            raise UsageError(
                f"{path}: storages[{index}].grace is {format_duration(storage.grace)}, the floor is {format_duration(grace_floor)}: "
                "a shorter grace deletes files of writers that have not committed yet. "
                "For a trial set GC_ASSETS_UNSAFE_GRACE_FLOOR, and every plan will say so."
            )
    return _anchored(config, path.resolve().parent)


def _explained(item: Any, text: ConfigText) -> str:
    path, message, found = _path(item["loc"]), item["msg"].removeprefix("Value error, "), item.get("input")
    if item["type"] == "extra_forbidden":
        return f"  {path}: no such key"
    if item["type"].startswith("union_tag"):
        path, message, found = f"{path}.kind", f"this release knows {', '.join(LAKE_KINDS)}", item.get("ctx", {}).get("tag")
    shown = f" (found {found!r})" if isinstance(found, str | int | float | bool) and "secret" not in path else ""
    return f"  {path or 'the document'}: {text.hidden(message + shown)}"


def _path(steps: tuple[str | int, ...]) -> str:
    path = ""
    for position, step in enumerate(steps):
        if isinstance(step, int):
            path += f"[{step}]"
        elif not (position == 2 and steps[0] == "lakes"):  # there stands the union's tag, which is no key of the file
            path += f".{step}" if path else step
    return path


def _anchored(config: Config, folder: Path) -> Config:
    def lake(item: AnyLake, where: str) -> AnyLake:
        if isinstance(item, LakeFsLakeConfig):
            location = None if item.location is None else _absolute(item.location, folder, f"{where}.location")
            rules = None if item.rules is None else _absolute(item.rules, folder, f"{where}.rules")
            return item.model_copy(update={"location": location, "rules": rules})
        if isinstance(item, IcechunkLakeConfig):
            return item.model_copy(update={"location": _absolute(item.location, folder, f"{where}.location")})
        if isinstance(item, NessieLakeConfig):
            claims = tuple(_absolute(claim, folder, f"{where}.claims[{index}]") for index, claim in enumerate(item.claims))
            return item.model_copy(update={"claims": claims})
        return item.model_copy(update={"catalog": _anchored_catalog(item.catalog, folder, f"{where}.catalog")})

    return config.model_copy(
        update={
            "state": _absolute(config.state, folder, "state"),
            "storages": tuple(
                item.model_copy(update={"location": _absolute(item.location, folder, f"storages[{index}].location")})
                for index, item in enumerate(config.storages)
            ),
            "lakes": tuple(lake(item, f"lakes[{index}]") for index, item in enumerate(config.lakes)),
        }
    )


def _anchored_catalog(catalog: dict[str, SecretStr], folder: Path, where: str) -> dict[str, SecretStr]:
    """A catalog in a local sqlite file: the file and its warehouse are paths. A server's warehouse is a name and stays."""
    uri = catalog["uri"].get_secret_value() if "uri" in catalog else ""
    local = re.fullmatch(r"(sqlite(?:\+\w+)?:///)(?!:memory:)(.+)", uri)
    if local is None:
        return catalog
    anchored = {"uri": SecretStr(local[1] + _absolute(local[2], folder, f"{where}.uri"))}
    if "warehouse" in catalog:
        anchored["warehouse"] = SecretStr(_absolute(catalog["warehouse"].get_secret_value(), folder, f"{where}.warehouse"))
    return catalog | anchored


def _absolute(location: str, folder: Path, where: str) -> str:
    if re.match(r"^file:(?!/)", location):
        raise UsageError(f"{where}: {location!r} is relative; write a bare path, which counts from {folder}, or file:///…")
    if location.startswith("/") or re.match(r"^[A-Za-z][A-Za-z0-9+.-]*:", location):
        return location
    return os.path.normpath(folder / location)
