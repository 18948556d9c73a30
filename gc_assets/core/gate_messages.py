"""Adapt the messages of failed gates to what the user can do."""

from __future__ import annotations

from collections.abc import Sequence

from gc_assets.core.gates import OVERRIDE
from gc_assets.core.plan import GateResult


def message_of(gate: GateResult, failed: Sequence[GateResult]) -> str:
    """Return the message of a failed gate, without its override if the plan cannot be approved.

    Args:
        failed: All failed gates of the plan. If one cannot be overridden, no approval is possible.
    """
    if all(other.overridable for other in failed):
        return gate.message
    return without_override(gate)


def without_override(gate: GateResult) -> str:
    """Remove the sentence about the override from the message of a gate."""
    return gate.message.removesuffix(OVERRIDE.format(name=gate.name)).rstrip()
