"""Reading the configuration and the variables of the environment."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock, start_of_day
from gc_assets.core.errors import UsageError
from gc_assets.resources.platform import clock_of, config_path, load_platform

CONFIG = """
state: state
storages: [{{name: warehouse, location: lake, grace: {grace}}}]
lakes: [{{name: weather, kind: icechunk, location: lake/weather}}]
"""


def write_config(folder: Path, grace: str = "72h") -> str:
    path = folder / "lakes.yaml"
    path.write_text(CONFIG.format(grace=grace))
    return str(path)


def test_config_argument_precedes_environment_variable_and_default() -> None:
    environment = {"GC_ASSETS_CONFIG": "named.yaml"}
    assert config_path(environment, "given.yaml") == Path("given.yaml")
    assert config_path(environment) == Path("named.yaml")
    assert config_path({}) == Path("lakes.yaml")
    assert config_path({"GC_ASSETS_CONFIG": ""}) == Path("lakes.yaml")


def test_default_platform_is_safe_with_real_clock(tmp_path: Path) -> None:
    platform = load_platform({}, write_config(tmp_path))
    assert platform.unsafe == ()
    assert platform.clock == Clock()
    assert abs(platform.clock.now() - datetime.now(UTC)) < timedelta(minutes=1)


def test_environment_variable_lowers_the_minimum_grace_period(tmp_path: Path) -> None:
    path = write_config(tmp_path, "1h")
    with pytest.raises(UsageError, match="must be at least 1d"):
        load_platform({}, path)
    platform = load_platform({"GC_ASSETS_UNSAFE_GRACE_FLOOR": "1h"}, path)
    assert platform.unsafe == ("GC_ASSETS_UNSAFE_GRACE_FLOOR lowers the minimum grace period to 1h",)
    assert platform.run_context(platform.clock.today()).unsafe == platform.unsafe
    with pytest.raises(UsageError, match="must be at least 1h1s"):
        load_platform({"GC_ASSETS_UNSAFE_GRACE_FLOOR": "1h1s"}, path)


def test_higher_minimum_grace_period_is_not_unsafe(tmp_path: Path) -> None:
    assert load_platform({"GC_ASSETS_UNSAFE_GRACE_FLOOR": "24h"}, write_config(tmp_path)).unsafe == ()
    with pytest.raises(UsageError, match="must be at least 4d"):
        load_platform({"GC_ASSETS_UNSAFE_GRACE_FLOOR": "96h"}, write_config(tmp_path))


@pytest.mark.parametrize("text", ["-1h", "soon", "24"])
def test_invalid_minimum_grace_period_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"GC_ASSETS_UNSAFE_GRACE_FLOOR: .*is not a duration"):
        load_platform({"GC_ASSETS_UNSAFE_GRACE_FLOOR": text}, write_config(tmp_path))


def test_fixed_clock_is_a_rehearsal(tmp_path: Path) -> None:
    platform = load_platform({"GC_ASSETS_UNSAFE_NOW": "2026-11-21T03:00:00+00:00"}, write_config(tmp_path))
    assert platform.clock.is_rehearsal
    assert platform.clock.today() == date(2026, 11, 21)
    assert platform.unsafe == ("GC_ASSETS_UNSAFE_NOW sets the clock to 2026-11-21T03:00:00+00:00",)
    assert platform.run_context(date(2026, 11, 21)).as_of == start_of_day(date(2026, 11, 21))
    with pytest.raises(UsageError, match=r"run date 2026-11-22 is outside 1998-01-01 to 2026-11-21"):
        platform.run_context(date(2026, 11, 22))


@pytest.mark.parametrize(
    "text, hour", [("2026-11-21T23:30:00", 23), ("2026-11-22T01:30:00+02:00", 23), ("2026-11-21T23:30:00Z", 23), ("2026-11-21", 0)]
)
def test_fixed_clock_is_converted_to_utc(text: str, hour: int) -> None:
    clock = clock_of({"GC_ASSETS_UNSAFE_NOW": text})
    assert (clock.now().hour, clock.now().utcoffset(), clock.today()) == (hour, timedelta(0), date(2026, 11, 21))


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "21.11.2026", " "])
def test_invalid_clock_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"GC_ASSETS_UNSAFE_NOW is .* expected an ISO 8601 time"):
        load_platform({"GC_ASSETS_UNSAFE_NOW": text}, write_config(tmp_path))


def test_fixed_clock_requires_a_time_zone() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        Clock(datetime(2026, 11, 21))  # noqa: DTZ001  (the refusal of it is tested)


def test_fixed_clock_gives_increasing_sequence_numbers() -> None:
    clock = Clock(datetime(2026, 11, 21, tzinfo=UTC))
    orders = [clock.sequence_number() for _ in range(3)]
    assert clock.now() == clock.now()
    assert orders == sorted(orders)


def test_configuration_reads_variables_only_from_the_given_environment(tmp_path: Path) -> None:
    path = tmp_path / "lakes.yaml"
    path.write_text(CONFIG.format(grace="'${GRACE}'"))
    assert load_platform({"GRACE": "30h"}, str(path)).config.storage("warehouse").grace == timedelta(hours=30)
    with pytest.raises(UsageError, match=r"storages\[0\]\.grace: the environment variable GRACE .* is not set"):
        load_platform({}, str(path))


@pytest.mark.parametrize(
    "key, value, way_out",
    [
        ("location", "oss://bucket/lake/", "this release supports file://"),
        ("quarantine", "versioned", "use trash or deferred"),
    ],
)
def test_unsupported_storage_option_is_refused(tmp_path: Path, key: str, value: str, way_out: str) -> None:
    path = Path(write_config(tmp_path))
    path.write_text(
        path.read_text().replace("location: lake,", f"location: {value}," if key == "location" else f"location: lake, {key}: {value},")
    )
    with pytest.raises(UsageError, match=rf"storages\[0\]\.{key}: '{value}' : .*{way_out}"):
        load_platform({}, str(path))


def test_unsupported_state_scheme_is_refused(tmp_path: Path) -> None:
    path = Path(write_config(tmp_path))
    path.write_text(re.sub(r"(?m)^state: .*$", "state: oss://bucket/state", path.read_text()))
    with pytest.raises(UsageError, match="oss://bucket/state"):
        load_platform({}, str(path))
