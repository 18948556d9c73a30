"""Readable messages for errors in `lakes.yaml`, with the invalid key and the allowed values.

pydantic's own messages are about Python types, which users of a YAML file do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

from gc_assets.config.text import ConfigText
from gc_assets.core.secret_names import SECRET_NAME
from gc_assets.core.suggest import did_you_mean, join_names

_LIMITS: Final = {
    "greater_than": ("gt", "expected a number above {}"),
    "greater_than_equal": ("ge", "expected a number of {} or more"),
    "less_than": ("lt", "expected a number below {}"),
    "less_than_equal": ("le", "expected a number of {} or less"),
    "too_short": ("min_length", "expected at least {} characters"),
    "string_too_short": ("min_length", "expected at least {} characters"),
}
_FORMS: Final = {
    "string": "a string",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a number",
    "bool": "true or false",
    "date": "a date such as 2026-11-21",
    "model": "a mapping of keys",
    "dict": "a mapping of keys",
    "tuple": "a list, such as [a, b]",
    "list": "a list, such as [a, b]",
}
_PATTERNS: Final = {
    r"^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and underscores, not starting with a digit",
    r"^[a-z0-9][a-z0-9-]*$": "lowercase letters, digits and hyphens",
    r"^https?://": "an address such as http://localhost:19120/api/v2",
    r"^https?://[^/@]+/?$": "an address such as https://s3.example.org, without a path and credentials",
    r"^https://[^/@\s]+/?$": "an address such as https://dbc-0123.cloud.databricks.com, without a path and credentials",
    r"^(/|dbfs:/|s3://[^/]+/).+$": "the path of the script, such as /Volumes/main/gc/code/job.py or s3://bucket/job.py",
    r"^[^@\s]+@[^@\s]+\.gserviceaccount\.com$": "a service account such as collector@project.iam.gserviceaccount.com",
    r"^[a-z][a-z0-9:.-]{4,}$": "the id of a Google Cloud project",
    r"^arn:[a-z0-9-]+:iam::\d*:role/.+$": "a role such as arn:aws:iam::123456789012:role/collector",
    r"^s3://[^/]+/.+$": "an object's address, s3://bucket/key",
    r"^s3://[^/]+(/.*)?$": "an address such as s3://bucket/prefix",
}


def format_error(item: Mapping[str, Any], text: ConfigText, model: type[BaseModel], kinds: Mapping[str, type[BaseModel]]) -> str:
    """Format a validation error as a line that begins with the path of the key.

    Args:
        item: The error as reported by pydantic.
        text: The configuration file, whose secrets must not be shown.
        model: The model of the whole document.
        kinds: The model of each kind of lake.
    """
    steps: tuple[str | int, ...] = item["loc"]
    path, found = _path(steps), item.get("input")
    if item["type"] == "extra_forbidden":
        allowed = _keys_at(steps[:-1], text.document, model, kinds)
        meant = did_you_mean(str(steps[-1]), allowed)
        return f"  {path}: unknown key{meant or ';'} {'Allowed' if meant else 'allowed'}: {join_names(allowed)}"
    message = _describe(item)
    is_repeated = item["type"] == "value_error" and repr(found) in message
    is_shown = isinstance(found, str | int | float | bool) and not is_repeated and not SECRET_NAME.search(f"{path} {found}")
    value = f" (found {found!r})" if is_shown else ""
    return f"  {path or 'the document'}: {text.hide_secrets(message + value)}"


def _describe(item: Mapping[str, Any]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "missing":
        return "this key is missing and has no default"
    if kind == "literal_error":
        allowed = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"expected {_join_alternatives(allowed)}{did_you_mean(str(item['input']), allowed)}"
    if kind == "string_pattern_mismatch":
        wanted = _PATTERNS.get(context["pattern"])
        return f"expected {wanted}" if wanted is not None else f"expected a string that matches {context['pattern']}"
    if kind in _LIMITS:
        name, template = _LIMITS[kind]
        return template.format(f"{context[name]:,g}")
    form = next((text for name, text in _FORMS.items() if kind.startswith(f"{name}_") or kind == name), None)
    return f"expected {form}" if form is not None else str(item["msg"]).removeprefix("Value error, ")


def _join_alternatives(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _keys_at(steps: tuple[str | int, ...], document: Any, model: type[BaseModel], kinds: Mapping[str, type[BaseModel]]) -> list[str]:
    """List the keys that are allowed in the mapping at a path, if they are known."""
    at: type[BaseModel] | None = model
    for depth, step in enumerate(steps):
        document = document[step]
        if depth == 1 and steps[0] == "lakes":
            at = kinds.get(document["kind"])
        elif isinstance(step, str):
            at = _model_in(at.model_fields[step].annotation) if at is not None and step in at.model_fields else None
    return list(at.model_fields) if at is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)


def _path(steps: tuple[str | int, ...]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
