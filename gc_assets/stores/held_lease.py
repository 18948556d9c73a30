"""Hold the lease of a storage during a block: renew it regularly, and release it at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Final

from gc_assets.core.errors import GcError, LeaseLost
from gc_assets.stores.protocol import Lease

# If one renewal fails, there is time for another one before the lease expires.
_RENEWALS_PER_DURATION: Final = 3
_log: Final = logging.getLogger(__name__)


@contextmanager
def hold_lease(lease: Lease) -> Generator[None]:
    """Renew a lease in a thread while the block runs, and release it at the end.

    The lease of a suspended or killed process still expires. If another process has taken the lease
    over, it is not renewed, and the next `Lease.check` fails.

    If both the block and the release fail, the error of the block is raised. The error of the
    release is only logged, because the lease expires anyway.
    """
    ended = threading.Event()
    renewal = threading.Thread(
        target=copy_context().run, args=(_renew_regularly, lease, ended), name=f"renewal of lease {lease.token}", daemon=True
    )
    try:
        renewal.start()
        yield
    except BaseException:
        try:
            _release(lease, renewal, ended)
        except (OSError, GcError) as error:
            _log.warning("lease %d could not be released and will expire: %s", lease.token, error)
        raise
    _release(lease, renewal, ended)


def _release(lease: Lease, renewal: threading.Thread, ended: threading.Event) -> None:
    ended.set()
    if renewal.is_alive():
        renewal.join()  # a renewal that finished after the release would revive the lease
    lease.release()


def _renew_regularly(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(lease.duration.total_seconds() / _RENEWALS_PER_DURATION):
        try:
            lease.renew()
        except (OSError, GcError) as error:
            _log.warning("lease %d could not be renewed: %s", lease.token, error)
            if isinstance(error, LeaseLost):
                return
