"""A server with the documented preconditions of the Google Cloud Storage JSON API, in memory.

The registries have no honest server: `fake-gcs-server` deletes in spite of a stale generation. This
one implements the requests that `google-cloud-storage` and gcsfs send, and a part of the XML API.
`test_server.py` compares its answers with Google's documentation. It is no proof of what Google does.

`python -m tests.gcs.server PORT` serves until it is killed. pyarrow holds the lock of the interpreter
during some requests, so its server must be another process.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import google_crc32c

MAX_NAME_BYTES: Final = 1024
MAX_PAGE: Final = 1000
SOFT_DELETE_SECONDS: Final = 7 * 24 * 3600
# Fields of an object that a writer may set (Objects resource).
WRITABLE: Final = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "eventBasedHold",
    "metadata",
    "storageClass",
    "temporaryHold",
)


class RefusalError(Exception):
    """An error answer: HTTP status, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass
class Version:
    """A generation of an object. `ended` is the time when it became noncurrent or soft-deleted."""

    name: str
    content: bytes
    generation: int
    fields: dict[str, Any]
    created: float
    updated: float
    metageneration: int = 1
    ended: float | None = None

    @property
    def is_held(self) -> bool:
        return bool(self.fields.get("temporaryHold") or self.fields.get("eventBasedHold"))


@dataclass
class Bucket:
    """A bucket. `objects` has the generations of each name, the newest last."""

    name: str
    created: float
    settings: dict[str, Any]
    metageneration: int = 1
    objects: dict[str, list[Version]] = field(default_factory=dict)
    soft_deleted: list[Version] = field(default_factory=list)

    @property
    def keeps_versions(self) -> bool:
        return bool(self.settings.get("versioning", {}).get("enabled"))

    @property
    def soft_delete_seconds(self) -> int:
        return int(self.settings.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))

    @property
    def retention_seconds(self) -> int:
        return int(self.settings.get("retentionPolicy", {}).get("retentionPeriod", 0))

    def live(self, name: str) -> Version | None:
        versions = self.objects.get(name, [])
        return versions[-1] if versions and versions[-1].ended is None else None

    def find(self, name: str, generation: str | None) -> Version | None:
        """Return a generation of an object, by default the live one."""
        if generation is None:
            return self.live(name)
        return next((version for version in self.objects.get(name, []) if version.generation == int(generation)), None)

    def require(self, name: str, generation: str | None) -> Version:
        found = self.find(name, generation)
        if found is None:
            raise RefusalError(404, "notFound", f"No such object: {self.name}/{name}")
        return found


def check(query: Mapping[str, str], current: Version | None, prefix: str = "if", is_read: bool = False) -> None:
    """Apply the preconditions of a request (request preconditions, JSON API).

    `prefix` is `ifSource` for those of the source of a copy.
    """
    generation, metageneration = (current.generation, current.metageneration) if current is not None else (0, 0)
    for name, found in (("Generation", generation), ("Metageneration", metageneration)):
        expected = query.get(f"{prefix}{name}Match")
        if expected is not None and (int(expected) != found or (name == "Metageneration" and current is None)):
            raise RefusalError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        other = query.get(f"{prefix}{name}NotMatch")
        if other is not None and int(other) == found:
            raise RefusalError(304 if is_read else 412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


@dataclass
class Upload:
    """An unfinished resumable upload."""

    bucket: str
    query: dict[str, str]
    resource: dict[str, Any]
    received: bytearray = field(default_factory=bytearray)


class Cloud:
    """All buckets of the server. `before` is called with each request, and may delay or refuse it."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.uploads: dict[str, Upload] = {}
        # Principals that may only read, by their token.
        self.readers: set[str] = set()
        self.lock = threading.RLock()
        self._last = 0

    def tick(self) -> int:
        """Return a generation: microseconds since 1970, never repeated."""
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return self._last

    def bucket(self, name: str) -> Bucket:
        if name not in self.buckets:
            raise RefusalError(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    def create_bucket(self, resource: dict[str, Any]) -> Bucket:
        if resource["name"] in self.buckets:
            raise RefusalError(409, "conflict", "Your previous request to create the named bucket succeeded and you already own it.")
        resource.setdefault("softDeletePolicy", {"retentionDurationSeconds": str(SOFT_DELETE_SECONDS)})
        bucket = self.buckets[resource["name"]] = Bucket(resource["name"], time.time(), resource)
        return bucket

    def write(self, bucket: Bucket, name: str, content: bytes, query: Mapping[str, str], fields: Mapping[str, Any]) -> Version:
        """Create the next generation of an object. Its predecessor becomes noncurrent or soft-deleted."""
        encoded = name.encode()
        if not 1 <= len(encoded) <= MAX_NAME_BYTES or "\n" in name or "\r" in name or name in {".", ".."}:
            raise RefusalError(400, "invalid", f"Invalid object name: {name[:50]!r}")
        previous = bucket.live(name)
        check(query, previous)
        if previous is not None:
            self.require_removable(bucket, previous)
            self.end(bucket, previous)
        generation = self.tick()
        at = generation / 1e6
        kept = {key: fields[key] for key in WRITABLE if key in fields}
        version = Version(name, content, generation, {"storageClass": "STANDARD", **kept}, at, at)
        bucket.objects.setdefault(name, []).append(version)
        return version

    def delete(self, bucket: Bucket, name: str, query: Mapping[str, str]) -> None:
        """Delete the live object, or a generation permanently (Objects: delete)."""
        generation = query.get("generation")
        version = bucket.find(name, generation)
        if version is None:
            raise RefusalError(404, "notFound", f"No such object: {bucket.name}/{name}")
        check(query, version)
        self.require_removable(bucket, version)
        self.end(bucket, version, is_permanent=generation is not None)

    def end(self, bucket: Bucket, version: Version, is_permanent: bool = False, is_move: bool = False) -> None:
        """End a generation: it becomes noncurrent, soft-deleted, or is gone."""
        if bucket.keeps_versions and not is_permanent and version.ended is None:
            version.ended = self.tick() / 1e6
            return
        versions = bucket.objects[version.name]
        versions.remove(version)
        if not versions:
            del bucket.objects[version.name]
        if bucket.soft_delete_seconds and not is_move:
            version.ended = time.time()
            bucket.soft_deleted.append(version)

    def require_removable(self, bucket: Bucket, version: Version) -> None:
        if version.is_held:
            found = "is under active Temporary or Event-Based hold"
            message = f"Object '{bucket.name}/{version.name}' {found} and cannot be deleted, overwritten or archived until hold is removed."
            raise RefusalError(403, "objectUnderActiveHold", message)
        if bucket.retention_seconds and version.created + bucket.retention_seconds > time.time():
            until = to_rfc3339(version.created + bucket.retention_seconds)
            found = "is subject to bucket's retention policy or object retention"
            message = f"Object '{bucket.name}/{version.name}' {found} and cannot be deleted or overwritten until {until}"
            raise RefusalError(403, "retentionPolicyNotMet", message)

    def restore(self, bucket: Bucket, name: str, query: Mapping[str, str]) -> Version:
        found = next((item for item in bucket.soft_deleted if (item.name, str(item.generation)) == (name, query["generation"])), None)
        if found is None:
            raise RefusalError(404, "notFound", f"No such object: {bucket.name}/{name}")
        return self.write(bucket, name, found.content, query, found.fields)


def to_rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_resource(bucket: Bucket, version: Version, base: str) -> dict[str, Any]:
    """Return the Objects resource of a generation."""
    content = version.content
    quoted = quote(version.name, safe="")
    resource: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{bucket.name}/{version.name}/{version.generation}",
        "selfLink": f"{base}/storage/v1/b/{bucket.name}/o/{quoted}",
        "mediaLink": f"{base}/download/storage/v1/b/{bucket.name}/o/{quoted}?generation={version.generation}&alt=media",
        "name": version.name,
        "bucket": bucket.name,
        "generation": str(version.generation),
        "metageneration": str(version.metageneration),
        "size": str(len(content)),
        "md5Hash": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
        "crc32c": crc32c(content),
        "etag": base64.b64encode(f"{version.generation}/{version.metageneration}".encode()).decode(),
        "timeCreated": to_rfc3339(version.created),
        "updated": to_rfc3339(version.updated),
        "timeStorageClassUpdated": to_rfc3339(version.created),
        **version.fields,
    }
    if version.ended is not None:
        resource["softDeleteTime" if version in bucket.soft_deleted else "timeDeleted"] = to_rfc3339(version.ended)
    if bucket.retention_seconds:
        resource["retentionExpirationTime"] = to_rfc3339(version.created + bucket.retention_seconds)
    return resource


def crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


def list_page(cloud: Cloud, bucket: Bucket, query: Mapping[str, str], base: str) -> dict[str, Any]:
    """Return a page (Objects: list): names in the order of their UTF-8 bytes, generations ascending."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    limit = min(int(query.get("maxResults", MAX_PAGE)), MAX_PAGE)
    token = json.loads(base64.b64decode(query["pageToken"])) if query.get("pageToken") else None
    items, prefixes, last = list[dict[str, Any]](), list[str](), None
    for name, version in _entries(bucket, query):
        key = name.encode()
        if not name.startswith(prefix) or key < query.get("startOffset", "").encode():
            continue
        if query.get("endOffset") and key >= query["endOffset"].encode():
            break
        at = name[len(prefix) :].find(delimiter) if delimiter else -1
        common = name[: len(prefix) + at + len(delimiter)] if at >= 0 else None
        position = [common, 0] if common is not None else [name, version.generation]
        if token is not None and (position[0].encode(), position[1]) <= (token[0].encode(), token[1]):
            continue
        if common is not None and prefixes and prefixes[-1] == common:
            continue
        if len(items) + len(prefixes) == limit:
            return _page(items, prefixes) | {"nextPageToken": base64.b64encode(json.dumps(last).encode()).decode()}
        last = position
        if common is not None:
            prefixes.append(common)
        else:
            items.append(to_resource(bucket, version, base))
    return _page(items, prefixes)


def _page(items: list[dict[str, Any]], prefixes: list[str]) -> dict[str, Any]:
    return {"kind": "storage#objects", **({"items": items} if items else {}), **({"prefixes": prefixes} if prefixes else {})}


def _entries(bucket: Bucket, query: Mapping[str, str]) -> Iterator[tuple[str, Version]]:
    if query.get("softDeleted", "").lower() == "true":
        for version in sorted(bucket.soft_deleted, key=lambda item: (item.name.encode(), item.generation)):
            yield version.name, version
        return
    for name in sorted(bucket.objects, key=str.encode):
        for version in bucket.objects[name]:
            if version.ended is None or query.get("versions", "").lower() == "true":
                yield name, version


Route = tuple[str, re.Pattern[str], Callable[..., Any]]


class Handler(BaseHTTPRequestHandler):
    """Answers one request. `cloud` belongs to the class that `serve` creates."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cloud: Cloud
    # Sees each request first: method, path and query. It may raise `RefusalError` or `ConnectionError`.
    before: Callable[[str, str, Mapping[str, str]], None] | None = None
    # Sees each answered request before its answer is sent.
    after: Callable[[str, str, Mapping[str, str]], None] | None = None

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def handle_one_request(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle_one_request()
            return
        self.close_connection = True

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET  # noqa: N815  (names of the standard library)

    @property
    def base(self) -> str:
        return f"http://{self.headers.get('Host', '')}"

    def _answer(self) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        self.body = self._read_body()
        try:
            if self.before is not None:
                type(self).before(self.command, url.path, self.query)  # pyright: ignore[reportOptionalCall]
            with self.cloud.lock:
                send = self._route(url.path)
            if self.after is not None:
                type(self).after(self.command, url.path, self.query)  # pyright: ignore[reportOptionalCall]
            send()
        except RefusalError as error:
            self._send_refusal(error)

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0] or b"-1", 16):
                body += self._read_exactly(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self._read_exactly(int(self.headers.get("Content-Length") or 0))

    def _read_exactly(self, size: int) -> bytes:
        """Read a part of a body. A client that was killed while it sent it has made no request."""
        body = self.rfile.read(size) if size >= 0 else b""
        if len(body) != size:
            raise ConnectionResetError
        return body

    def _send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Callable[[], None]:
        content = json.dumps(document).encode()
        return lambda: self._send(status, content, {"Content-Type": "application/json; charset=UTF-8", **(headers or {})})

    def _send_refusal(self, error: RefusalError) -> None:
        detail = {"message": error.message, "domain": "global", "reason": error.reason}
        document = {"error": {"code": error.status, "message": error.message, "errors": [detail]}}
        content = b"" if error.status == 304 else json.dumps(document).encode()
        if urlsplit(self.path).path.startswith(("/storage/", "/upload/", "/download/", "/token")):
            self._send(error.status, content, {"Content-Type": "application/json"})
        else:
            text = f"<?xml version='1.0'?><Error><Code>{error.reason}</Code><Message>{escape(error.message)}</Message></Error>"
            self._send(error.status, text.encode(), {"Content-Type": "application/xml"})

    def _route(self, path: str) -> Callable[[], None]:
        for method, pattern, handle in ROUTES:
            match = pattern.fullmatch(path)
            if match is not None and method in {self.command, "*"}:
                self._authorize(match)
                return handle(self, *(unquote(part) for part in match.groups()))
        raise RefusalError(404, "notFound", f"Not Found: {self.command} {path}")

    def set_updated(self, bucket: str, name: str, at: str) -> Callable[[], None]:
        """Set the time of an object, which Google's API cannot do."""
        with self.cloud.lock:
            self.cloud.bucket(bucket).require(name, None).updated = float(at)
        return self._json({})

    def _authorize(self, match: re.Match[str]) -> None:
        bucket = self.cloud.buckets.get(unquote(match.groups()[0])) if match.groups() else None
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.command not in {"GET", "HEAD"} and token in self.cloud.readers:
            raise RefusalError(403, "forbidden", "The caller does not have storage.objects.delete or storage.objects.create access.")
        if bucket is not None and bucket.settings.get("billing", {}).get("requesterPays") and "userProject" not in self.query:
            raise RefusalError(400, "required", "Bucket is a requester pays bucket but no user project provided.")

    # Buckets

    def token(self) -> Callable[[], None]:
        """Return an access token for the service account that signed the assertion."""
        assertion = parse_qs(self.body.decode())["assertion"][0]
        claims = json.loads(base64.urlsafe_b64decode(assertion.split(".")[1] + "=="))
        return self._json({"access_token": f"token-of-{claims['iss']}", "expires_in": 3600, "token_type": "Bearer"})

    def insert_bucket(self) -> Callable[[], None]:
        return self._json(self._bucket_resource(self.cloud.create_bucket(json.loads(self.body))))

    def get_bucket(self, name: str) -> Callable[[], None]:
        return self._json(self._bucket_resource(self.cloud.bucket(name)))

    def patch_bucket(self, name: str) -> Callable[[], None]:
        bucket = self.cloud.bucket(name)
        bucket.settings.update(json.loads(self.body))
        bucket.metageneration += 1
        return self._json(self._bucket_resource(bucket))

    def _bucket_resource(self, bucket: Bucket) -> dict[str, Any]:
        times = {"timeCreated": to_rfc3339(bucket.created), "updated": to_rfc3339(bucket.created)}
        return {"kind": "storage#bucket", "id": bucket.name, "metageneration": str(bucket.metageneration), **times, **bucket.settings}

    # Objects

    def list_objects(self, bucket: str) -> Callable[[], None]:
        return self._json(list_page(self.cloud, self.cloud.bucket(bucket), self.query, self.base))

    def get_object(self, bucket: str, name: str) -> Callable[[], None]:
        found = self.cloud.bucket(bucket)
        if self.query.get("softDeleted", "").lower() == "true":
            for version in found.soft_deleted:
                if (version.name, str(version.generation)) == (name, self.query.get("generation")):
                    return self._json(to_resource(found, version, self.base))
            raise RefusalError(404, "notFound", f"No such object: {bucket}/{name}")
        version = found.require(name, self.query.get("generation"))
        check(self.query, version, is_read=True)
        if self.query.get("alt") == "media":
            return self._media(version)
        return self._json(to_resource(found, version, self.base))

    def _media(self, version: Version) -> Callable[[], None]:
        headers = {
            "Content-Type": version.fields.get("contentType", "application/octet-stream"),
            "ETag": f'"{version.generation}-{version.metageneration}"',
            "Last-Modified": formatdate(version.updated, usegmt=True),
            "X-Goog-Generation": str(version.generation),
            "X-Goog-Metageneration": str(version.metageneration),
            "X-Goog-Hash": f"crc32c={crc32c(version.content)}",
            "X-Goog-Stored-Content-Length": str(len(version.content)),
            "X-Goog-Stored-Content-Encoding": "identity",
            "X-Goog-Storage-Class": version.fields["storageClass"],
            "Accept-Ranges": "bytes",
        }
        requested = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        size = len(version.content)
        if requested is None:
            return lambda: self._send(200, version.content, headers)
        first, last = requested.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last), size - 1) if first and last else size - 1
        if start >= size:
            raise RefusalError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        return lambda: self._send(206, version.content[start : end + 1], headers)

    def patch_object(self, bucket: str, name: str) -> Callable[[], None]:
        found = self.cloud.bucket(bucket)
        version = found.require(name, self.query.get("generation"))
        check(self.query, version)
        for key, value in json.loads(self.body).items():
            if key == "metadata" and value is not None:
                merged = {**version.fields.get("metadata", {}), **value}
                version.fields["metadata"] = {inner: text for inner, text in merged.items() if text is not None}
            elif key in WRITABLE and value is not None:
                version.fields[key] = value
            elif key in WRITABLE:
                version.fields.pop(key, None)
        version.metageneration += 1
        version.updated = self.cloud.tick() / 1e6
        return self._json(to_resource(found, version, self.base))

    def delete_object(self, bucket: str, name: str) -> Callable[[], None]:
        self.cloud.delete(self.cloud.bucket(bucket), name, self.query)
        return lambda: self._send(204, b"")

    def restore_object(self, bucket: str, name: str) -> Callable[[], None]:
        found = self.cloud.bucket(bucket)
        return self._json(to_resource(found, self.cloud.restore(found, name, self.query), self.base))

    def copy_object(self, bucket: str, name: str, verb: str, to_bucket: str, to: str) -> Callable[[], None]:
        """Copy with conditions on source and destination (Objects: copy, Objects: rewrite)."""
        source_bucket, target = self.cloud.bucket(bucket), self.cloud.bucket(to_bucket)
        source = source_bucket.require(name, self.query.get("sourceGeneration"))
        check(self.query, source, "ifSource")
        override = json.loads(self.body or b"{}")
        copied = {key: value for key, value in source.fields.items() if key not in {"temporaryHold", "eventBasedHold"}}
        written = self.cloud.write(target, to, source.content, self.query, override if override else copied)
        resource = to_resource(target, written, self.base)
        size = str(len(source.content))
        rewritten = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True, "resource": resource}
        return self._json(rewritten if verb == "rewriteTo" else resource)

    def move_object(self, bucket: str, name: str, to: str) -> Callable[[], None]:
        """Rename atomically (Objects: move). Soft delete does not apply to the source."""
        found = self.cloud.bucket(bucket)
        source = found.require(name, None)
        check(self.query, source, "ifSource")
        if name == to:
            raise RefusalError(400, "invalid", "The source and destination object names must be different.")
        self.cloud.require_removable(found, source)
        written = self.cloud.write(found, to, source.content, self.query, source.fields)
        self.cloud.end(found, source, is_move=True)
        return self._json(to_resource(found, written, self.base))

    # Uploads

    def upload(self, bucket: str) -> Callable[[], None]:
        kind = self.query.get("uploadType")
        found = self.cloud.bucket(bucket)
        if kind == "media":
            fields = {"contentType": self.headers.get("Content-Type", "application/octet-stream")}
            return self._json(to_resource(found, self.cloud.write(found, self.query["name"], self.body, self.query, fields), self.base))
        if kind == "multipart":
            resource, content = self._split_multipart()
            name = resource.get("name") or self.query["name"]
            self._require_hashes(resource, content)
            return self._json(to_resource(found, self.cloud.write(found, name, content, self.query, resource), self.base))
        resource = json.loads(self.body or b"{}")
        check(self.query, found.live(resource.get("name") or self.query["name"]))
        upload_id = f"upload-{self.cloud.tick()}"
        resource.setdefault("contentType", self.headers.get("X-Upload-Content-Type", "application/octet-stream"))
        self.cloud.uploads[upload_id] = Upload(bucket, dict(self.query), resource)
        location = f"{self.base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
        return lambda: self._send(200, b"", {"Location": location, "X-GUploader-UploadID": upload_id})

    def upload_part(self, bucket: str) -> Callable[[], None]:
        """Receive a part of a resumable upload. The last one creates the object."""
        upload = self.cloud.uploads.get(self.query["upload_id"])
        if upload is None:
            raise RefusalError(404, "notFound", "Not Found")
        part = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range", "bytes 0-/*"))
        total = part[3] if part is not None else str(len(self.body))
        if part is None or part[1] is not None:
            start = int(part[1]) if part is not None else 0
            del upload.received[start:]
            upload.received += self.body
        if total == "*" or len(upload.received) < int(total):
            held = {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {}
            return lambda: self._send(308, b"", held)
        found = self.cloud.bucket(bucket)
        name = upload.resource.get("name") or upload.query["name"]
        version = self.cloud.write(found, name, bytes(upload.received), upload.query, upload.resource)
        del self.cloud.uploads[self.query["upload_id"]]
        return self._json(to_resource(found, version, self.base))

    def cancel_upload(self, bucket: str) -> Callable[[], None]:
        del bucket
        self.cloud.uploads.pop(self.query.get("upload_id", ""), None)
        return lambda: self._send(499, b"")

    def _split_multipart(self) -> tuple[dict[str, Any], bytes]:
        boundary = re.search(r"boundary=[\"']?([^\"';]+)", self.headers["Content-Type"])
        if boundary is None:
            raise RefusalError(400, "badRequest", "Missing boundary")
        line = b"--" + boundary[1].encode()
        _, first, rest = self.body.split(line, 2)
        second = rest[: rest.rindex(line)]
        kind = re.search(rb"content-type: *([^\r\n]+)", second.split(b"\r\n\r\n", 1)[0], re.IGNORECASE)
        default = {"contentType": kind[1].decode()} if kind is not None else {}
        return default | json.loads(_part_body(first)), _part_body(second)

    def _require_hashes(self, resource: Mapping[str, Any], content: bytes) -> None:
        md5 = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
        for name, found in (("crc32c", crc32c(content)), ("md5Hash", md5)):
            if resource.get(name, found) != found:
                raise RefusalError(400, "invalid", f"Provided {name} doesn't match calculated {name} {found}.")

    # XML API, as far as other libraries use it

    def _xml_query(self) -> dict[str, str]:
        conditions = {"x-goog-if-generation-match": "ifGenerationMatch", "x-goog-if-metageneration-match": "ifMetagenerationMatch"}
        return {name: self.headers[header] for header, name in conditions.items() if header in self.headers}

    def xml_put(self, bucket: str, name: str) -> Callable[[], None]:
        found = self.cloud.bucket(bucket)
        fields = {"contentType": self.headers.get("Content-Type", "application/octet-stream")}
        written = self.cloud.write(found, name, self.body, self._xml_query(), fields)
        return lambda: self._send(200, b"", _xml_headers(written))

    def xml_get(self, bucket: str, name: str) -> Callable[[], None]:
        version = self.cloud.bucket(bucket).require(name, None)
        since = self.headers.get("If-Unmodified-Since")
        if since is not None and parsedate_to_datetime(since).timestamp() < int(version.updated):
            raise RefusalError(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        return self._media(version)

    def xml_delete(self, bucket: str, name: str) -> Callable[[], None]:
        self.cloud.delete(self.cloud.bucket(bucket), name, self._xml_query())
        return lambda: self._send(204, b"")

    def xml_list(self, bucket: str) -> Callable[[], None]:
        found = self.cloud.bucket(bucket)
        names = {"max-keys": "maxResults", "continuation-token": "pageToken", "prefix": "prefix", "delimiter": "delimiter"}
        page = list_page(self.cloud, found, {names[key]: value for key, value in self.query.items() if key in names}, self.base)
        token = page.get("nextPageToken")
        rows = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><Generation>{item['generation']}</Generation><LastModified>{item['updated']}"
            f'</LastModified><ETag>"{item["generation"]}-{item["metageneration"]}"</ETag><Size>{item["size"]}</Size></Contents>'
            for item in page.get("items", [])
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in page.get("prefixes", []))
        following = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        truncated = f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>"
        text = f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>{truncated}{following}{rows}{common}</ListBucketResult>"
        return lambda: self._send(200, text.encode(), {"Content-Type": "application/xml"})


def _xml_headers(version: Version) -> dict[str, str]:
    return {
        "ETag": f'"{version.generation}-{version.metageneration}"',
        "x-goog-generation": str(version.generation),
        "x-goog-metageneration": str(version.metageneration),
        "Last-Modified": formatdate(version.updated, usegmt=True),
    }


def _part_body(part: bytes) -> bytes:
    """Return the body of a part of a multipart request, without the line break before the boundary."""
    body = part.split(b"\r\n\r\n", 1)[1]
    return body.removesuffix(b"\r\n")


_BUCKET, _OBJECT = r"/storage/v1/b/([^/]+)", r"/o/([^/]+)"
ROUTES: Final[list[Route]] = [
    ("POST", re.compile("/token"), Handler.token),
    ("POST", re.compile(r"/of-tests/([^/]+)/([^/]+)/updated/([0-9.]+)"), Handler.set_updated),
    ("POST", re.compile("/storage/v1/b"), Handler.insert_bucket),
    ("GET", re.compile(_BUCKET), Handler.get_bucket),
    ("PATCH", re.compile(_BUCKET), Handler.patch_bucket),
    ("GET", re.compile(f"{_BUCKET}/o"), Handler.list_objects),
    ("GET", re.compile(f"(?:/download)?{_BUCKET}{_OBJECT}"), Handler.get_object),
    ("PATCH", re.compile(f"{_BUCKET}{_OBJECT}"), Handler.patch_object),
    ("DELETE", re.compile(f"{_BUCKET}{_OBJECT}"), Handler.delete_object),
    ("POST", re.compile(f"{_BUCKET}{_OBJECT}/restore"), Handler.restore_object),
    ("POST", re.compile(f"{_BUCKET}{_OBJECT}/(rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)"), Handler.copy_object),
    ("POST", re.compile(f"{_BUCKET}{_OBJECT}/moveTo/o/([^/]+)"), Handler.move_object),
    ("POST", re.compile(f"/(?:resumable/)?upload{_BUCKET}/o"), Handler.upload),
    ("PUT", re.compile(f"/(?:resumable/)?upload{_BUCKET}/o"), Handler.upload_part),
    ("DELETE", re.compile(f"/(?:resumable/)?upload{_BUCKET}/o"), Handler.cancel_upload),
    ("GET", re.compile(r"/(?!storage/|upload/|download/)([^/]+)/?"), Handler.xml_list),
    ("GET", re.compile(r"/(?!storage/|upload/|download/)([^/]+)/(.+)"), Handler.xml_get),
    ("HEAD", re.compile(r"/(?!storage/|upload/|download/)([^/]+)/(.+)"), Handler.xml_get),
    ("PUT", re.compile(r"/(?!storage/|upload/|download/)([^/]+)/(.+)"), Handler.xml_put),
    ("DELETE", re.compile(r"/(?!storage/|upload/|download/)([^/]+)/(.+)"), Handler.xml_delete),
]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def start(cloud: Cloud, port: int = 0) -> tuple[Server, type[Handler]]:
    """Serve in a thread. The handler class is returned for its hooks `before` and `after`."""
    handler = type("BoundHandler", (Handler,), {"cloud": cloud})
    server = Server(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server, handler


def main() -> None:
    start(Cloud(), int(sys.argv[1]))
    threading.Event().wait()


if __name__ == "__main__":
    main()
