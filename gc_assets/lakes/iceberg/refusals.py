"""Distinguish permanent refusals by a catalog or its store from errors that may be temporary.

The difference matters for commits. After a refusal, nothing was written and a retry would fail.
After any other error, the commit may have taken effect, or a retry may succeed.
"""

from __future__ import annotations

import re
import sqlite3
from http import HTTPStatus
from typing import Any, Final

from pyiceberg.exceptions import BadRequestError, ForbiddenError, NotInstalledError, RESTError, UnauthorizedError

from gc_assets.core.errors import is_permanent

# For S3 responses, Arrow raises an OSError without errno.
_DENIED_BY_S3: Final = re.compile(r"AWS Error ACCESS_DENIED|AccessDenied")
_AWS_CODES: Final = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"})
# PostgreSQL: insufficient_privilege, read_only_sql_transaction.
_SQL_STATES: Final = frozenset({"42501", "25006"})
# MySQL: ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR, ER_OPTION_PREVENTS_STATEMENT.
_MYSQL_CODES: Final = frozenset({1044, 1142, 1290})
_PERMANENT: Final = (ForbiddenError, UnauthorizedError, BadRequestError, NotImplementedError, NotInstalledError)


def is_refusal(error: Exception) -> bool:
    """Return True if an error means that the catalog or store refuses a request permanently."""
    # pyiceberg raises RESTError itself for 4xx responses that have no error class of their own.
    # Before 0.12, these include 429, Too Many Requests.
    is_rejected = type(error) is RESTError and _http_status(error.__cause__) != HTTPStatus.TOO_MANY_REQUESTS
    if isinstance(error, _PERMANENT) or is_rejected or is_permanent(error):
        return True
    if isinstance(error, OSError):
        return _DENIED_BY_S3.search(str(error)) is not None
    response: Any = getattr(error, "response", None)  # Set by botocore, which Glue uses.
    if isinstance(response, dict) and response.get("Error", {}).get("Code") in _AWS_CODES:  # pyright: ignore[reportUnknownMemberType]
        return True
    return _is_denied_by_database(getattr(error, "orig", None))


def _http_status(error: BaseException | None) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _is_denied_by_database(error: Any) -> bool:
    """Return True if the database of an SQL catalog refused the statement."""
    if isinstance(error, sqlite3.Error):
        return (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_READONLY")
    if (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) in _SQL_STATES:
        return True
    return bool(getattr(error, "args", ())) and error.args[0] in _MYSQL_CODES
