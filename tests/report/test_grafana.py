"""The dashboard and the alerting rules in `deploy/grafana`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gc_assets.report.metrics import FAMILIES, RENAMED
from tests.promtool import run_promtool

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
LABELS = {f"gc_assets_{name}": set(labels) for name, labels, _ in FAMILIES}
DEPRECATED = {f"gc_assets_{old}" for old, _, _ in RENAMED}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])


def expressions() -> list[str]:
    """Return all expressions, with values for Grafana's variables."""
    variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    series = [re.fullmatch(r"label_values\((\w+), \w+\)", text)[1] for text in variables]  # pyright: ignore[reportOptionalSubscript]
    return [*(re.sub(r"\$\w+", ".*", text) for text in dashboard_expressions()), *series, *(rule["expr"] for rule in RULES)]


def test_dashboard_uses_only_current_metric_names() -> None:
    named = {name for text in expressions() for name in re.findall(r"\bgc_assets_\w+", text)}
    assert named <= LABELS.keys() - DEPRECATED
    assert {name.removeprefix("gc_assets_") for name in named} >= {"stored_bytes", "gate_failed", "lake_unreadable", "unfinished_applies"}


def test_dashboard_uses_only_labels_of_the_queried_metric() -> None:
    for text in expressions():
        allowed = set.union(*(LABELS[name] for name in re.findall(r"\bgc_assets_\w+", text)))
        matched = {label for part in re.findall(r"\{([^}]*)\}", text) for label in re.findall(r"(\w+)\s*=", part)}
        grouped = {label.strip() for part in re.findall(r"\b(?:by|on) \(([^)]*)\)", text) for label in part.split(",")}
        assert matched | grouped <= allowed, text


def test_legends_and_annotations_use_existing_labels() -> None:
    texts = [(target["expr"], target["legendFormat"]) for panel in panels() for target in panel["targets"]]
    texts += [(rule["expr"], text) for rule in RULES for text in rule["annotations"].values()]
    for expression, text in texts:
        labels = set.union(*(LABELS[name] for name in re.findall(r"\bgc_assets_\w+", expression)))
        assert set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)) <= labels, text


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        box = panel["gridPos"]
        cells = {(x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])}
        assert not cells & taken, panel["title"]
        assert box["x"] + box["w"] <= 24
        taken |= cells


def test_panels_have_all_options_required_by_grafana() -> None:
    """As the strict decoder of grafana-foundation-sdk 0.0.22 requires, which accepts the whole file."""
    stat = {"graphMode", "colorMode", "justifyMode", "textMode", "wideLayout", "reduceOptions", "showPercentChange"}
    required = {
        "stat": stat | {"percentChangeColorMode", "orientation"},
        "table": {"frameIndex", "showHeader"},
        "timeseries": {"legend", "tooltip"},
    }
    for panel in panels():
        assert required[panel["type"]] <= panel["options"].keys(), panel["title"]
        legend = panel["options"].get("legend", {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True})
        assert legend.keys() >= {"calcs", "displayMode", "placement", "showLegend"}, panel["title"]


def test_dashboard_expressions_are_valid_promql(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    path = tmp_path / "dashboard.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run_promtool("check", "rules", str(path))


def test_alerts_fire_for_missed_run_refused_plan_and_unfinished_apply(tmp_path: Path) -> None:
    """Evaluate the rules after 40 hours without a run, with a refused plan, and a readable lake."""
    assert f"{len(RULES)} rules found" in run_promtool("check", "rules", str(FOLDER / "alerts.yml"))
    series = {
        'gc_assets_run_timestamp_seconds{storage="old"}': "0x480",
        'gc_assets_run_timestamp_seconds{storage="new"}': "0+300x480",
        'gc_assets_info{version="0.4"}': "1x480",
        'gc_assets_plan_status{storage="old",status="refused"}': "1x480",
        'gc_assets_lake_unreadable{lake="sales"}': "0x480",
        'gc_assets_unfinished_applies{storage="old"}': "1x480",
        'gc_assets_stored_bytes{storage="old",share="garbage"}': "40x480",
        'gc_assets_stored_bytes{storage="old",share="live"}': "60x480",
    }
    expected = {
        "GcAssetsRunMissed": [{"storage": "old", "severity": "warning"}],
        "GcAssetsPlanRefused": [{"storage": "old", "status": "refused", "severity": "warning"}],
        "GcAssetsApplyUnfinished": [{"storage": "old", "severity": "critical"}],
        "GcAssetsLakeUnreadable": [],
        "GcAssetsMetricsMissing": [],
        "GcAssetsPlanExpires": [],
        "GcAssetsGarbageGrows": [],  # not for two days yet
    }
    assert expected.keys() == {rule["alert"] for rule in RULES}
    annotations = {rule["alert"]: rule["annotations"] for rule in RULES}
    values = {"GcAssetsRunMissed": "1d 16h 0m 0s"}
    alerts = [
        {
            "eval_time": "40h",
            "alertname": name,
            "exp_alerts": [
                {"exp_labels": labels, "exp_annotations": _fill(annotations[name], labels, values.get(name, "1"))} for labels in found
            ],
        }
        for name, found in expected.items()
    ]
    test = {
        "rule_files": [str(FOLDER / "alerts.yml")],
        "evaluation_interval": "30m",
        "tests": [
            {
                "interval": "5m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": alerts,
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    assert "SUCCESS" in run_promtool("test", "rules", str(path))


def _fill(annotations: dict[str, str], labels: dict[str, str], value: str) -> dict[str, str]:
    def fill(text: str) -> str:
        text = re.sub(r"\{\{ \$value[^}]*\}\}", value, text)
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)

    return {name: fill(text) for name, text in annotations.items()}
