"""Recognize secrets by the names of settings, request headers and URL parameters.

Pure: the module knows names and texts, but no configuration model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# Values with these names are not shown. Some of them are not secret, such as `s3.access-key-id`.
SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|key|auth|cookie|signature|jwt|bearer|connection[._-]?string|"
    r"(?<![a-z])(?:sas|sig)(?![a-z0-9])",
    re.IGNORECASE,
)
# Values of request headers that authenticate the client.
AUTHENTICATION: Final = re.compile(r"\s*((bearer|basic|digest|negotiate|token)\s|eyJ[\w-]+\.)", re.IGNORECASE)

# The rest of a name that describes a secret but does not contain it, such as `key-id`.
_DESCRIPTION: Final = (
    r"s?[._-]?(?:arn|class|enabled|endpoint|expires|file|name|path|prefix|provider|refresh|region|scope|type|"
    r"ur[il]|variable)(?![a-z])"
)
_CERTAIN: Final = re.compile(
    r"(?:secret|passw(?:or)?d|passphrase|pwd|token|credential|authorization|cookie|signature|jwt|bearer|connection[._-]?string|"
    r"(?<![a-z])sig(?![a-z0-9])|(?<![a-z])sas(?![a-z0-9]|[._-]token)|(?<!ssl)(?<!\]\.)key(?![a-z]|[._-]id)|(?<![a-z])auth$|header\.\S*session)"
    rf"(?!{_DESCRIPTION})",
    re.IGNORECASE,
)
_PASSWORD: Final = re.compile(r"://[^/@:\s]*:([^/@\s]+)@")
_PAIR: Final = re.compile(r"(?<=[?&;\s])([^\s?&;=/]+)=([^\s&;]+)")
# References that are resolved later: variables, Databricks secrets, EMR secrets and names on AWS.
_REFERENCE: Final = re.compile(r"\$\{[^{}]+\}|\{\{secrets/[^{}]+\}\}|^EMR\.secret@|^arn:")
_SWITCH: Final = re.compile(r"true|false|", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Check whether the value with this name is certainly a secret, and not only related to one.

    Args:
        name: The name or path of a setting. `key` of a list item is a name and no secret.
    """
    return _CERTAIN.search(name) is not None


def contains_literal_secret(name: str, value: str) -> bool:
    """Check whether a setting contains a secret and not only references to secrets.

    The value itself can be the secret. It can also contain one, as the password of a URL, as a
    `name=value` pair of a URL or connection string, or as the authentication in a request header.
    """
    if is_secret_name(name) and _is_literal(value):
        return True
    if "header" in name.lower() and AUTHENTICATION.match(value) and _is_literal(value):
        return True
    return any(map(_is_literal, _secrets_in(value)))


def _secrets_in(value: str) -> Iterator[str]:
    yield from _PASSWORD.findall(value)
    pairs = f";{value}" if ";" in value or "&" in value else value
    yield from (secret for name, secret in _PAIR.findall(pairs) if is_secret_name(name))


def _is_literal(value: str) -> bool:
    return _REFERENCE.search(value) is None and _SWITCH.fullmatch(value) is None
