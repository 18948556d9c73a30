"""Suggest jobs instead of commands in messages on Dagster's page.

Stages suggest commands such as `gc-assets apply`, but a user of the page needs to know which job to
launch, and with which configuration. Commands without a corresponding job are left unchanged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from gc_assets.assets.names import asset_key, step_name
from gc_assets.config.models import Config
from gc_assets.core.commands import command
from gc_assets.core.phases import QUARANTINE
from gc_assets.core.plan import PlanHeader, gate_name
from gc_assets.stages.records.plans import StoredPlan, override_command
from gc_assets.state.schemas import DELETION_LOG

_SHORT_ID: Final = 12
# Matches commands in backticks or on their own line, and two commands without arguments anywhere.
_COMMAND: Final = re.compile(
    r"`gc-assets (?P<quoted>[^`\n]+)`|^(?P<indent>[ \t]*)gc-assets (?P<own>\S.*?)[ \t]*$|\bgc-assets (?P<bare>plans|run)\b(?! -)",
    re.MULTILINE,
)
_OPTION: Final = re.compile(
    r"(?<![\w`-])--(?P<name>by|override|plan|prefix|key|storage|history|comment)(?![\w-])(?: (?P<value>[A-Z][A-Z_]*\b))?"
)
_NUMBER: Final = re.compile(r"[0-9]+(e[0-9]+)?")
_QUOTED_OVERRIDE: Final = re.compile(r"`--override (?P<gate>\w+)`")
_OPTION_FIELDS: Final = {"plan": "plan_id"}
# Without a partition, Dagster asks for a confirmation.
CHOOSE_PLAN: Final = "in the launchpad of the `approve` job, choose this plan as Partition"
_PLANS: Final = "the page of the `deletion_plan` asset"


def to_page_message(message: str, config: Config) -> str:
    """Rewrite a message for Dagster's page.

    Args:
        message: A message that suggests commands and options.
        config: The configuration. Its key `page_may` controls which jobs are available.
    """
    parts, end = list[str](), 0
    for match in _COMMAND.finditer(message):
        parts += [_name_fields(message[end : match.start()]), _replace(match, config)]
        end = match.end()
    return "".join([*parts, _name_fields(message[end:])])


def approve_action(config: Config, header: PlanHeader, *, short: bool = False) -> str:
    """Describe how to approve a plan, including the overrides that its failed gates require.

    If `page_may` does not include the `approve` job, the command is suggested.
    """
    if "approve" not in config.page_may:
        return f"`{override_command(header)}`"
    if short:
        return "`approve` job" + (" with `override`" if header.failed_gates else "")
    overrides = _overrides(header)
    return f"{CHOOSE_PLAN}, and enter your name as `by`" + (f" and `override: {overrides}`" if overrides else "")


def approve_config(header: PlanHeader) -> Iterator[str]:
    """Yield the lines of YAML that approve a refused plan. The user still has to enter a name."""
    yield from ("ops:", "  approve_plan:", "    config:", f'      plan_id: "{header.plan_id[:_SHORT_ID]}"')
    yield from ('      by: ""', '      comment: ""', f"      override: {_overrides(header)}")


def _overrides(header: PlanHeader) -> str:
    """Format the failed gates as the value of `override`, or return "" if no gate failed."""
    names = sorted({gate_name(gate.name) for gate in header.failed_gates})
    return f"[{', '.join(names)}]" if names else ""


def apply_action(config: Config, header: PlanHeader, *, short: bool = False) -> str:
    """Describe how to apply an approved plan, with the sensor or the `apply` job."""
    job = "`apply` job" if short else f"launch the `apply` job for the partition {header.run_date} with this configuration"
    if config.storage(header.storage).mode != "apply":
        return job
    return f"`approved_plans` sensor or {job}" if short else f"turn on the `approved_plans` sensor, or {job}"


def apply_config(config: Config, header: PlanHeader) -> Iterator[str]:
    """Yield the lines of YAML that apply an approved plan, even if the storage is in `plan` mode."""
    step = step_name(asset_key(config, header.storage, DELETION_LOG))
    yield from ("ops:", f"  {step}:", "    config:", f'      plan_id: "{header.plan_id[:_SHORT_ID]}"')
    if config.storage(header.storage).mode != "apply":
        yield "      mode: apply"


def next_actions(config: Config, plan: StoredPlan) -> Iterator[str]:
    """Suggest what the user can do after the apply of a plan: continue it, plan again, or undo it."""
    plan_id = plan.header.plan_id[:_SHORT_ID]
    if plan.finished is None:
        yield f"**To continue**: {_launch('apply', {'plan_id': plan_id})}"
    elif plan.not_done:
        yield "**Next**: the `run` job plans again what is still garbage"
    moved = plan.effective_header.totals.get(QUARANTINE)
    if plan.finished is not None and moved is not None and moved.files:
        undo = command("restore", plan=plan_id)
        action = _action(undo.partition(" ")[2], config) or f"`{undo}`"
        yield f"**To restore** the quarantined files, before a later plan purges them: {action}"


def _name_fields(text: str) -> str:
    """Replace command options such as `--by` with the names of fields in the launchpad."""
    text = _QUOTED_OVERRIDE.sub(r"`override: [\g<gate>]`", text)
    return _OPTION.sub(lambda match: f"`{_OPTION_FIELDS.get(match['name'], match['name'])}`", text)


def _replace(match: re.Match[str], config: Config) -> str:
    action = _action(match["quoted"] or match["own"] or match["bare"], config)
    if action is None:
        return match[0]
    return action if match["own"] is None else f"{match['indent']}Launch {action}"


def _action(text: str, config: Config) -> str | None:
    """Translate a command to an action on Dagster's page, or return None if no job does the same."""
    try:
        name, *arguments = shlex.split(text)
    except ValueError:
        return None
    fields = dict(_fields(arguments))
    match name:
        case "run":
            run_date = fields.get("run_date")
            return "the `run` job" + (f" for the partition {run_date}" if run_date else "")
        case "plans" if not arguments:
            return _PLANS
        case "apply" if "end" not in fields and "phase" not in fields:
            mode = {"mode": fields["mode"]} if "mode" in fields else {}
            return _launch("apply", {"plan_id": fields.get("plan_id", ""), **mode})
        case "approve" | "reject" | "restore" if name in config.page_may:
            return _launch(name, fields)
        case _:
            return None


def _launch(job: str, fields: Mapping[str, str]) -> str:
    shown = ", ".join(f"{name}: {_quote_number(value)}" for name, value in fields.items() if value)
    return f"the `{job}` job" + (f" with `{shown}`" if shown else "")


def _quote_number(value: str) -> str:
    """Quote a value that YAML would otherwise read as a number, such as the plan id `12345678`."""
    return f'"{value}"' if _NUMBER.fullmatch(value) else value


def _fields(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Translate the arguments of a command to fields of the job's configuration."""
    overrides = list[str]()
    left = iter(arguments)
    for word in left:
        if word == "--":
            continue
        if not word.startswith("--"):
            yield "plan_id", word
            continue
        option, separator, value = word[2:].partition("=")
        field = _OPTION_FIELDS.get(option, option).replace("-", "_")
        if field in {"history", "end"}:
            yield field, "true"
        elif field == "override":
            overrides.append(value if separator else next(left, ""))
        else:
            yield field, value if separator else next(left, "")
    if overrides:
        yield "override", f"[{', '.join(overrides)}]"
