"""Validation of Spark addresses."""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator

LOCAL: Final = "local[*]"
_LOCAL: Final = re.compile(r"local(\[.+\])?")
_CONNECT: Final = "sc://"
# These Spark Connect parameters are rejected, for the given reason.
_FORBIDDEN_PARAMETERS: Final = {
    "token": "an address must not contain a secret; write `spark.token: ${NAME}`",
    "session_id": "each run uses its own session",
}


def is_local(master: str) -> bool:
    """Return True if Spark would run on this machine with this master address."""
    return _LOCAL.fullmatch(master) is not None


def _check_remote(remote: str) -> str:
    if is_local(remote):
        return remote
    address, *parameters = remote.split(";")
    found = urlsplit(address)
    if "@" in address:
        raise ValueError("an address must not contain a user or password; write the token of the server as `spark.token: ${NAME}`")
    is_address = remote.startswith(_CONNECT) and found.hostname and _has_port(found) and found.path in {"", "/"}
    if not is_address or (parameters and not found.path):
        raise ValueError("expected sc://host:port, with parameters as in sc://host:15002/;use_ssl=true, or local[N]")
    for parameter in filter(None, parameters):
        name, equals, value = parameter.partition("=")
        if name in _FORBIDDEN_PARAMETERS:
            raise ValueError(f"parameter {name!r} is not allowed: {_FORBIDDEN_PARAMETERS[name]}")
        if not equals:
            raise ValueError(f"parameter {name!r} has no value; write {name}=VALUE")
        if "=" in value:
            raise ValueError(f"the value of parameter {name!r} contains `=`; write %3D instead")
    return remote


def without_parameters(remote: str) -> str:
    """Strip the parameters from a Spark Connect address, which may contain a proxy's credentials."""
    return remote.partition(";")[0]


def _has_port(address: SplitResult) -> bool:
    """Check that the port, if the address has one, is a number."""
    try:
        return address.port != 0
    except ValueError:
        return False


Remote = Annotated[str, AfterValidator(_check_remote)]
