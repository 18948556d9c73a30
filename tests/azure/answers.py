"""Answers that Azurite does not give, put into its own ones by a proxy.

These are versions, soft delete, and other times.

They follow Microsoft's REST API reference (List Blobs, Get Blob Properties, Put Blob), and were not
recorded from Azure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import unescape

from tests.s3.proxy import Answer, Exchange, Request, Rule, always

WRITTEN = "2026-11-26T08:00:00.0000000Z"
_BLOB = re.compile(rb"<Blob><Name>(.*?)</Name>.*?</Blob>", re.DOTALL)
_TIME = re.compile(rb"<Last-Modified>.*?</Last-Modified>")

Change = Callable[[Request, Answer], Answer]


def change_answers(*changes: Change) -> Rule:
    """Return a rule that applies the changes to the answer of every request."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        for change in changes:
            answer = change(exchange.request, answer)
        exchange.reply(answer)

    return Rule(always, fault, times=10**9)


def show_versions(ids: Mapping[str, str], *, writes_versions: bool) -> Change:
    """Show version ids of blobs, given by the ends of their keys.

    Args:
        ids: The ids of the current versions. Other blobs are from before versioning.
        writes_versions: Whether a written blob gets a version.
    """

    def find(name: str) -> str | None:
        return next((number for key, number in ids.items() if name.endswith(key)), None)

    def add_tags(blob: bytes, name: str) -> bytes:
        number, end = find(name), b"</Name>"
        tags = f"<VersionId>{number}</VersionId><IsCurrentVersion>true</IsCurrentVersion>".encode()
        return blob if number is None else blob.replace(end, end + tags, 1)

    def change(request: Request, answer: Answer) -> Answer:
        if _is_listing(request):
            return _change_blobs(answer, add_tags) if "versions" in request.query.get("include", "") else answer
        if request.method == "PUT":
            number = WRITTEN if writes_versions and "comp" not in request.query else None
        else:
            number = find(_name_of(request))
        headers = () if number is None else (("x-ms-version-id", number), ("x-ms-is-current-version", "true"))
        return replace(answer, headers=(*answer.headers, *headers))

    return change


def show_times(times: Mapping[str, datetime]) -> Change:
    """Show other modification times of blobs, given by their full names in the container."""

    def set_time(blob: bytes, name: str) -> bytes:
        shown = f"<Last-Modified>{_format(times[name])}</Last-Modified>".encode() if name in times else None
        return blob if shown is None else _TIME.sub(shown, blob)

    def change(request: Request, answer: Answer) -> Answer:
        if _is_listing(request):
            return _change_blobs(answer, set_time)
        at = times.get(_name_of(request)) if request.method in {"GET", "HEAD"} else None
        if at is None:
            return answer
        others = [(name, value) for name, value in answer.headers if name.lower() != "last-modified"]
        return replace(answer, headers=(*others, ("Last-Modified", _format(at))))

    return change


def show_soft_delete(days: int, deleted: Collection[str]) -> Change:
    """Show that the account has soft delete, and blobs with these key endings as deleted."""

    def mark(blob: bytes, name: str) -> bytes:
        return blob.replace(b"</Name>", b"</Name><Deleted>true</Deleted>", 1) if name.endswith(tuple(deleted)) else blob

    def leave_out(blob: bytes, name: str) -> bytes:
        return b"" if name.endswith(tuple(deleted)) else blob

    def change(request: Request, answer: Answer) -> Answer:
        if request.query.get("comp") == "properties" and request.query.get("restype") == "service":
            policy = f"<DeleteRetentionPolicy><Enabled>true</Enabled><Days>{days}</Days></DeleteRetentionPolicy>".encode()
            return replace(answer, body=answer.body.replace(b"<StaticWebsite>", policy + b"<StaticWebsite>"))
        if not _is_listing(request):
            return answer
        return _change_blobs(answer, mark if "deleted" in request.query.get("include", "") else leave_out)

    return change


def _format(at: datetime) -> str:
    return format_datetime(at.replace(microsecond=0), usegmt=True)


def _is_listing(request: Request) -> bool:
    return request.method == "GET" and request.query.get("comp") == "list"


def _name_of(request: Request) -> str:
    """Return the name of the blob, without account and container."""
    return unquote(urlsplit(request.target).path).split("/", 3)[-1]


def _change_blobs(answer: Answer, change: Callable[[bytes, str], bytes]) -> Answer:
    def change_blob(found: re.Match[bytes]) -> bytes:
        return change(found.group(0), unescape(found.group(1).decode()))

    return replace(answer, body=_BLOB.sub(change_blob, answer.body))
