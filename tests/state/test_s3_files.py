"""The state on S3: conditional puts, lost responses, and pickling."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError, ResponseStreamingError

from gc_assets.buckets.protocol import Change, Deletion
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import StateError, UsageError
from gc_assets.s3 import bucket, pages
from gc_assets.s3.bucket import S3Bucket
from gc_assets.s3.client import get_client
from gc_assets.state.files import Files, is_read_only
from gc_assets.state.journal import State
from tests.depth import example_count
from tests.s3.servers import REGION, shared_server
from tests.state.s3_location import ACCESS, BUCKET, SECRET, unused_location

CHECKOUT = Path(__file__).parents[2]
RACERS = example_count(4, 8)


@pytest.fixture
def files() -> Iterator[Files]:
    with unused_location() as (root, settings):
        yield Files(root, settings)


class Server:
    """A stub client with objects in memory, for misbehaviour that a real server does not show.

    `compares` are the conditions that it evaluates.
    """

    def __init__(self, *compares: str, quoted: bool | None = None) -> None:
        self.compares, self.quoted = compares, quoted
        self.objects: dict[str, bytes] = {}
        self.puts = 0
        self.lock = threading.Lock()
        self.broken_reads = 0

    def put_object(self, **arguments: Any) -> dict[str, Any]:
        with self.lock:
            self.put(**arguments)
            return {"ETag": f'"{self.etag(arguments["Key"]).strip(chr(34))}"'}

    def put(self, Key: str, Body: bytes, IfMatch: str | None = None, IfNoneMatch: str | None = None, **_: Any) -> None:  # noqa: N803
        self.puts += 1
        if IfNoneMatch and "absent" in self.compares and Key in self.objects:
            raise refusal("PreconditionFailed")
        if IfMatch and "match" in self.compares and IfMatch != self.etag(Key):
            raise refusal("PreconditionFailed")
        if (IfMatch or IfNoneMatch) and "none" in self.compares:
            raise refusal("NotImplemented")
        self.objects[Key] = Body

    def get_object(self, Key: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        if Key not in self.objects:
            raise refusal("NoSuchKey")
        body: Any = BytesIO(self.objects[Key])
        if self.broken_reads:
            self.broken_reads -= 1
            body = BrokenBody()
        return {"Body": body, **self.describe(Key)}

    def head_object(self, Key: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        if Key not in self.objects:
            raise refusal("404")
        return self.describe(Key)

    def describe(self, key: str) -> dict[str, Any]:
        size = len(self.objects[key])
        return {"ETag": f'"{self.etag(key).strip(chr(34))}"', "ContentLength": size, "LastModified": datetime.now(UTC)}

    def delete_object(self, Key: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        self.objects.pop(Key, None)
        return {}

    def etag(self, key: str) -> str:
        plain = f"{hash(self.objects.get(key)):x}"
        return f'"{plain}"' if self.quoted else plain


class BrokenBody:
    def read(self) -> bytes:
        raise ResponseStreamingError(error="the connection was reset")


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "PutObject")


def files_on(monkeypatch: pytest.MonkeyPatch, server: Server) -> Files:
    monkeypatch.setattr(bucket, "get_client", lambda *_, **__: server)
    return Files(f"s3://bucket-{uuid.uuid4().hex}/state", S3Config(endpoint="http://stub"))


@pytest.mark.parametrize(
    "compares, found", [((), "If-None-Match"), (("absent",), "If-Match"), (("match",), "If-None-Match"), (("none",), "NotImplemented")]
)
def test_server_without_conditions_is_rejected(monkeypatch: pytest.MonkeyPatch, compares: tuple[str, ...], found: str) -> None:
    server = Server(*compares)
    files = files_on(monkeypatch, server)
    for write in (lambda: files.change("sales/live_files/_index.json", lambda _: b"1"), lambda: files.replace_if("a", b"", None)):
        with pytest.raises(StateError, match=rf"does not support conditional puts: .*{found}.*Ceph RGW\), or on a disk"):
            write()
    assert server.objects == {}


@pytest.mark.parametrize("quoted", [True, False])
def test_etag_quoting_of_server_is_detected(monkeypatch: pytest.MonkeyPatch, quoted: bool) -> None:
    server = Server("absent", "match", quoted=quoted)
    files = files_on(monkeypatch, server)
    assert files.replace_if("a", b"first", None)
    assert files.replace_if("a", b"second", files.read_version("a")[1])
    assert not files.replace_if("a", b"third", "other")
    assert files.read("a") == b"second"


def test_conditions_are_checked_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("absent", "match")
    files = files_on(monkeypatch, server)
    assert files.replace_if("a", b"", None)
    before = server.puts
    assert files.replace_if("b", b"", None)
    assert server.puts == before + 1


def test_put_with_lost_response_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats the put, and the server rejects the repetition."""
    server = Server("absent", "match")
    files = files_on(monkeypatch, server)
    files.check_conditions()
    put = server.put_object

    def twice(**arguments: Any) -> None:
        put(**arguments)
        put(**arguments)

    monkeypatch.setattr(server, "put_object", twice)
    assert files.replace_if("a", b"ours", None)
    version = files.read_version("a")[1]
    assert files.replace_if("a", b"ours again", version)
    assert not files.replace_if("a", b"others", version)


def test_unknown_outcome_of_put_raises_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("absent", "match")
    files = files_on(monkeypatch, server)
    files.check_conditions()

    def silent(**_: Any) -> None:
        raise ReadTimeoutError(endpoint_url="http://stub")

    monkeypatch.setattr(server, "put_object", silent)
    for put in (lambda: files.replace_if("a", b"", None), lambda: files.replace("a", b""), lambda: files.change("a", lambda _: b"1")):
        with pytest.raises(OSError, match=r"check the network and `s3\.endpoint`"):
            put()


def test_server_error_after_lost_race_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceph 16 answers 500 if another writer was faster."""
    server = Server("absent", "match")
    files = files_on(monkeypatch, server)
    files.check_conditions()
    files.replace("a", b"theirs")
    version = files.read_version("a")[1]

    def failing(**_: Any) -> None:
        raise refusal("UnknownError")

    monkeypatch.setattr(server, "put_object", failing)
    assert not files.replace_if("a", b"ours", "an earlier version")
    assert not files.replace_if("a", b"ours", None)
    with pytest.raises(OSError, match="UnknownError"):
        files.replace_if("a", b"ours", version)


def lose_answer(server: Server, then: Callable[[], None]) -> Any:
    """Return a `delete_object` whose first request is executed, and its answer lost. `then` is called after it."""
    delete, lost = server.delete_object, list[str]()

    def delete_object(**arguments: Any) -> dict[str, Any]:
        answer = delete(**arguments)
        if lost:
            return answer
        lost.append(arguments["Key"])
        then()
        raise ReadTimeoutError(endpoint_url="http://stub")

    return delete_object


def test_delete_with_lost_response_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("absent", "match")
    files = files_on(monkeypatch, server)
    files.replace("a", b"old")
    monkeypatch.setattr(server, "delete_object", lose_answer(server, lambda: None))
    files.delete("a")
    assert server.objects == {}


def test_delete_compares_content_if_server_refuses_its_own_etag(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("absent", "match")
    conditions: list[str | None] = []

    def refuse_token(Key: str, IfMatch: str | None = None, **_: Any) -> dict[str, Any]:  # noqa: N803
        if Key.endswith("/a"):  # and not the canary
            conditions.append(IfMatch)
        if IfMatch is not None:
            raise refusal("PreconditionFailed")
        del server.objects[Key]
        return {}

    monkeypatch.setattr(server, "delete_object", refuse_token)
    files = files_on(monkeypatch, server)
    files.replace_if("a", b"first", None)
    files.delete("a")
    assert not server.objects
    assert conditions[-1] is None
    assert len(conditions) == 2


def test_file_written_after_lost_delete_response_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("absent", "match")
    files = files_on(monkeypatch, server)
    files.replace("a", b"old")
    monkeypatch.setattr(server, "delete_object", lose_answer(server, lambda: files.replace("a", b"new")))
    with pytest.raises(OSError, match="another process replaced the file while it was being deleted"):
        files.delete("a")
    assert files.read("a") == b"new"


def test_file_written_after_failed_directory_delete_is_kept(monkeypatch: pytest.MonkeyPatch, files: Files) -> None:
    files.replace("t/a", b"old")
    delete = S3Bucket.delete

    def lose(self: S3Bucket, objects: Sequence[Deletion]) -> list[Change]:
        delete(self, objects)
        files.replace("t/a", b"new")
        return [Change("unknown", OSError(errno.EIO, "lost"))] * len(objects)

    monkeypatch.setattr(S3Bucket, "delete", lose)
    with pytest.raises(OSError, match="another process replaced the file"):
        files.delete_directory("t")
    assert files.read("t/a") == b"new"


def test_truncated_response_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("absent", "match")
    files = files_on(monkeypatch, server)
    files.replace("a", b"whole")
    server.broken_reads = 2
    assert files.read("a") == b"whole"
    server.broken_reads = 100
    with pytest.raises(OSError, match="connection was reset"):
        files.read("a")


RACE = """
import json, sys, time
from tests.state.s3_location import files_at
root, number, start, version = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
files = files_at(root)
files.replace_if(f"warm/{number}", b"", None)
time.sleep(max(0, start - time.time()))
won = [files.replace_if(f"new/{turn}", str(number).encode(), None) for turn in range(10)]
print(json.dumps([won, files.replace_if("there", str(number).encode(), version)]))
"""


def test_only_one_of_concurrent_processes_succeeds(files: Files) -> None:
    files.replace("there", b"")
    version, start = files.read_version("there")[1], str(time.time() + 3)
    commands = [[sys.executable, "-c", RACE, files.root, str(number), start, version] for number in range(RACERS)]
    racers = [subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) for command in commands]
    results = [json.loads(racer.communicate()[0]) for racer in racers]
    for turn in range(10):
        winners = [number for number, (created, _) in enumerate(results) if created[turn]]
        assert [str(number).encode() for number in winners] == [files.read(f"new/{turn}")]
    assert [str(number).encode() for number, (_, replaced) in enumerate(results) if replaced] == [files.read("there")]


def test_pickled_files_contain_no_secret(files: Files) -> None:
    files.replace("a", b"1")
    sent = pickle.dumps(State(files))
    assert pickle.loads(sent).files.read("a") == b"1"  # noqa: S301  (our own bytes)
    assert SECRET.encode() not in sent
    assert ACCESS.encode() not in sent


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_bucket_spellings_are_equivalent(files: Files, scheme: str) -> None:
    same = Files(files.root.replace("s3://", f"{scheme}://") + "/", files.settings)
    same.replace("a/b", b"1")
    assert files.read("a/b") == b"1"
    assert same.uri("a/b") == files.uri("a/b") == f"{files.root}/a/b"


def test_many_pages_are_listed_and_deleted(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t/{number:02}" for number in range(25)]
    for name in [*names, "t.json", "t0/a"]:
        files.replace(name, b"1")
    monkeypatch.setattr(pages, "PAGE_KEYS", 4)
    assert [f"t/{item.name}" for item in files.list("t")] == names
    files.delete_directory("t")
    files.delete_directory("t")
    assert [item.name for item in files.list("", recursive=True)] == ["t.json", "t0/a"]


def test_directory_marker_is_not_a_file(files: Files) -> None:
    files.replace("t/", b"")
    files.replace("t/a", b"1")
    assert [item.name for item in files.list("t")] == ["a"]
    assert [item.name for item in files.list("", recursive=True)] == ["t/a"]
    assert files.directories("") == ["t"]


def test_missing_bucket_raises(files: Files) -> None:
    lost = State(Files("s3://no-such-bucket-of-tests/state", files.settings))
    for ask in (lambda: lost.files.list("a"), lambda: lost.files.read("a"), lambda: lost.history("sales", "live_files")):
        with pytest.raises(OSError, match=r"there is no such bucket; correct the location or `s3\.endpoint`"):
            ask()


def test_unknown_credentials_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[stranger]\naws_access_key_id = stranger\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    # Ceph with STS, like that of the suite, reports only AccessDenied for unknown keys.
    stranger = Files("s3://any/state", S3Config(endpoint=shared_server("versity").endpoint, region=REGION, profile="stranger"))
    for ask in (lambda: stranger.list("a"), lambda: stranger.read("a"), lambda: stranger.replace_if("a", b"", None)):
        with pytest.raises(OSError, match="does not know this access key"):
            ask()


def test_read_only_error_is_recognised(files: Files) -> None:
    assert isinstance(files.settings, S3Config)
    client = get_client(files.settings, "change")
    statement = {"Effect": "Deny", "Principal": "*", "Action": ["s3:PutObject"], "Resource": [f"arn:aws:s3:::{BUCKET}/denied/*"]}
    client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    denied = Files(f"s3://{BUCKET}/denied", files.settings)
    try:
        with pytest.raises(PermissionError) as refused:
            denied.replace_if("a", b"", None)
        assert is_read_only(refused.value)
        assert denied.list("") == []
    finally:
        client.delete_bucket_policy(Bucket=BUCKET)


def test_state_is_written_without_apply_role(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, used = S3Config(profile="night", apply_profile="apply", apply_role_arn="arn:aws:iam::1:role/apply"), list[S3Config]()

    def record(settings: S3Config, *_: Any, **__: Any) -> Server:
        used.append(settings)
        return Server()

    monkeypatch.setattr(bucket, "get_client", record)
    Files("s3://bucket/state", settings).replace("a", b"")
    assert {(found.profile, found.apply_profile, found.apply_role_arn) for found in used} == {("night", None, None)}


def test_missing_credentials_raise() -> None:
    with pytest.raises(UsageError, match="anonymous"):
        Files("s3://bucket/state", S3Config(anonymous=True)).read("a")
