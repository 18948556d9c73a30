"""State files on S3 or a compatible server.

Conditional puts take the place of locks. After a rejected condition, the stored bytes show if an
earlier attempt of the same put succeeded but lost its response.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from gc_assets.buckets.requests import pause_before_retry
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StateError, StoreError
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3 import pages
from gc_assets.s3.client import NOT_FOUND, PRECONDITION, error_code, get_client, payer_params, translate_errors
from gc_assets.state import conditions
from gc_assets.state.backend import FileStat

# Each parallel read holds one part in memory.
_PARALLEL_READS: Final = 4
# Maximum attempts after a truncated response or a temporary deletion failure.
_ATTEMPTS: Final = 5
_TRANSIENT: Final = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted"})


@dataclass(frozen=True, slots=True)
class S3Files:
    """Files under `prefix`, which is empty or ends in `/`."""

    bucket: str
    prefix: str
    settings: S3Config

    @property
    def parallel_reads(self) -> int:
        return _PARALLEL_READS

    @property
    def server(self) -> Hashable:
        return self.bucket, self.settings

    @property
    def unknown_version(self) -> str:
        return "0" * 32

    def uri(self, path: str) -> str:
        return f"s3://{self.bucket}/{self.prefix}{path}"

    def spark_uri(self, path: str) -> str:
        return f"s3a://{self.bucket}/{self.prefix}{path}"

    def read(self, path: str) -> bytes:
        return self.read_version(path)[0]

    def read_version(self, path: str) -> tuple[bytes, str]:
        with translate_errors(self.uri(path)):
            for attempt in range(_ATTEMPTS):
                answer = self._client().get_object(**self._target(path))
                try:
                    return answer["Body"].read(), answer["ETag"].strip('"')
                except (HTTPClientError, IncompleteReadError):
                    if attempt + 1 == _ATTEMPTS:
                        raise
                    pause_before_retry(attempt)
        raise AssertionError("a loop of attempts ends by returning or raising")

    def replace(self, path: str, content: bytes) -> None:
        with translate_errors(self.uri(path)):
            self._client().put_object(**self._target(path), Body=bytes(content))

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        spelling = conditions.etag_quoting(self)
        return self.put_if(path, content, version, spelling.absent() if version is None else spelling.at(version))

    def put_if(self, path: str, content: bytes, version: str | None, condition: dict[str, str]) -> str | None:
        """Put an object if a condition holds.

        A put whose response is lost is retried and then finds its own object. Ceph responds to a
        lost race with status 500. After every failure, the outcome is read from the stored object.

        Returns:
            The ETag if the stored object is the new one, otherwise None.

        Raises:
            OSError: If the stored object is still the old one, so the outcome is unknown.
        """
        try:
            with translate_errors(self.uri(path)):
                answer = self._client().put_object(**self._target(path), Body=bytes(content), **condition)
        except PermissionError:
            raise
        except OSError as error:
            found, at = self._read_or_none(path)
            if found == content:
                return at
            if at == version and not _is_refusal(error):
                raise
            return None
        # All known servers return it.
        return answer["ETag"].strip('"') if "ETag" in answer else self._read_or_none(path)[1]

    def check_conditions(self) -> str:
        conditions.check_races(self)
        return "the server evaluates conditions and lets exactly one of several writers succeed"

    def free_bytes(self) -> int | None:
        return None

    def size(self, path: str) -> int:
        return self._head(path)["ContentLength"]

    def modified_at(self, path: str) -> datetime:
        """Return the modification time in whole seconds, because HEAD returns no fraction."""
        return self._head(path)["LastModified"].astimezone(UTC)

    def list(self, path: str, *, recursive: bool) -> Sequence[FileStat]:
        base = self._directory_prefix(path)
        found: list[FileStat] = []
        for page in self._pages(base, "" if recursive else "/"):
            for key, size in zip(page.keys, page.sizes, strict=True):
                name = self._decode_key(key)[len(base) :]
                # Consoles create directories as keys that end in a slash.
                if name and not name.endswith("/"):
                    found.append(FileStat(name, size))
        return sorted(found)

    def directories(self, path: str) -> Sequence[str]:
        base = self._directory_prefix(path)
        return sorted(
            name for page in self._pages(base, "/") for prefix in page.common if (name := self._decode_key(prefix)[len(base) : -1])
        )

    def delete(self, path: str) -> None:
        with translate_errors(self.uri(path)):
            self._client().delete_object(**self._target(path))

    def delete_directory(self, path: str) -> None:
        if not path.strip("/"):
            raise ValueError("refusing to delete the root of the state")
        for page in self._pages(self._directory_prefix(path), ""):
            keys = [self._decode_key(key) for key in page.keys]
            for attempt in range(_ATTEMPTS):
                keys = self._delete(keys, is_last=attempt + 1 == _ATTEMPTS)
                if not keys:
                    break
                pause_before_retry(attempt)

    def _delete(self, keys: Sequence[str], *, is_last: bool) -> list[str]:
        """Delete one page of keys and return those that failed temporarily.

        Raises `OSError` for permanent failures and for keys missing from the response.
        """
        if not keys:
            return []
        location = f"s3://{self.bucket}/{self.prefix}"
        with translate_errors(location):
            named = [{"Key": key} for key in keys]
            answer = self._client().delete_objects(Bucket=self.bucket, Delete={"Objects": named}, **payer_params(self.settings))
            wrong = {item["Key"]: item for item in answer.get("Errors", []) if item.get("Code") not in NOT_FOUND}
            final = next((item for item in wrong.values() if is_last or item.get("Code") not in _TRANSIENT), None)
            if final is not None:
                message = f"{final['Key']}: {final.get('Message', '')}"
                raise ClientError({"Error": {"Code": final.get("Code", ""), "Message": message}}, "DeleteObjects")
        unnamed = set(keys) - wrong.keys() - {item["Key"] for item in answer.get("Deleted", []) + answer.get("Errors", [])}
        if unnamed:
            raise OSError(
                errno.EIO, f"the answer to a deletion names {len(unnamed):,} of its keys neither as deleted nor as failed", location
            )
        return list(wrong)

    def _read_or_none(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        try:
            return self.read_version(path)
        except FileNotFoundError:
            return None, None

    def _head(self, path: str) -> dict[str, Any]:
        with translate_errors(self.uri(path)):
            return self._client().head_object(**self._target(path))

    def _pages(self, base: str, delimiter: str) -> Iterator[pages.Page]:
        try:
            yield from pages.list_objects(self.settings, self.bucket, base, delimiter=delimiter, role="change")
        except StoreError as error:
            raise StateError(str(error)) from error

    def _directory_prefix(self, path: str) -> str:
        return f"{self.prefix}{path}/" if path else self.prefix

    def _decode_key(self, key: bytes) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            shown = key.decode("utf-8", "backslashreplace")
            raise StateError(f"s3://{self.bucket}/{shown}: gc-assets does not write such names; move it out of the state") from error

    def _client(self) -> Any:
        return get_client(self.settings, "change")

    def _target(self, path: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": f"{self.prefix}{path}", **payer_params(self.settings)}


def s3_files(root: str, settings: S3Config) -> S3Files:
    """Open the files under an S3 address.

    The deletion role (`apply_role_arn`, `apply_profile`) is never used here, because every run
    writes the state and a scheduled job may not be allowed to assume that role.
    """
    bucket, key = bucket_and_key(root)
    nightly = settings.model_copy(update={"apply_profile": None, "apply_role_arn": None})
    return S3Files(bucket, key if not key or key.endswith("/") else f"{key}/", nightly)


def _is_refusal(error: OSError) -> bool:
    """Check if the server evaluated the condition and rejected the put."""
    return isinstance(error, FileNotFoundError) or (
        isinstance(error.__cause__, ClientError) and error_code(error.__cause__) in PRECONDITION
    )
