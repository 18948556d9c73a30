"""Send pending events to all targets, and notify the others if a target fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from gc_assets.config.notify import Command, Email, Slack, Target, Webhook
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.deliveries import Deliveries
from gc_assets.core.notifications import Notification, target_failed
from gc_assets.notify import TIMEOUT_SECONDS, DeliveryError
from gc_assets.notify.mail import send_mail
from gc_assets.notify.program import run_command
from gc_assets.notify.web import post_document, post_to_slack

NewEvents = Mapping[str, tuple[Notification, ...]]
# A hard limit, because the timeout of a connection does not apply to a name server that hangs.
_TIMEOUT_SECONDS: Final = TIMEOUT_SECONDS + 5


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of sending the active events to all targets.

    Attributes:
        delivered: How many events each target received.
        failed: The error of each target that failed.
        deliveries: The updated record of deliveries, to be passed to the next call.
    """

    delivered: Mapping[str, int]
    failed: Mapping[str, str]
    deliveries: Deliveries

    def __str__(self) -> str:
        found = [f"delivered {count:,} event{'s' if count != 1 else ''} to {name}" for name, count in self.delivered.items()]
        found += [f"cannot deliver to {name}: {reason}" for name, reason in self.failed.items()]
        return "; ".join(found) or "no new event"


def deliver(targets: Sequence[Target], active: Iterable[Notification], deliveries: Deliveries, *, is_all: bool = True) -> DeliveryResult:
    """Send each target the events that it has not received yet. Targets are called in parallel.

    If a target fails, the other targets are notified of the failure, and the next call tries the
    target again.

    Args:
        targets: The configured targets.
        active: The events that are currently active.
        deliveries: The record of deliveries by earlier calls.
        is_all: Whether `active` is complete. If it is, events that are missing from it have ended.
    """
    now = list(active)
    first, failed = _send_all(targets, _new_events(targets, deliveries, now))
    failures = [target_failed(name, reason) for name, reason in failed.items()]
    others = [target for target in targets if target.name not in failed]
    second, failed_later = _send_all(others, _new_events(others, deliveries, failures))
    delivered = {target.name: (*first.get(target.name, ()), *second.get(target.name, ())) for target in targets}
    names = [target.name for target in targets]
    return DeliveryResult(
        {name: len(items) for name, items in delivered.items() if items},
        {**failed, **failed_later},
        deliveries.record(delivered, names, [*now, *failures] if is_all else None),
    )


def _new_events(targets: Iterable[Target], deliveries: Deliveries, active: Sequence[Notification]) -> NewEvents:
    found = {target.name: deliveries.pending(target.name, target.events, active) for target in targets}
    return {name: items for name, items in found.items() if items}


def _send_all(targets: Iterable[Target], new_events: NewEvents) -> tuple[NewEvents, Mapping[str, str]]:
    """Call all targets with new events. Returns delivered events, and the error of each failure."""
    batches = [(target, new_events[target.name]) for target in targets if target.name in new_events]
    with ThreadPoolExecutor(max(1, len(batches))) as pool:
        failed = dict(found for found in pool.map(_try_send, batches) if found is not None)
    return {target.name: items for target, items in batches if target.name not in failed}, failed


def _try_send(batch: tuple[Target, Sequence[Notification]]) -> tuple[str, str] | None:
    target, items = batch
    try:
        run_with_deadline(_TIMEOUT_SECONDS, f"target {target.name}", lambda: _send(target, items), exclusive=True)
    except DeliveryError as error:
        return target.name, str(error)
    except TimeoutError:
        return target.name, f"no answer within {_TIMEOUT_SECONDS:.0f} s"
    except Exception as error:  # noqa: BLE001  (deliveries to the other targets must be recorded)
        return target.name, type(error).__name__  # its message may contain a secret
    return None


def _send(target: Target, items: Sequence[Notification]) -> None:
    match target:
        case Webhook():
            post_document(target, items)
        case Slack():
            post_to_slack(target, items)
        case Email():
            send_mail(target, items)
        case Command():
            run_command(target, items)
