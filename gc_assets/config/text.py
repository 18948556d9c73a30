"""Reads the text of `lakes.yaml` as a mapping, with `${NAME}` replaced.

Knows YAML and the given environment, not what the keys mean.
"""

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
    """A configuration before it is understood. `secrets` holds the values that came from the
    environment, by variable.
    """

    document: dict[str, Any]
    secrets: Mapping[str, str]

    def hidden(self, message: str) -> str:
        """Returns the message with each value of the environment replaced by `${NAME}`, its name in
        the file.
        """
        for name, value in sorted(self.secrets.items(), key=lambda item: -len(item[1])):
            for spelling in (repr(value)[1:-1], value):
                message = message.replace(spelling, f"${{{name}}}") if value else message
        return message


def read_config_text(path: Path, environment: Mapping[str, str], text: str | None = None) -> ConfigText:
    """Returns the text of a configuration; `text` is what the file holds where it lies on another
    machine. Raises `UsageError` for a file that is absent, is no YAML mapping, has a key twice, or
    names an unset variable.
    """
    try:
        text = path.read_text(encoding="utf-8") if text is None else text
    except FileNotFoundError:
        raise UsageError(
            f"there is no configuration at {path}; pass --config FILE, set GC_ASSETS_CONFIG, or write one with `gc-assets init`"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        _refuse_repeated_keys(yaml.compose(text, Loader=yaml.SafeLoader), path)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from None
    except RecursionError:
        raise UsageError(f"{path} is nested more deeply than any configuration; expected the keys state, storages and lakes") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} must hold a mapping with the keys state, storages and lakes")
    secrets: dict[str, str] = {}
    return ConfigText(_substituted(document, environment, "", secrets), secrets)


def _refuse_repeated_keys(root: yaml.Node | None, path: Path) -> None:
    """Raises `UsageError` for a key that one mapping has twice, or that is no plain text. YAML readers
    keep the last of two equal keys: a second `lakes:` would silently drop the first one's live files.
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
                    raise UsageError(f"{path}, line {key.start_mark.line + 1}: the key {key.value!r} stands twice; keep one of them")
                keys.add(key.value)
                pending.append(value)


def _substituted(value: Any, environment: Mapping[str, str], where: str, secrets: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _substituted(item, environment, f"{where}.{key}".lstrip("."), secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, environment, f"{where}[{index}]", secrets) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise UsageError(f"{where}: the environment has no variable {match[1]}, which ${{{match[1]}}} asks for")
        secrets[match[1]] = environment[match[1]]
        return environment[match[1]]

    return _VARIABLE.sub(replaced, value)
