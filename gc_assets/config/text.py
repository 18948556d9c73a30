"""Parse the YAML of `lakes.yaml` and replace environment variables in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gc_assets.core.errors import UsageError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class ConfigText:
    """A parsed configuration that has not been validated yet.

    Attributes:
        document: The content of the file, after environment variables have been replaced.
        secrets: The values of these variables by name.
    """

    document: dict[str, Any]
    secrets: Mapping[str, str]

    def hide_secrets(self, message: str) -> str:
        """Replace values of environment variables in a message with `${NAME}`."""
        for name, value in sorted(self.secrets.items(), key=lambda item: -len(item[1])):
            for spelling in (repr(value)[1:-1], value):
                message = message.replace(spelling, f"${{{name}}}") if value else message
        return message


def read_config_text(path: Path, environment: Mapping[str, str], text: str | None = None) -> ConfigText:
    """Read a configuration file.

    Args:
        path: The path of the file.
        environment: The environment variables that the file may use.
        text: The content of the file, if the file itself is on another machine.

    Raises:
        UsageError: If the file cannot be read or is not a YAML mapping. Also raised if a key occurs
            twice, or if an environment variable is not set.
    """
    try:
        text = path.read_text(encoding="utf-8") if text is None else text
    except FileNotFoundError:
        raise UsageError(
            f"configuration {path} does not exist; pass --config FILE, set GC_ASSETS_CONFIG, or create one with `gc-assets init`"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        _refuse_repeated_keys(yaml.compose(text, Loader=yaml.SafeLoader), path)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {str(error).replace('<unicode string>', path.name)}") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply; expected the keys state, storages and lakes") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} must contain a mapping with the keys state, storages and lakes")
    secrets: dict[str, str] = {}
    return ConfigText(_substitute(document, environment, "", secrets), secrets)


def _refuse_repeated_keys(root: yaml.Node | None, path: Path) -> None:
    """Check that keys are plain text and occur only once.

    YAML parsers silently keep the last of two equal keys. With a second `lakes:`, the lakes under
    the first one would be ignored, and their files would look like garbage.

    Raises:
        UsageError: If a key is repeated or is not plain text. The message contains the line.
    """
    pending, seen = [root], set[int]()
    while pending:
        node = pending.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = set[str]()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise UsageError(f"{path}, line {key.start_mark.line + 1}: a key must be plain text")
                if key.value in keys:
                    raise UsageError(f"{path}, line {key.start_mark.line + 1}: the key {key.value!r} occurs twice; keep one of them")
                keys.add(key.value)
                pending.append(value)


def _substitute(value: Any, environment: Mapping[str, str], path: str, secrets: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, environment, f"{path}.{key}".lstrip("."), secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, environment, f"{path}[{index}]", secrets) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise UsageError(f"{path}: the environment variable {match[1]} (used as ${{{match[1]}}}) is not set")
        secrets[match[1]] = environment[match[1]]
        return environment[match[1]]

    return _VARIABLE.sub(replace, value)
