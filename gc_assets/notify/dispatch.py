"""Tells each target what is new to it, and the others which target could not be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from gc_assets.config.notify import Command, Email, Slack, Target, Webhook
from gc_assets.core.deadline import within
from gc_assets.core.deliveries import Told
from gc_assets.core.notifications import Notification, target_failed
from gc_assets.notify.mail import send_mail
from gc_assets.notify.program import run_command
from gc_assets.notify.undelivered import SECONDS, Undelivered
from gc_assets.notify.web import post_document, post_to_slack

News = Mapping[str, tuple[Notification, ...]]
# A name server that hangs is in no timeout of a connection.
_LONGEST: Final = SECONDS + 5


@dataclass(frozen=True, slots=True)
class Round:
    """What came of telling: how many events each target was told, why others could not be told, and
    what is to be remembered.
    """

    delivered: Mapping[str, int]
    failed: Mapping[str, str]
    told: Told

    def __str__(self) -> str:
        found = [f"told {name} of {count:,} event{'s' if count != 1 else ''}" for name, count in self.delivered.items()]
        found += [f"could not tell {name}: {why}" for name, why in self.failed.items()]
        return "; ".join(found) or "nothing new"


def tell(targets: Sequence[Target], happening: Iterable[Notification], told: Told, *, is_all: bool = True) -> Round:
    """Tells every target what it was not told yet, all at the same time. A target that fails is told
    again in the next round, and the others hear of it.

    `is_all` says that an event which is not in `happening` is over.
    """
    now = list(happening)
    first, failed = _told_all(targets, _news(targets, told, now))
    complaints = [target_failed(name, why) for name, why in failed.items()]
    others = [target for target in targets if target.name not in failed]
    second, failed_later = _told_all(others, _news(others, told, complaints))
    delivered = {target.name: (*first.get(target.name, ()), *second.get(target.name, ())) for target in targets}
    names = [target.name for target in targets]
    return Round(
        {name: len(items) for name, items in delivered.items() if items},
        {**failed, **failed_later},
        told.after(delivered, names, [*now, *complaints] if is_all else None),
    )


def _news(targets: Iterable[Target], told: Told, happening: Sequence[Notification]) -> News:
    found = {target.name: told.news(target.name, target.events, happening) for target in targets}
    return {name: items for name, items in found.items() if items}


def _told_all(targets: Iterable[Target], news: News) -> tuple[News, Mapping[str, str]]:
    """Returns what was delivered to whom, and why the others could not be told."""
    asked = [(target, news[target.name]) for target in targets if target.name in news]
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        failed = dict(found for found in pool.map(_attempt, asked) if found is not None)
    return {target.name: items for target, items in asked if target.name not in failed}, failed


def _attempt(asked: tuple[Target, Sequence[Notification]]) -> tuple[str, str] | None:
    target, items = asked
    try:
        within(_LONGEST, target.name, lambda: _send(target, items))
    except Undelivered as error:
        return target.name, str(error)
    except TimeoutError:
        return target.name, f"no answer within {_LONGEST:.0f} s"
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
