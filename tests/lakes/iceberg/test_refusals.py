"""Errors of commits: permanent refusals, and failures that a retry may not meet again."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing

import pytest
from botocore.exceptions import ClientError
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests import HTTPError, Response
from sqlalchemy.exc import OperationalError, ProgrammingError

from gc_assets.lakes.iceberg.refusals import is_refusal


def aws(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "not today"}}, "UpdateTable")


def answer(status: int) -> Exception:
    """Return the error that pyiceberg raises for an answer whose status has no class of its own."""
    response = Response()
    response.status_code = status
    error = RESTError("no JSON")
    error.__cause__ = HTTPError(response=response)
    return error


class DriverError(Exception):
    """An error of a database driver."""

    def __init__(self, *arguments: object, sqlstate: str | None = None) -> None:
        super().__init__(*arguments)
        self.sqlstate = sqlstate


def read_only_database() -> Exception:
    with closing(sqlite3.connect("file::memory:?mode=ro", uri=True)) as database, database:
        database.execute("PRAGMA query_only = 1")
        with pytest.raises(sqlite3.OperationalError) as found:
            database.execute("CREATE TABLE t (a)")
    return OperationalError("UPDATE", {}, found.value)


REFUSED = [
    ForbiddenError("403"),
    UnauthorizedError("401"),
    BadRequestError("400"),
    answer(405),
    NotImplementedError("views"),
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.EROFS, "Read-only file system"),
    OSError("When completing a PutObject operation: AWS Error ACCESS_DENIED"),
    aws("AccessDeniedException"),
    ProgrammingError("UPDATE", {}, DriverError(sqlstate="42501")),
    OperationalError("UPDATE", {}, DriverError(1142, "UPDATE command denied")),
    read_only_database(),
]
FAILED = [
    ServerError("500"),
    ServiceUnavailableError("503"),
    TooManyRequestsError("429"),
    answer(429),  # of pyiceberg before 0.12
    AuthorizationExpiredError("419"),
    CommitFailedException("409"),
    CommitStateUnknownException("504"),
    TimeoutError("no answer in 60 s"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "I/O error"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    OSError("AWS Error NETWORK_CONNECTION during PutObject operation"),
    aws("ThrottlingException"),
    OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked")),
    ProgrammingError("UPDATE", {}, DriverError(sqlstate="40001")),
]


@pytest.mark.parametrize("error", REFUSED, ids=repr)
def test_permission_error_is_permanent_refusal(error: Exception) -> None:
    assert is_refusal(error)


@pytest.mark.parametrize("error", FAILED, ids=repr)
def test_other_error_is_not_permanent_refusal(error: Exception) -> None:
    assert not is_refusal(error)
