"""Check that servers answer within a time limit, before `doctor` examines their lakes and storages.

Without this, every single check of an unreachable server would go through all retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from gc_assets.core.causes import CANNOT_CONNECT, cause_of
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import GcError
from gc_assets.core.findings import FAIL, Finding
from gc_assets.core.paths import FILE, scheme_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import as_remote
from gc_assets.stages.read.access import Call

ACCESS_SECONDS: Final = 15.0
LAKE_CHECK: Final = "readable"
STORAGE_CHECK: Final = "listable"
_CONCURRENT: Final = 8
_FIX_FIRST: Final = "Fix this first. No plan can be made or applied until then."
_REPEAT: Final = "Check the server, and that this machine is not overloaded, then run gc-assets doctor again. A run waits longer."


def find_unreachable(context: RunContext, seconds: float = ACCESS_SECONDS) -> dict[str, Finding]:
    """Contact the servers of all lakes and storages, and report those that do not answer.

    Other errors, such as a wrong key, are left to the checks of the lake or storage.

    Returns:
        The findings, keyed by the name of the lake or storage.
    """
    calls = list(_remote_calls(context))
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        found = pool.map(partial(_find_problem, seconds), *zip(*calls, strict=True)) if calls else ()
        return {finding.subject: finding for finding in found if finding is not None}


def _remote_calls(context: RunContext) -> Iterator[tuple[str, str, Call]]:
    for lake in context.config.lakes:
        remote = as_remote(context.lake(lake.name))
        if remote is not None:
            yield lake.name, LAKE_CHECK, remote.check_access
    for storage in context.config.storages:
        if scheme_of(storage.location) != FILE:
            yield storage.name, STORAGE_CHECK, context.store(storage.name).check_access


def _find_problem(seconds: float, subject: str, check: str, call: Call) -> Finding | None:
    try:
        run_with_deadline(seconds, subject, call)
    except TimeoutError:
        return Finding(subject, check, FAIL, f"no answer within {seconds:,.0f} s", _REPEAT)
    except (GcError, OSError) as error:
        cause = cause_of(error)
        return Finding(subject, check, FAIL, str(error), _FIX_FIRST, cause) if cause.startswith(CANNOT_CONNECT) else None
    return None
