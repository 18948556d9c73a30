"""Friendlier usage errors than click's own, with the valid values and the command for help."""

from __future__ import annotations

import re
from typing import IO, Any, Final

import click

from gc_assets.cli.output import print_command, print_message
from gc_assets.core.suggest import did_you_mean, join_names

# click raises these errors as a plain UsageError, so they can only be recognized by their message.
_MESSAGES: Final = (
    (re.compile(r"Got unexpected extra arguments? \((?P<name>.*)\)\.?", re.DOTALL), "{name} is not expected here."),
    (re.compile(r"Option '(?P<name>[^']*)' requires an argument\."), "{name} needs a value."),
    (re.compile(r"Option '(?P<name>[^']*)' does not take a value\."), "{name} takes no value."),
    (re.compile(r"Missing command\."), "a command is missing."),
)
_UNKNOWN_COMMAND: Final = re.compile(r"No such command '(?P<name>[^']*)'.*", re.DOTALL)
_VALUE: Final = re.compile(r"'?(?P<value>.*?)'? is not one of ", re.DOTALL)


class ReadableUsageError(click.UsageError):
    """A usage error that is printed like all other errors of gc-assets.

    Args:
        error: click's error.
        command_path: The command to suggest for help if the error has no context.
    """

    def __init__(self, error: click.UsageError, command_path: str) -> None:
        super().__init__(error.format_message(), error.ctx)
        self._error, self._command_path = error, command_path

    def show(self, file: IO[Any] | None = None) -> None:
        del file  # not used: the error is always written to standard error
        print_message(f"gc-assets: {describe_usage_error(self._error)}", "failed")
        if self.ctx is not None and _is_about_arguments(self._error):
            print_message(self.ctx.get_usage())
        print_command("Help", f"{self.ctx.command_path if self.ctx is not None else self._command_path} --help")


def describe_usage_error(error: click.UsageError) -> str:
    """Describe an error in the command line and suggest a correction."""
    if isinstance(error, click.NoSuchOption):
        options = [name for param in (error.ctx.command.params if error.ctx is not None else ()) for name in param.opts]
        return f"there is no option {error.option_name}{did_you_mean(error.option_name, options) or '.'}"
    if isinstance(error, click.MissingParameter):
        explanation = error.param.type.get_missing_message(error.param, error.ctx) if error.param is not None else None
        is_choice = error.param is not None and isinstance(error.param.type, click.Choice)
        return f"{_name(error)} is missing. {explanation if explanation and not is_choice else ''}".rstrip()
    if isinstance(error, click.BadParameter):
        return f"{_name(error)}: {_describe_value(error)}"
    text = error.format_message()
    if (match := _UNKNOWN_COMMAND.fullmatch(text)) is not None:
        group = error.ctx.command if error.ctx is not None else None
        names = group.list_commands(error.ctx) if isinstance(group, click.Group) and error.ctx is not None else []
        return f"there is no command {match['name']}{did_you_mean(match['name'], names) or '.'}"
    matches = ((pattern.fullmatch(text), replacement) for pattern, replacement in _MESSAGES)
    return next((replacement.format(**match.groupdict()) for match, replacement in matches if match is not None), text)


def _describe_value(error: click.BadParameter) -> str:
    """Describe an invalid value. Unlike click's message, choices are not quoted."""
    kind, match = error.param.type if error.param is not None else None, _VALUE.match(error.message)
    if match is None or not isinstance(kind, click.Choice):
        return error.message
    choices = [str(choice) for choice in kind.choices]
    return f"{match['value']!r} is not one of {join_names(choices)}{did_you_mean(match['value'], choices) or '.'}"


def _name(error: click.BadParameter) -> str:
    """Return the name of the parameter as the user would type it."""
    param = error.param
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    if param is not None:
        return param.make_metavar(error.ctx) if error.ctx is not None else (param.name or "")
    return " or ".join([error.param_hint] if isinstance(error.param_hint, str) else error.param_hint or ["a value"])


def _is_about_arguments(error: click.UsageError) -> bool:
    if isinstance(error, click.MissingParameter):
        return isinstance(error.param, click.Argument)
    return error.format_message().startswith("Got unexpected extra")
