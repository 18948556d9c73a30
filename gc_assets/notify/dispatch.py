"""Tells each target what is new to it, and the others which target could not be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from gc_assets.config.notify import Command, Email, Slack, Target, Webhook
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.deliveries import Deliveries
from gc_assets.core.notifications import Notification, target_failed
from gc_assets.notify.mail import send_mail
from gc_assets.notify.program import run_command
from gc_assets.notify.undelivered import TIMEOUT_SECONDS, DeliveryError
from gc_assets.notify.web import post_document, post_to_slack

NewEvents = Mapping[str, tuple[Notification, ...]]
# A name server that hangs is in no timeout of a connection.
_TIMEOUT_SECONDS: Final = TIMEOUT_SECONDS + 5


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What came of telling: how many events each target was told, why others could not be told, and
    what is to be remembered.
    """

    delivered: Mapping[str, int]
    failed: Mapping[str, str]
    told: Deliveries

    def __str__(self) -> str:
        found = [f"told {name} of {count:,} event{'s' if count != 1 else ''}" for name, count in self.delivered.items()]
        found += [f"could not tell {name}: {why}" for name, why in self.failed.items()]
        return "; ".join(found) or "nothing new"


def deliver(targets: Sequence[Target], happening: Iterable[Notification], told: Deliveries, *, is_all: bool = True) -> DeliveryResult:
    """Tells every target what it was not told yet, all at the same time. A target that fails is told
    again in the next round, and the others hear of it.

    `is_all` says that an event which is not in `happening` is over.
    """
    now = list(happening)
    first, failed = _send_all(targets, _new_events(targets, told, now))
    complaints = [target_failed(name, why) for name, why in failed.items()]
    others = [target for target in targets if target.name not in failed]
    second, failed_later = _send_all(others, _new_events(others, told, complaints))
    delivered = {target.name: (*first.get(target.name, ()), *second.get(target.name, ())) for target in targets}
    names = [target.name for target in targets]
    return DeliveryResult(
        {name: len(items) for name, items in delivered.items() if items},
        {**failed, **failed_later},
        told.record(delivered, names, [*now, *complaints] if is_all else None),
    )


def _new_events(targets: Iterable[Target], told: Deliveries, happening: Sequence[Notification]) -> NewEvents:
    found = {target.name: told.pending(target.name, target.events, happening) for target in targets}
    return {name: items for name, items in found.items() if items}


def _send_all(targets: Iterable[Target], news: NewEvents) -> tuple[NewEvents, Mapping[str, str]]:
    """Returns what was delivered to whom, and why the others could not be told."""
    asked = [(target, news[target.name]) for target in targets if target.name in news]
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        failed = dict(found for found in pool.map(_try_send, asked) if found is not None)
    return {target.name: items for target, items in asked if target.name not in failed}, failed


def _try_send(asked: tuple[Target, Sequence[Notification]]) -> tuple[str, str] | None:
    target, items = asked
    try:
        run_with_deadline(_TIMEOUT_SECONDS, target.name, lambda: _send(target, items))
    except DeliveryError as error:
        return target.name, str(error)
    except TimeoutError:
        return target.name, f"no answer within {_TIMEOUT_SECONDS:.0f} s"
    except Exception as error:  # noqa: BLE001  (whatever it is, the others were told, which must be remembered)
        return target.name, type(error).__name__  # its words may hold a secret
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
