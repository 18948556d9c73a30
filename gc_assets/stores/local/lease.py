"""The lease of a local storage: at most one plan changes it at a time.

`.gc-assets/lease.json` says who holds it. `.gc-assets/fencing_token` counts leases and survives
their release. Both change only under `flock` on a third file, which the kernel frees when a process
dies. All three are for their owner alone: who may open the third could lock it for ever. Time comes
in as a `Clock`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StoreError
from gc_assets.core.untrusted_input import parse_json
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.protocol import LEASE_DURATION, RESERVED_PREFIX, Holder

# Who holds the lock reads and writes a few small files. A disk that takes longer is hung.
LOCK_SECONDS: Final = 30.0
_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True)
class LocalLease:
    """A lease that was acquired, by its fencing token. `control` is the absolute path of the
    storage's `.gc-assets`.
    """

    control: str
    token: int
    duration: timedelta
    clock: Clock

    def check(self) -> None:
        """Checks as `Lease.check` says. An expired lease that nobody took over is still ours."""
        holder = self._ours(_read(Path(self.control)))
        if datetime.fromisoformat(holder.expires_at) - self.clock.now() < self.duration / 2:
            self.renew()

    def renew(self) -> None:
        """Extends the lease to its whole duration from now. Raises `GateRefused` as `check` does."""
        control = Path(self.control)
        with _exclusive(control):
            holder = self._ours(_read(control))
            values = asdict(holder) | {"expires_at": (self.clock.now() + self.duration).isoformat()}
            _put(control / "lease.json", json.dumps(values, indent=1), replace=True)

    def release(self) -> None:
        """Frees the storage, unless somebody took it over from us."""
        control = Path(self.control)
        with _exclusive(control):
            holder = _read(control)
            if holder is not None and holder.token == self.token:
                (control / "lease.json").unlink()
                _sync(control)

    def _ours(self, holder: Holder | None) -> Holder:
        if holder is None or holder.token != self.token:
            found = "no lease" if holder is None else f"token {holder.token} of {holder}"
            raise GateRefused(
                f"lease of {Path(self.control).parent} lost: expected token {self.token}, found {found}. "
                "Nothing more is changed by this run; apply the plan again and it resumes from its log."
            )
        return holder


def acquire(location: str, plan_id: str, owner: str, clock: Clock, duration: timedelta = LEASE_DURATION, after: int = 0) -> LocalLease:
    """Takes the storage's lease, with a token higher than `after`. It is ours until it is released,
    lost, or expired and taken over.

    Raises `GateRefused` naming the holder while another lease is live, and `StoreError` where the
    storage or the lease cannot be read.
    """
    root = Path(local_path(location))
    control = root / RESERVED_PREFIX.rstrip("/")
    if not root.is_dir():
        raise StoreError(f"storage {location}: no directory at {root}; mount it or mend `location`")
    if control.is_symlink():
        raise StoreError(f"storage {location}: {control} is a symbolic link; the collector's own prefix must be a directory of the storage")
    control.mkdir(mode=0o700, exist_ok=True)
    with _exclusive(control):
        current = _read(control)
        now = clock.now()
        if current is not None and current.is_live(now):
            raise GateRefused(
                f"storage {location} is being changed by {current}. Wait for it to finish, or until {current.expires_at}; "
                f"if that process is surely gone, remove {control / 'lease.json'} and apply again."
            )
        token = max(_next_token(control, current), after + 1)
        holder = Holder(owner, socket.gethostname(), os.getpid(), plan_id, token, now.isoformat(), (now + duration).isoformat())
        _put(control / "fencing_token", f"{token}\n", replace=True)
        # Where a network file system does not honour flock, creating the file is still for one
        # only.
        _put(control / "lease.json", json.dumps(asdict(holder), indent=1), replace=current is not None)
    return LocalLease(str(control), token, duration, clock)


def read_holder(location: str) -> Holder | None:
    """Returns who holds the lease, live or expired, or null where nobody does. Raises `StoreError`
    where what stands there is no lease.
    """
    return _read(Path(local_path(location)) / RESERVED_PREFIX.rstrip("/"))


def _next_token(control: Path, current: Holder | None) -> int:
    counter = control / "fencing_token"
    text = counter.read_text().strip() if counter.exists() else "0"
    if not text.isdecimal():
        raise StoreError(f"{counter}: expected a number, found {text!r}; write the largest token in this storage's deletion logs into it")
    return max(int(text), current.token if current is not None else 0) + 1


def _read(control: Path) -> Holder | None:
    path = control / "lease.json"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise StoreError(f"{path} is another user's ({_owner(path)}); run as the user who applies plans here") from error
    try:
        holder = Holder(**parse_json(content))
        datetime.fromisoformat(holder.expires_at)
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path} is no lease ({error}); make sure that nothing changes this storage, then remove it") from error
    return holder


@contextmanager
def _exclusive(control: Path) -> Generator[None]:
    path = control / "lease.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _OWNER_ONLY)
    except PermissionError as error:
        raise StoreError(f"{path} is another user's ({_owner(path)}); run as the user who applies plans here") from error
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, _OWNER_ONLY)  # an older release made it readable to all
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Locks an open file. Raises `GateRefused` where another process keeps it locked."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise GateRefused(
                    f"{path} has been locked by another process for {LOCK_SECONDS:.0f} s, which takes milliseconds: it hangs. "
                    f"`fuser {path}` names it; end it, then apply again."
                ) from error
            time.sleep(0.01)


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):  # no name, or not to be looked at either
        return "unknown"


def _put(path: Path, content: str, *, replace: bool) -> None:
    """Writes all of `content` durably to `path`. Raises `GateRefused` where the file exists and may
    not be replaced.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY), "w") as sink:
        sink.write(content)
        sink.flush()
        os.fsync(sink.fileno())
    if replace:
        temporary.replace(path)
    else:
        try:
            path.hardlink_to(temporary)
        except FileExistsError as error:
            raise GateRefused(f"{path} was created by another host just now; apply again when its plan is finished") from error
        finally:
            temporary.unlink()
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
