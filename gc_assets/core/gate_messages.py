"""Adapt the messages of failed gates to the actions available to the user."""

from __future__ import annotations

from collections.abc import Sequence

from gc_assets.core.gates import OVERRIDE
from gc_assets.core.plan import GateResult


def message_of(gate: GateResult, failed: Sequence[GateResult]) -> str:
    """Return the message of a failed gate, without the override hint if approval is impossible.

    Args:
        failed: All failed gates of the plan. If one cannot be overridden, no approval is possible.
    """
    if all(other.overridable for other in failed):
        return gate.message
    return without_override(gate)


def without_override(gate: GateResult) -> str:
    """Remove the override hint from a gate message."""
    return gate.message.removesuffix(OVERRIDE.format(name=gate.name)).rstrip()
