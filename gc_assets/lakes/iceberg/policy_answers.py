"""Parse table policies in the responses of Polaris and Lakekeeper. All functions are pure.

Sources: Polaris' `policy-apis.yaml` and the schemas `system/snapshot-expiry` and
`system/orphan-file-removal` of 2025-02-03, Lakekeeper's `management-open-api-plus.yaml`. Keys that
these sources do not list are rejected, because they may set a limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final, cast

from gc_assets.core.errors import FormatError
from gc_assets.core.untrusted_input import parse_json
from gc_assets.lakes.iceberg.catalog_policy import CatalogPolicy
from gc_assets.lakes.iceberg.metadata import TABLE_SETTINGS
from gc_assets.lakes.iceberg.settings import FOREVER_MS, parse_setting

POLARIS_EXPIRY, POLARIS_ORPHANS = "system.snapshot-expiry", "system.orphan-file-removal"
LAKEKEEPER_EXPIRY, LAKEKEEPER_ORPHANS = "expire_snapshots", "remove_orphan_files"

_KEEP_LAST, _MAX_AGE, _MAX_REF_AGE = TABLE_SETTINGS
_DAY_MS: Final = 24 * 3600 * 1000
_SCHEMA_VERSIONS: Final = (None, "2025-02-03")
# The schema allows any key in `config`. The first spelling comes from its example.
_POLARIS_LIMITS: Final = {
    "min_snapshot_to_keep": (_KEEP_LAST, 1),
    "min_snapshots_to_keep": (_KEEP_LAST, 1),
    "max_snapshot_age_days": (_MAX_AGE, _DAY_MS),
    "max_snapshot_age_ms": (_MAX_AGE, 1),
    "max_ref_age_days": (_MAX_REF_AGE, _DAY_MS),
    "max_ref_age_ms": (_MAX_REF_AGE, 1),
}
_LAKEKEEPER_LIMITS: Final = {"min-snapshots-to-keep": _KEEP_LAST, "max-snapshot-age-ms": _MAX_AGE, "max-ref-age-ms": _MAX_REF_AGE}
# Keys that do not affect what may be removed.
_LAKEKEEPER_SCHEDULE: Final = {
    "queue-name",
    "min-snapshots-to-expire",
    "target-reclaim-bytes",
    "maximum-interval-seconds",
    "max-run-time-seconds",
    "disable-min-older-than-check",
}
_LAKEKEEPER_ORPHAN_AGE_MS: Final = 7 * _DAY_MS


def parse_polaris(policies: Collection[Any], properties: Mapping[str, str]) -> CatalogPolicy:
    """Build a table's retention policy from the Polaris policies that apply to it.

    For each limit, the policy's value and the table property are compared, and the longer one wins.

    Args:
        policies: Items of `applicable-policies` in the responses of Polaris.
        properties: Properties of the table.

    Raises:
        FormatError: If a policy for snapshots or orphans cannot be applied. The message contains
            its name.
    """
    expiry = _find_polaris(policies, POLARIS_EXPIRY)
    orphans = _find_polaris(policies, POLARIS_ORPHANS)
    origin, limits, keep_history, protect, min_age = None, dict[str, int](), None, None, 0
    if expiry is not None:
        origin, content = expiry
        if _is_enabled(origin, content, {"version", "enable", "config"}):
            limits = _read_polaris_limits(origin, _read_config(origin, content))
        else:
            keep_history = f"{origin} is disabled"
    if orphans is not None:
        label, content = orphans
        if _is_enabled(label, content, {"version", "enable", "config", "max_orphan_file_age_in_days", "locations"}):
            _reject_unknown(label, _read_config(label, content), {"prefix_mismatch_mode"}, "config.")
            if content.get("locations"):
                raise FormatError(f"{label} has `locations`, which gc-assets cannot apply")
            days = content.get("max_orphan_file_age_in_days")
            min_age = 0 if days is None else -(-_read_number(label, "max_orphan_file_age_in_days", days, _DAY_MS) // 1000)
        else:
            protect = f"{label} is disabled"
    own = {key: number for key in limits if (number := parse_setting(properties.get(key, ""))) is not None and number > limits[key]}
    return CatalogPolicy(origin, limits | own, tuple(own), keep_history, protect, min_age)


def _find_polaris(policies: Collection[Any], kind: str) -> tuple[str, dict[str, Any]] | None:
    """Find the Polaris policy of a type, and return its label for messages and its content."""
    if not all(isinstance(item, dict) for item in policies):
        raise FormatError("the response from Polaris contains a policy that is not a JSON object")
    found = [item for item in policies if item.get("policy-type") == kind]
    if not found:
        return None
    if len(found) > 1:
        raise FormatError(f"Polaris has {len(found)} policies of type {kind} for the table, expected one")
    item = found[0]
    namespace = item.get("namespace") if isinstance(item.get("namespace"), list) else []
    inherited = "inherited " if item.get("inherited") else ""
    label = f"{inherited}Polaris policy {'.'.join(map(str, [*namespace, item.get('name')]))} v{item.get('version')}"
    content = item.get("content")
    if isinstance(content, str):
        try:
            content = parse_json(content)
        except ValueError:
            raise FormatError(f"{label} has content that is not JSON") from None
    if not isinstance(content, dict):
        raise FormatError(f"{label}: content must be a JSON object, got {content!r:.40}")
    if content.get("version") not in _SCHEMA_VERSIONS:
        raise FormatError(f"{label}: the schema version must be {_SCHEMA_VERSIONS[-1]}, got {content['version']!r:.40}")
    return label, content


def _read_polaris_limits(label: str, config: Mapping[str, Any]) -> dict[str, int]:
    _reject_unknown(label, config, _POLARIS_LIMITS, "config.")
    limits: dict[str, int] = {}
    for key, value in config.items():
        setting, unit = _POLARIS_LIMITS[key]
        limits[setting] = max(limits.get(setting, 0), _read_number(label, f"config.{key}", value, unit))
    return limits


def parse_lakekeeper(expiry: Mapping[str, Any], orphans: Mapping[str, Any], properties: Mapping[str, str]) -> CatalogPolicy:
    """Build a table's retention policy from the task queues of its Lakekeeper warehouse.

    Table properties have priority over a queue's configuration if Lakekeeper documents this.

    Args:
        expiry: Configuration of the queue `expire_snapshots`. Empty if it was never set.
        orphans: Configuration of the queue `remove_orphan_files`. Empty if it was never set.
        properties: Properties of the table.

    Raises:
        FormatError: If a queue's configuration cannot be applied. The message contains its name.
    """
    label = f"Lakekeeper's queue {LAKEKEEPER_EXPIRY}"
    origin, limits, keep_history = None, dict[str, int](), None
    _reject_unknown(label, expiry, {"enable-expire-snapshots", *_LAKEKEEPER_LIMITS, *_LAKEKEEPER_SCHEDULE})
    enabled = _read_switch("lakekeeper.history.expire.enabled", properties)
    if enabled is not None or expiry.keys() - {"queue-name"}:
        origin = label
        if _read_flag(label, expiry, "enable-expire-snapshots", enabled):
            for key, setting in _LAKEKEEPER_LIMITS.items():
                if (value := expiry.get(key)) is not None:
                    limits[setting] = _read_number(label, key, value, 1)
        else:
            keep_history = f"{label} is disabled"
    written = {key: number for key in limits if (number := parse_setting(properties.get(key, ""))) is not None}
    # No property for the age of refs is documented, so the longer value applies.
    own = {key: number for key, number in written.items() if key != _MAX_REF_AGE or number > limits[key]}
    limits |= own
    label = f"Lakekeeper's queue {LAKEKEEPER_ORPHANS}"
    _reject_unknown(label, orphans, {"enable-remove-orphan-files", "default-older-than-ms", "dry-run", *_LAKEKEEPER_SCHEDULE})
    switch = "lakekeeper.remove-orphan-files.enabled"
    enabled = _read_switch(switch, properties)
    if enabled is None and not orphans.keys() - {"queue-name"}:
        return CatalogPolicy(origin, limits, tuple(own), keep_history)
    protect = None if _read_flag(label, orphans, "enable-remove-orphan-files", enabled) else f"{label} is disabled"
    if _read_flag(label, orphans, "dry-run", None) or properties.get("lakekeeper.remove-orphan-files.dry-run", "").lower() == "true":
        protect = protect or f"{label} is a dry run"
    age = properties.get("lakekeeper.remove-orphan-files.older-than-ms", orphans.get("default-older-than-ms"))
    age_ms = _LAKEKEEPER_ORPHAN_AGE_MS if age is None else _read_number(label, "older-than-ms", age, 1)
    return CatalogPolicy(origin, limits, tuple(own), keep_history, protect, -(-age_ms // 1000))


def _is_enabled(label: str, content: Mapping[str, Any], known: Collection[str]) -> bool:
    enabled = content.get("enable")
    if not isinstance(enabled, bool):
        raise FormatError(f"{label}: enable must be true or false, got {enabled!r:.40}")
    if enabled:  # In a disabled policy, no other key has an effect.
        _reject_unknown(label, content, known)
    return enabled


def _read_config(label: str, content: Mapping[str, Any]) -> dict[str, Any]:
    config = content.get("config") or {}
    if not isinstance(config, dict):
        raise FormatError(f"{label}: config must be a JSON object, got {config!r:.40}")
    return cast("dict[str, Any]", config)


def _read_switch(key: str, properties: Mapping[str, str]) -> bool | None:
    value = properties.get(key)
    if value is None:
        return None
    if value.lower() not in {"true", "false"}:
        raise FormatError(f"table property {key} must be true or false, got {value!r:.40}")
    return value.lower() == "true"


def _read_flag(label: str, config: Mapping[str, Any], key: str, override: bool | None) -> bool:
    value = config.get(key)
    if not isinstance(value, bool | None):
        raise FormatError(f"{label}: {key} must be true or false, got {value!r:.40}")
    return bool(value) if override is None else override


def _reject_unknown(label: str, content: Mapping[str, Any], known: Collection[str], prefix: str = "") -> None:
    if unknown := sorted(content.keys() - set(known)):
        raise FormatError(f"{label} has the key {prefix + unknown[0]!r:.80}, which gc-assets does not support")


def _read_number(label: str, key: str, value: Any, unit: int) -> int:
    """Convert a limit's value to its base unit and round it up. The unit of a count is 1."""
    try:
        number = Decimal(value if isinstance(value, int | str) and not isinstance(value, bool) else repr(value))
        if number.is_finite() and number >= 0:
            return int(min(Decimal(FOREVER_MS), (number * unit).to_integral_value(ROUND_CEILING)))
    except ArithmeticError:  # It is not a number, or too large.
        pass
    raise FormatError(f"{label}: {key} must be a number of 0 or more, got {value!r:.40}")
