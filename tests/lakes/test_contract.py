"""The contract tests for every lake kind, on a small lake of its system, and for a kind that only tests use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from gc_assets.core.errors import UsageError
from gc_assets.lakes.kinds import KINDS, all_tables, open_lake
from gc_assets.lakes.nessie.client import NessieClient
from gc_assets.stores.local.editing import EditableLocalObjects
from tests.lakes import toy
from tests.lakes.contract import LakeContract, Sample
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers, set_value
from tests.lakes.lakefs.builder import RepositoryBuilder as LakeFsBuilder
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET, FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of as lakefs_config
from tests.lakes.nessie.builder import NessieBuilder

NOW = datetime.now(UTC).replace(microsecond=0)
HIDDEN = "a-secret-that-executors-need-not-know"
SampleFactory = Callable[[Path, pytest.FixtureRequest], AbstractContextManager[Sample]]


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def data_files(root: Path, pattern: str) -> frozenset[str]:
    return frozenset(f"file://{path}" for path in root.glob(pattern) if path.is_file())


def truncate_file(path: Path, name: str) -> Callable[[], str]:
    """Return a function that truncates the file to half its size."""

    def make_unreadable() -> str:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return name

    return make_unreadable


@contextmanager
def iceberg(root: Path, _: pytest.FixtureRequest) -> Generator[Sample]:
    lake = LakeBuilder(root)
    table = lake.table("db.orders", days_ago(60), properties={"history.expire.max-snapshot-age-ms": str(10 * 86_400_000)})
    expired = [table.append(days_ago(days)) for days in (50, 40)]
    head = [table.append(days_ago(days)) for days in (6, 5)][-1]
    table.tag(days_ago(5), "v1", head)
    config = lake.config()
    location = Path(table.table.location().removeprefix("file://"))
    yield Sample(
        kind=KINDS["iceberg"],
        config=config.model_copy(update={"catalog": {**config.catalog, "token": SecretStr(HIDDEN)}}),
        objects=EditableLocalObjects(),
        storage=f"file://{lake.warehouse}/",
        as_of=NOW,
        grace=NOW,
        refs={("branch", "main"): head, ("tag", "v1"): head},
        files=data_files(location, "data/**/*.parquet"),
        expired=frozenset(expired),
        stranger=f"file://{lake.warehouse}/stranger",
        make_unreadable=truncate_file(table.path(table.metadata_location), "db.orders"),
        secrets=(HIDDEN,),
    )


@contextmanager
def icechunk(root: Path, _: pytest.FixtureRequest) -> Generator[Sample]:
    repository = RepositoryBuilder.create(root / "weather", days_ago(60))
    repository.commit("main", days_ago(50), numbers("values", range(4)))
    old = repository.commit("main", days_ago(40), set_value("values", 1, 7))
    repository.commit("main", days_ago(5), set_value("values", 2, 8))
    head = repository.commit("main", days_ago(4), set_value("values", 3, 9))
    repository.tag("v1", head)
    repository.branch("dev", head)
    kind = KINDS["icechunk"]
    settings = {"name": "weather", "kind": "icechunk", "location": repository.location, "retention": {"default": "10d"}}
    yield Sample(
        kind=kind,
        config=kind.config.model_validate(settings),
        objects=EditableLocalObjects(),
        storage=f"file://{root}/",
        as_of=NOW,
        grace=NOW,
        refs={("branch", "main"): head, ("branch", "dev"): head, ("tag", "v1"): head},
        files=data_files(repository.path, "chunks/*"),
        expired=frozenset([old, commit_before(repository, old)]),
        stranger=f"file://{root}/stranger",
        make_unreadable=truncate_file(repository.path / "refs" / "branch.dev" / "ref.json", "branch.dev"),
    )


def commit_before(repository: RepositoryBuilder, snapshot: str) -> str:
    """Return the parent according to the library."""
    return [item.id for item in repository.reopen().ancestry(snapshot_id=snapshot)][1]


@contextmanager
def lakefs(root: Path, _: pytest.FixtureRequest) -> Generator[Sample]:
    builder = LakeFsBuilder(root, days_ago(60))
    first = builder.repository.branches["main"].head
    commits: list[str] = []
    for days in (50, 40, 5):
        builder.now = days_ago(days)
        commits.append(builder.commit("main", **{f"part_{days}": b"x"}))
    builder.branch("dev")
    builder.now = NOW
    server = FakeServer(builder.repository)

    def make_unreadable() -> str:
        server.fault = lambda _, path, __: (403, {"message": "not yours"}) if "dev" in path.split("/") else None
        return "dev"

    with server.running() as url:
        retention = {"source": "configured", "default": "10d"}
        yield Sample(
            kind=KINDS["lakefs"],
            config=lakefs_config(url, builder.repository.name, retention),
            objects=EditableLocalObjects(),
            storage=f"file://{builder.namespace}/",
            as_of=NOW,
            grace=NOW,
            refs={("branch", "main"): commits[-1], ("branch", "dev"): commits[-1]},
            files=frozenset(f"file://{builder.namespace}/{key}" for key in builder.files()),
            # The head at the start of the ten days is kept.
            expired=frozenset([first, commits[0]]),
            stranger=f"file://{builder.namespace}/_lakefs/stranger",
            make_unreadable=make_unreadable,
            checksums=True,
            secrets=(KEY_ID, SECRET),
        )


@contextmanager
def nessie(root: Path, request: pytest.FixtureRequest) -> Generator[Sample]:
    server = request.getfixturevalue("nessie")
    builder = NessieBuilder(server.uri, root / "warehouse", listed="all")
    branch = builder.on("main")
    created = branch.new("db.orders")
    for _ in range(2):
        branch.append("db.orders")
    head = branch.append("db.orders")
    builder.tag("v1")
    builder.branch("dev")
    location = Path(created.table.location().removeprefix("file://"))
    all_commits = {commit["commitMeta"]["hash"] for commit in builder.api.get("trees/main/history").json()["logEntries"]}

    def make_unreadable() -> str:
        """Truncate the list of refs to half its size."""
        patched, send = request.getfixturevalue("monkeypatch"), NessieClient.send

        def half(self: NessieClient, path: str, parameters: Mapping[str, str]) -> bytes:
            raw = send(self, path, parameters)
            return raw[: len(raw) // 2] if path == "trees" else raw

        patched.setattr(NessieClient, "send", half)
        return "/trees"

    yield Sample(
        kind=KINDS["nessie"],
        config=builder.config(retention={"default": 1, "state_at_cutoff": False}, token=HIDDEN),
        objects=EditableLocalObjects(),
        storage=f"file://{builder.warehouse}/",
        as_of=datetime.now(UTC) + timedelta(days=1),
        grace=datetime.now(UTC) + timedelta(days=1),
        refs={("branch", "main"): head, ("branch", "dev"): head, ("tag", "v1"): head},
        files=data_files(location, "data/**/*.parquet"),
        expired=frozenset(all_commits - {head}),
        stranger=f"file://{builder.warehouse}/stranger",
        make_unreadable=make_unreadable,
        secrets=(HIDDEN,),
    )


@contextmanager
def toys(root: Path, _: pytest.FixtureRequest) -> Generator[Sample]:
    lake = root / "toys"
    toy.write(lake, "c1", None, days_ago(60), {"one": b"1"})
    toy.write(lake, "c2", "c1", days_ago(40), {"two": b"2"})
    toy.write(lake, "c3", "c2", days_ago(5), {"two": b"2", "three": b"3"}, "main")
    toy.write(lake, "d1", "c2", days_ago(4), {"four": b"4"}, "dev")
    yield Sample(
        kind=toy.KIND,
        config=toy.ToyConfig(name="toys", kind="toy", location=f"file://{lake}"),
        objects=EditableLocalObjects(),
        storage=f"file://{root}/",
        as_of=NOW,
        grace=NOW,
        refs={("branch", "main"): "c3", ("branch", "dev"): "d1"},
        files=data_files(lake, "data/*"),
        expired=frozenset(["c1", "c2"]),
        stranger=f"file://{root}/stranger",
        make_unreadable=truncate_file(lake / "branches" / "dev.json", "dev.json"),
        checksums=True,
    )


SAMPLES: dict[str, SampleFactory] = {"iceberg": iceberg, "icechunk": icechunk, "lakefs": lakefs, "nessie": nessie, "toy": toys}


class TestEveryKind(LakeContract):
    @pytest.fixture(params=SAMPLES)
    def sample(self, request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Sample]:
        with SAMPLES[request.param](tmp_path, request) as sample:
            yield sample


def test_every_lake_kind_has_a_sample() -> None:
    assert SAMPLES.keys() == KINDS.keys() | {"toy"}


def test_lake_kind_name_equals_configured_kind() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name
        assert kind.config.model_fields["kind"].annotation.__args__ == (name,)


def test_tables_of_lake_kinds_have_unique_names() -> None:
    own = [kind_table.table.name for kind in KINDS.values() for kind_table in kind.kind_tables]
    assert len(set(own)) == len(own)
    assert set(own) <= all_tables().keys()


@pytest.mark.parametrize("kind, module", [(kind.name, module) for kind in KINDS.values() for module in kind.modules])
def test_missing_library_error_suggests_pip_extra(kind: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "iceberg": {"catalog": {}},
        "icechunk": {"location": "/"},
        "lakefs": {"endpoint": "http://h", "repository": "r", "access_key_id": "k", "secret_access_key": "s"},
        "nessie": {"uri": "http://h"},
    }
    monkeypatch.setitem(sys.modules, module, None)
    config = KINDS[kind].config.model_validate({"name": "mine", "kind": kind, **settings[kind]})
    with pytest.raises(UsageError, match=rf"lake mine is of kind {kind}, which needs {module}: pip install 'gc-assets\[{kind}\]'"):
        open_lake(config, EditableLocalObjects())
