"""Targets in `notify` of `lakes.yaml`, and errors that do not contain their secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gc_assets.config.file import load_config
from gc_assets.config.models import Config
from gc_assets.config.notify import Command, Email, Slack, Webhook
from gc_assets.core.errors import UsageError
from gc_assets.core.notifications import EVENTS
from gc_assets.lakes.kinds import config_models

URL = "https://hooks.example.org/services/T0/B0/s3cr3t"
HOOK = {"name": "alerts", "kind": "webhook", "url": URL}
MAIL = {"name": "mail", "kind": "email", "server": "smtp.example.org", "sender": "gc@example.org", "to": ["lakes@example.org"]}


def load(folder: Path, *targets: Any, **environment: str) -> Config:
    document = {
        "state": "./state",
        "storages": [{"name": "warehouse", "location": "./warehouse"}],
        "lakes": [{"name": "weather", "kind": "icechunk", "location": "./warehouse/weather"}],
        "notify": list(targets),
    }
    path = folder / "lakes.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_config(path, environment, config_models())


def refusal(folder: Path, *targets: Any) -> str:
    with pytest.raises(UsageError) as error:
        load(folder, *targets)
    return str(error.value)


def test_notification_target_kinds_have_separate_models(tmp_path: Path) -> None:
    slack = {"name": "team", "kind": "slack", "url": "${SLACK}", "events": ["plan_refused"]}
    command = {"name": "pager", "kind": "command", "command": ["page", "--team", "lakes"]}
    config = load(tmp_path, HOOK, slack, MAIL, command, SLACK=URL)
    assert [type(target) for target in config.notify] == [Webhook, Slack, Email, Command]
    assert [len(target.events) for target in config.notify] == [len(EVENTS), 1, len(EVENTS), len(EVENTS)]
    targets = config.notify[1]
    assert isinstance(targets, Slack)
    assert targets.url.get_secret_value() == URL


def test_there_are_no_notification_targets_by_default(tmp_path: Path) -> None:
    assert load(tmp_path).notify == ()


def test_notification_targets_do_not_change_policy_digest(tmp_path: Path) -> None:
    assert load(tmp_path).policy_digest() == load(tmp_path, HOOK).policy_digest()


@pytest.mark.parametrize(
    "target, message",
    [
        ("alerts", "notify[0]: expected a mapping with the keys name and kind"),
        ({"name": "a", "kind": "pigeon"}, "notify[0].kind: expected one of webhook, slack, email, command (found 'pigeon')"),
        ({**HOOK, "uri": URL}, "notify[0].uri: unknown key"),
        ({**HOOK, "events": ["plan_eaten"]}, "notify[0].events"),
        ({**HOOK, "url": "ftp://hooks.example.org/s3cr3t"}, "notify[0].url: expected a URL with http:// or https://"),
        ({**HOOK, "url": "https:///s3cr3t"}, "notify[0].url: expected a URL with http:// or https://"),
        ({**HOOK, "url": "https://hooks.example.org:s3cr3t/"}, "notify[0].url: expected a URL"),
        ({**HOOK, "url": "https://ada:s3cr3t@hooks.example.org/"}, "notify[0].url: a URL must not contain a user or password"),
        ({**HOOK, "url": ["s3cr3t"]}, "notify[0].url: expected a string, preferably as ${NAME}"),
        (
            {**HOOK, "headers": {"Authorization": "s3cr3t\r\nX: y"}},
            "notify[0].headers.Authorization: a header may contain only printable ASCII characters",
        ),
        ({**HOOK, "headers": "Authorization: s3cr3t"}, "notify[0].headers: expected a mapping of names and values"),
        ({**HOOK, "headers": {"Authorization: s3cr3t": "x"}}, "notify[0].headers: a header name may contain only letters"),
        ({**MAIL, "to": []}, "notify[0].to"),
        ({**MAIL, "to": ["lakes@example.org\nBcc: all@example.org"]}, "notify[0].to[0]"),
        ({**MAIL, "username": "ada"}, "notify[0]: username and password require each other"),
        ({**MAIL, "username": "ada", "password": "s3cr3t", "security": "none"}, "notify[0]: with `security: none` the password"),
        ({**MAIL, "username": "ada", "password": 53274}, "notify[0].password: expected a string, preferably as ${NAME}"),
        ({"name": "pager", "kind": "command", "command": []}, "notify[0].command"),
        ({"name": "pager", "kind": "command", "command": "page --team lakes"}, "notify[0].command"),
    ],
)
def test_wrong_target_error_contains_no_secret(tmp_path: Path, target: Any, message: str) -> None:
    message = refusal(tmp_path, target)
    assert message in message
    assert not any(secret in message for secret in ("s3cr3t", "53274"))


def test_repeated_target_name_is_rejected(tmp_path: Path) -> None:
    assert "every target of notify needs a unique name; used twice: alerts" in refusal(tmp_path, HOOK, HOOK)


def test_target_repr_hides_secrets(tmp_path: Path) -> None:
    target = {**HOOK, "headers": {"Authorization": "Bearer s3cr3t"}}
    mail = {**MAIL, "username": "ada", "password": "s3cr3t"}
    config = load(tmp_path, target, mail)
    assert "s3cr3t" not in repr(config) + str(config) + config.model_dump_json()
