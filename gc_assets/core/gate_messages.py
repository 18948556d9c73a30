"""Build the user-visible messages of failed gates."""

from __future__ import annotations

from collections.abc import Sequence

from gc_assets.core.gates import OVERRIDE
from gc_assets.core.plan import GateResult


def message_of(gate: GateResult, failed: Sequence[GateResult]) -> str:
    """Return the message of a failed gate. It contains the override only if the plan can be
    approved.

    Args:
        failed: All failed gates of the plan.
    """
    if all(other.overridable for other in failed):
        return gate.message
    return without_override(gate)


def without_override(gate: GateResult) -> str:
    """Return the message of a gate without its override command."""
    return gate.message.removesuffix(OVERRIDE.format(name=gate.name)).rstrip()
