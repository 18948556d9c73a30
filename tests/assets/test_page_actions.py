"""Messages of the stages on Dagster's page."""

from pathlib import Path

import pytest

from gc_assets.assets.page_actions import to_page_message
from gc_assets.config.models import Config
from tests.assets.platforms import platform

PLANS = "the page of the `deletion_plan` asset"


def config(root: Path, *may: str) -> Config:
    return platform(root).config.model_copy(update={"page_may": frozenset(may)})


@pytest.mark.parametrize(
    "message, expected",
    [
        ("Make a new plan with `gc-assets run`.", "Make a new plan with the `run` job."),
        ("Start one with `gc-assets run --run-date 2026-03-14`.", "Start one with the `run` job for the partition 2026-03-14."),
        ("see gc-assets plans; `gc-assets plans` lists them", f"see {PLANS}; {PLANS} lists them"),
        ("`gc-assets apply 3f9c2a71` finishes it", "the `apply` job with `plan_id: 3f9c2a71` finishes it"),
        (
            "`gc-assets restore --plan 3f9c2a71 --history` undoes them",
            "the `restore` job with `plan_id: 3f9c2a71, history: true` undoes them",
        ),
        (
            "refused:\n  live_drop: a\n  gc-assets approve 3f9c2a71 --by WHO --override live_drop --override delete_bytes\nor",
            "refused:\n  live_drop: a\n"
            "  Launch the `approve` job with `plan_id: 3f9c2a71, by: WHO, override: [live_drop, delete_bytes]`\nor",
        ),
        ("`gc-assets apply 123456789012`", 'the `apply` job with `plan_id: "123456789012"`'),
        ("`gc-assets apply 1234e5678901`", 'the `apply` job with `plan_id: "1234e5678901"`'),
        ("an approval requires --by WHO", "an approval requires `by`"),
        ("Pass the plan with --plan P (--plan, --prefix, --key)", "Pass the plan with `plan_id` (`plan_id`, `prefix`, `key`)"),
        ("approve with `--override live_drop`.", "approve with `override: [live_drop]`."),
        ("--override live_drop: no such gate", "`override` live_drop: no such gate"),
    ],
)
def test_commands_and_options_become_page_actions(tmp_path: Path, message: str, expected: str) -> None:
    assert to_page_message(message, config(tmp_path, "approve", "reject", "restore")) == expected


@pytest.mark.parametrize(
    "message",
    [
        "`gc-assets doctor sales` shows the table",
        "`gc-assets set-aside shop.orders --by WHO --comment WHY` lets purges continue",
        "gc-assets accept-prefix data/ --by WHO --comment WHY",
        "`gc-assets apply 3f9c2a71 --end` gives up the rest",
        "`gc-assets restore --key 'it''s \"` is no shell command",
        "file --by-name and pre--by stay",
    ],
)
def test_command_without_page_action_is_not_changed(tmp_path: Path, message: str) -> None:
    assert to_page_message(message, config(tmp_path, "approve", "reject", "restore")) == message


def test_command_is_not_changed_if_job_is_not_enabled(tmp_path: Path) -> None:
    message = "`gc-assets restore --plan 3f9c2a71` or `gc-assets approve 3f9c2a71 --by WHO`"
    assert to_page_message(message, config(tmp_path)) == message
    assert to_page_message(message, config(tmp_path, "approve")).endswith("the `approve` job with `plan_id: 3f9c2a71, by: WHO`")
