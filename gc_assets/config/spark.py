"""Addresses of a Spark: which are of this machine, and what may stand in that of a Spark Connect
server.
"""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator

LOCAL: Final = "local[*]"
_LOCAL: Final = re.compile(r"local(\[.+\])?")
_CONNECT: Final = "sc://"
# Parameters of Spark Connect that have no place in the address.
_ELSEWHERE: Final = {
    "token": "a secret has no place in an address: write `spark.token: ${NAME}`",
    "session_id": "each run has a session of its own",
}


def is_local(master: str) -> bool:
    """Says whether a master, or what stands in its place, means executors on this machine."""
    return _LOCAL.fullmatch(master) is not None


def _reachable(remote: str) -> str:
    if is_local(remote):
        return remote
    place, *parameters = remote.split(";")
    found = urlsplit(place)
    if "@" in place:
        raise ValueError("no user and password here: a secret has no place in an address, and `spark.token` is what the server asks for")
    is_place = remote.startswith(_CONNECT) and found.hostname and _has_port(found) and found.path in {"", "/"}
    if not is_place or (parameters and not found.path):
        raise ValueError("write sc://host:port, with parameters as in sc://host:15002/;use_ssl=true, or local[N]")
    for parameter in filter(None, parameters):
        name, equals, value = parameter.partition("=")
        if name in _ELSEWHERE:
            raise ValueError(f"no {name} here: {_ELSEWHERE[name]}")
        if not equals:
            raise ValueError(f"parameter {name!r} has no value; write {name}=VALUE")
        if "=" in value:
            raise ValueError(f"parameter {name!r} has a value with `=` in it; write %3D for it")
    return remote


def place_of(remote: str) -> str:
    """Returns an address without its parameters, which may be somebody's login at a proxy."""
    return remote.partition(";")[0]


def _has_port(place: SplitResult) -> bool:
    """Says whether a port is a number, or none is named."""
    try:
        return place.port != 0
    except ValueError:
        return False


Remote = Annotated[str, AfterValidator(_reachable)]
