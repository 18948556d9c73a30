"""The lease of a local storage, which ensures that at most one plan changes it at a time.

The lease consists of three files in `.gc-assets`. `lease.json` contains the holder of the lease.
`fencing_token` counts the leases and is kept when a lease is released. A process only changes them
while it has locked `lease.lock`. Only the owner can open the files.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, LeaseLost, StoreError
from gc_assets.core.file_locks import lock_exclusively, open_lock_file
from gc_assets.core.moments import from_timestamp
from gc_assets.core.regular_files import read_small
from gc_assets.core.untrusted_input import parse_json
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.protocol import LEASE_DURATION, RESERVED_PREFIX, Holder

_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True)
class LocalLease:
    """A lease that was acquired by this process.

    Attributes:
        control: The absolute path of `.gc-assets` in the storage.
        token: The fencing token.
        duration: How long the lease lasts unless it is renewed.
        clock: The clock that determines expiry in a rehearsal.
    """

    control: str
    token: int
    duration: timedelta
    clock: Clock

    def check(self) -> None:
        """Check the lease (see `Lease.check`)."""
        control = Path(self.control)
        holder = self._require_own(read_lease(control))
        if datetime.fromisoformat(holder.expires_at) - _read_time(control, self.clock) < self.duration / 2:
            self.renew()

    def renew(self) -> None:
        """Extend the lease (see `Lease.renew`)."""
        control = Path(self.control)
        with _lock_exclusively(control):
            holder = self._require_own(read_lease(control))
            values = asdict(holder) | {"expires_at": (_read_time(control, self.clock) + self.duration).isoformat()}
            _write_file(control / "lease.json", json.dumps(values, indent=1), replace=True)

    def release(self) -> None:
        """Give up the lease (see `Lease.release`)."""
        control = Path(self.control)
        with _lock_exclusively(control):
            holder = read_lease(control)
            if holder is not None and holder.token == self.token:
                (control / "lease.json").unlink()
                _sync_directory(control)

    def _require_own(self, holder: Holder | None) -> Holder:
        if holder is None or holder.token != self.token:
            found = "no lease" if holder is None else f"token {holder.token} of {holder}"
            raise LeaseLost(
                f"lease of {Path(self.control).parent} lost: expected token {self.token}, found {found}. "
                "No further changes are made. Apply the plan again to resume from its log."
            )
        return holder


def acquire(location: str, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> LocalLease:
    """Acquire the lease of a storage (see `Store.acquire`)."""
    root = Path(local_path(location))
    control = root / RESERVED_PREFIX.rstrip("/")
    if not root.is_dir():
        raise StoreError(f"storage {location}: there is no directory {root}; mount it or correct `location`")
    if control.is_symlink():
        raise StoreError(f"storage {location}: {control} is a symbolic link, expected a directory; remove the link")
    control.mkdir(mode=0o700, exist_ok=True)
    with _lock_exclusively(control):
        current = read_lease(control)
        now = _read_time(control, clock)
        if current is not None and current.is_live(now):
            raise GateRefused(
                f"storage {location} is being changed by {current}. Wait for it to finish, or until that time: the next apply takes over "
                f"the lease of a process that has ended. If it has certainly ended, remove {control / 'lease.json'} and apply again."
            )
        token = max(_last_token(control, current), after) + 1
        holder = Holder(owner, socket.gethostname(), os.getpid(), plan_id, token, now.isoformat(), (now + duration).isoformat())
        _write_file(control / "fencing_token", f"{token}\n", replace=True)
        # Some network file systems ignore flock. Even there, only one process can create the link.
        _write_file(control / "lease.json", json.dumps(asdict(holder), indent=1), replace=current is not None)
    return LocalLease(str(control), token, duration, clock)


def read_holder(location: str) -> Holder | None:
    """Return who holds the lease of a storage (see `Store.holder`).

    Raises:
        StoreError: If the lease cannot be read.
    """
    return read_lease(Path(local_path(location)) / RESERVED_PREFIX.rstrip("/"))


def read_last_token(location: str) -> int:
    """Return the highest fencing token of a storage (see `Store.last_token`).

    Raises:
        StoreError: If the counter or the lease cannot be read.
    """
    control = Path(local_path(location)) / RESERVED_PREFIX.rstrip("/")
    return _last_token(control, read_lease(control))


def _last_token(control: Path, current: Holder | None) -> int:
    counter = control / "fencing_token"
    try:
        text = read_small(counter).decode(errors="replace").strip()
    except FileNotFoundError:
        text = "0"
    except OSError as error:
        raise _unreadable(counter, error) from error
    if not text.isdecimal():
        raise StoreError(f"{counter}: expected a number, found {text!r}; write the largest token of this storage's deletion logs into it")
    return max(int(text), current.token if current is not None else 0)


def read_lease(control: Path) -> Holder | None:
    """Read the lease's holder from the directory `control`. Returns None if there is no lease.

    Raises:
        StoreError: If the file cannot be read or parsed.
    """
    path = control / "lease.json"
    try:
        content = read_small(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        holder = Holder(**parse_json(content))
        datetime.fromisoformat(holder.expires_at)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"cannot parse the lease {path} ({error}); make sure that no `apply` is running on this storage, then delete the file"
        ) from error
    return holder


@contextmanager
def _lock_exclusively(control: Path) -> Generator[None]:
    """Hold the lock of the lease.

    Raises:
        GateRefused: If another process does not release the lock in time.
        StoreError: If the lock file cannot be opened.
    """
    path = control / "lease.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_exclusively(path))
        except TimeoutError as error:
            raise GateRefused(f"{path}: {error.strerror}") from error
        except OSError as error:
            raise _unreadable(path, error) from error
        yield


def _read_time(control: Path, clock: Clock) -> datetime:
    """Return the current time according to the file server, except in a rehearsal.

    This host's clock is not used, because a lease could seem to have expired just because that
    clock is ahead. The file system sets the modification time of a file that is written.
    """
    if clock.is_rehearsal:
        return clock.now()
    path = control / "lease.lock"
    try:
        with open_lock_file(path) as descriptor:
            os.pwrite(descriptor, b"\n", 0)
            os.fsync(descriptor)  # only then do all network file systems return the server's time
            return from_timestamp(os.fstat(descriptor).st_mtime)
    except OSError as error:
        found = f"cannot write {path}, whose time shows whether a lease has expired: {error.strerror}"
        raise StoreError(f"{found}; correct this, then apply again") from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    if isinstance(error, PermissionError):
        return StoreError(f"{path} belongs to another user ({_owner(path)}); run as the user who applies plans to this storage")
    return StoreError(
        f"the lease file {path} cannot be read: {error.strerror}; make sure that no `apply` is running on this storage, then delete "
        "the file"
    )


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):  # no name, or no permission
        return "unknown"


def _write_file(path: Path, content: str, *, replace: bool) -> None:
    """Write a file atomically and durably.

    Raises:
        GateRefused: If the file exists and `replace` is False.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY), "w") as sink:
            sink.write(content)
            sink.flush()
            os.fsync(sink.fileno())
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
    except FileExistsError as error:
        raise GateRefused(f"another host has just created {path}; apply again when its plan is finished") from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
