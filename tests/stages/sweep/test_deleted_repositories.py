"""Files of a repository that its lakeFS server deleted are collected after a waiting time, and no
other files.

Each story forgets the lake, except those that show why its repository is not certainly deleted.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig, LakeFsRetention
from gc_assets.stages.read.dropped_tables import read_dropped_tables, short_row
from gc_assets.stages.read.explain import explain
from gc_assets.stages.records.accepted_runs import forget_lake
from gc_assets.stages.records.dead_tables import accept_dead_table
from gc_assets.stages.sweep.foreign_files import foreign_notes
from gc_assets.state.summaries import ForeignFiles
from tests.depth import full_suite_only, in_turn
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import Answer, Branch, FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.stages.lakehouse import NOW, Lakehouse, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]
GATES = {"max_delete_share": 1.0, "max_live_drop": 1.0}
GONE = {"dropped_tables"}


class Repositories:
    """Repositories of a server, and the lakes of some of them."""

    def __init__(
        self, spark: SparkSession, folder: Path, names: Sequence[str] = ("ml", "raw"), *, lakes: Sequence[str] | None = None
    ) -> None:
        self.house = Lakehouse(spark, folder, settings={"gates": GATES})
        self.lakes = names if lakes is None else lakes
        self.builders = {name: RepositoryBuilder(self.house.warehouse, days_ago(40), name) for name in names}
        for builder in self.builders.values():
            builder.commit("main", a=b"a", b=b"b")
            builder.now = days_ago(30)
            builder.commit("main", c=b"c")
        self.server = FakeServer(*(builder.repository for builder in self.builders.values()))

    def configure(self, url: str, **settings: Any) -> None:
        self.house.lakes = [self.config_of(url, name, **settings) for name in self.lakes]

    def config_of(self, url: str, name: str, **settings: Any) -> LakeFsLakeConfig:
        return config_of(url, name, name=name, location=f"file://{self.builders[name].namespace}/", **settings)

    def run(self, day: float) -> PlanHeader:
        self.house.now = NOW + timedelta(days=day)
        return self.house.plan()

    def delete(self, name: str = "ml") -> None:
        del self.server.repositories[name]

    def make_again(self, name: str = "ml") -> None:
        """Make the repository again in place, as `refs-restore` does, with the same commits."""
        repository = self.builders[name].repository
        repository.created = 99
        self.server.repositories[name] = repository

    def forget(self, day: float, name: str = "ml") -> None:
        self.house.now = NOW + timedelta(days=day)
        forget_lake(self.house.config, self.house.clock, name, "ada")

    def list_dropped(self) -> list[dict[str, Any]]:
        return read_dropped_tables(self.house.run_context(), self.house.storage).to_pylist()

    def waits_for(self, name: str = "ml") -> str | None:
        (row,) = [row for row in self.list_dropped() if row["table_name"] == name]
        return row["waits_for"]

    def unreadable(self, name: str = "ml") -> list[str]:
        return [item["why"] for item in self.house.summary("live_files", name)["unreadable"]]

    def dropped_names(self) -> set[str]:
        return {row["table_name"] for row in self.list_dropped()}

    def list_planned(self, name: str) -> set[str]:
        return {key for key in self.house.keys("deletion_plan") if key.startswith(f"{name}/")}

    def data(self, name: str = "ml") -> set[str]:
        return {key for key in self.house.files() if key.startswith(f"{name}/data/")}


@pytest.fixture
def found(spark: SparkSession, tmp_path: Path) -> Iterator[Repositories]:
    """A repository that a run has read, and another one of its server, of no lake."""
    with read_by_a_run(Repositories(spark, tmp_path, lakes=["ml"])) as repositories:
        yield repositories


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> Iterator[Repositories]:
    """Two lakes of a server that a run has read."""
    with read_by_a_run(Repositories(spark, tmp_path)) as repositories:
        yield repositories


@contextmanager
def read_by_a_run(repositories: Repositories) -> Generator[Repositories]:
    with repositories.server.running() as url:
        repositories.configure(url)
        repositories.run(0)
        yield repositories


def test_files_of_a_forgotten_repository_are_collected_after_seven_days(both: Repositories) -> None:
    found, house = both, both.house
    data = found.data()
    found.delete()
    found.forget(1)
    for day, condition in ((2, ", if this run is accepted"), (8.5, "")):
        header = found.run(day)
        state = f"its waiting time ends at 2026-11-29 03:00 UTC{condition}"
        assert (header.rows, header.failed_gates, found.waits_for()) == (0, [], state)
    key = min(data)
    (waiting,) = explain(house.run_context(), key)
    assert waiting.sentence.startswith("It belongs to repository ml of lake ml, which its server no longer has, and waits: its waiting")
    (row,) = found.list_dropped()
    assert short_row(row, "ml")["table"] == "ml: ml"

    header = found.run(9.1)

    assert house.planned_actions() == dict.fromkeys(data, "quarantine")
    assert header.by_reason["dropped"].files == len(data)
    assert house.failed_gates(header) == GONE
    house.approve(header, "dropped_tables")
    assert outcomes(house.apply(header)) == {"done"}
    purge = found.run(9.2)
    assert house.planned_actions() == dict.fromkeys(data, "purge")
    assert outcomes(house.approve_and_apply(purge)) == {"done"}
    assert found.run(9.3).rows == 0
    assert {key.split("/")[0] for key in house.files() if "/data/" in key} == {"raw"}


def test_deleted_repository_is_unreadable_until_lake_is_forgotten(found: Repositories) -> None:
    found.delete()
    header = found.run(1)
    (why,) = found.unreadable()
    assert "its server no longer has repository ml" in why
    assert "`gc-assets forget ml --by WHO`" in why
    assert (header.rows, header.failed_gates, found.list_dropped()) == (0, [], [])
    assert found.house.summary("lake_refs", "ml")["repository"]["read_at"].startswith(f"{NOW:%Y-%m-%dT%H:%M}")
    found.forget(1.1)
    found.run(1.2)  # on the same run date
    assert found.unreadable() == []
    assert found.waits_for() == "its waiting time ends at 2026-11-28 07:48 UTC, if this run is accepted"


def test_refs_read_with_clock_ahead_do_not_delay_forgotten_repository(found: Repositories) -> None:
    found.run(25)
    found.delete()
    found.forget(1)
    found.run(2)
    assert (found.unreadable(), found.waits_for()) == ([], "its waiting time ends at 2026-11-29 03:00 UTC, if this run is accepted")


def hide(*denied: str, status: int = 401, body: Any = None) -> Any:
    """Return a fault with this response for paths."""

    def fault(method: str, path: str, query: Any) -> Answer | None:
        del method, query
        return (status, body if body is not None else {"message": "error authenticating request"}) if path in denied else None

    return fault


EMPTY_LIST = {"pagination": {"has_more": False, "next_offset": "", "results": 0, "max_per_page": 1000}, "results": []}
# Responses that do not prove that the repository NAME was deleted.
UNCERTAIN = {
    "hidden": lambda name: hide(f"/repositories/{name}"),
    "unlisted": lambda name: hide("/repositories"),
    "proxy": lambda name: hide(f"/repositories/{name}", status=404, body="<html>404 page not found</html>"),
    "lost": lambda name: hide("/repositories", status=404, body={"message": "not found"}),
    "ending": lambda name: hide(f"/repositories/{name}", status=410, body={"message": "in deletion"}),
    "empty": lambda name: hide("/repositories", status=200, body=EMPTY_LIST),
}
# Another installation at the endpoint, or an unknown one.
INSTALLATIONS = {"other": "other", "unknown": None}


def test_uncertainly_deleted_repository_is_unreadable_even_if_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """Once the servers respond, the lakes are deleted. The user forgot lake `since` before the last run that read it. No run has read
    the new repository `again`, which may need any file of the former one.
    """
    forgotten = [*UNCERTAIN, *INSTALLATIONS]
    names = [*forgotten, "since", "again"]
    found = Repositories(spark, tmp_path, [*names, "raw"], lakes=names)
    servers = {name: FakeServer(found.builders[name].repository, found.builders["raw"].repository) for name in names}
    with ExitStack() as stack:
        found.house.lakes = [found.config_of(stack.enter_context(server.running()), name) for name, server in servers.items()]
        found.run(0)
        found.forget(0.5, "since")
        for name in INSTALLATIONS:
            servers[name].installation = "first"
        found.run(1)
        for name in names[:-1]:
            del servers[name].repositories[name]
        for name, fault in UNCERTAIN.items():
            servers[name].fault = fault(name)
        for name, installation in INSTALLATIONS.items():
            servers[name].installation = installation
        found.builders["again"].repository.created = 99
        servers["again"].fault = hide("/repositories/again/branches", status=403)
        for name in forgotten:
            found.forget(1.5, name)
        for day in (2, 10):
            assert (found.run(day).rows, found.list_dropped()) == (0, [])
            assert {name: len(found.unreadable(name)) for name in names} == dict.fromkeys(names, 1)
            assert "no longer has repository since, which a run read" in found.unreadable("since")[0]
            assert "list of branches: HTTP 403" in found.unreadable("again")[0]
            found.forget(day + 0.5, "again")

        for name in (*UNCERTAIN, "again"):
            servers[name].fault = hide()
        servers["since"].repositories["since"] = found.builders["since"].repository
        for name in INSTALLATIONS:
            servers[name].installation = "first"
        found.run(11)
        state = "its waiting time ends at 2026-12-08 03:00 UTC, if this run is accepted"
        assert {row["table_name"]: row["waits_for"] for row in found.list_dropped()} == dict.fromkeys([*forgotten, "again"], state)


def test_files_are_kept_if_repository_is_recreated_after_freeze(found: Repositories) -> None:
    found.delete()
    found.forget(0.5)
    found.run(1)
    header = found.run(9)
    assert found.list_planned("ml") == found.data()
    found.make_again()
    assert found.run(9.1).rows == 0  # the refs of this run date are frozen
    assert (found.waits_for() or "").endswith("has another repository ml now, which this run did not read")
    found.house.approve(header, "dropped_tables")
    assert outcomes(found.house.apply(header)) == {"changed"}


STORIES = ("ended", "written", "imported", "moved", "again", "back", "other")


@pytest.fixture(scope="module")
def stories(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Repositories, dict[str, set[str]], PlanHeader]]:
    """Repositories that end in different ways, and the run after their waiting time."""
    found = Repositories(spark, tmp_path_factory.mktemp("stories"), STORIES)
    server, house = found.server, found.house
    with server.running() as url:
        found.configure(url)
        imported = min(found.data("imported"))
        found.builders["other"].record("import", [], {"x": f"file://{house.warehouse}/{imported}"})
        found.builders["other"].repository.branches["import"] = Branch("import")
        found.run(0)
        data = {name: found.data(name) for name in STORIES}
        back = server.repositories["back"]
        for name in STORIES[:-1]:
            found.delete(name)
        found.builders["written"].now = NOW + timedelta(hours=5)  # before the deletion, but after the last run
        found.builders["written"].upload()
        for name, folder in {"moved": "new", "again": "."}.items():
            builder = found.builders[name] = RepositoryBuilder(house.warehouse / folder, NOW, name)
            builder.repository.created, builder.repository.storage_namespace = 99, f"local://{folder}/{name}"
            server.repositories[name] = builder.repository
            builder.commit("main", new=b"new")
        for name in STORIES[:-1]:
            found.forget(0.5, name)
        found.configure(url)
        found.run(1)
        assert not found.house.keys("deletion_plan")
        server.repositories["back"] = back
        yield found, data, found.run(8.1)


Found = tuple[Repositories, dict[str, set[str]], PlanHeader]


def test_plan_needs_only_override_for_dropped_tables(stories: Found) -> None:
    found, _, header = stories
    assert found.house.failed_gates(header) == GONE
    lost = found.house.summary("orphan_files")["lost_tables"]
    assert [text.split()[1] for text in lost] == ["again", "ended", "imported", "moved"]


@pytest.mark.parametrize("name", ["ended", "moved", "again"], ids=["deleted", "made_again_at_another_place", "made_again_in_place"])
def test_data_of_a_deleted_repository_is_planned(stories: Found, name: str) -> None:
    found, data, _ = stories
    assert found.list_planned(name) == data[name]


def test_object_that_another_repository_imports_is_kept(stories: Found) -> None:
    found, data, _ = stories
    assert found.list_planned("imported") == data["imported"] - {min(data["imported"])}


def test_deleted_repository_is_kept_if_written_to_after_last_run(stories: Found) -> None:
    found, _, _ = stories
    assert found.list_planned("written") == set()
    assert (found.waits_for("written") or "").endswith("was written after a run last read the table")


def test_recreated_repository_is_live_again(stories: Found) -> None:
    found, data, _ = stories
    assert data["back"] <= found.house.live()
    assert "back" not in found.dropped_names()


def test_files_of_repository_recreated_after_plan_are_kept(found: Repositories) -> None:
    repository = found.server.repositories["ml"]
    found.delete()
    found.forget(0.5)
    found.run(1)
    header = found.run(9)
    assert found.list_planned("ml") == found.data()
    found.house.approve(header, "dropped_tables")
    found.server.repositories["ml"] = repository
    assert outcomes(found.house.apply(header)) == {"changed"}
    assert found.list_planned("ml") == found.data()


def test_accepted_deleted_repository_is_collected_without_waiting(found: Repositories) -> None:
    found.builders["ml"].now = NOW + timedelta(hours=5)
    found.builders["ml"].upload()
    found.delete()
    found.forget(1)
    found.run(2)
    (row,) = found.list_dropped()
    accept_dead_table(found.house.config, found.house.clock, row["table_uuid"], f"file://{found.house.warehouse}/ml/data/", "ada")
    found.run(5)
    assert found.list_planned("ml") == found.data()


@full_suite_only
def test_dropped_setting_keep_keeps_files_of_deleted_repositories(found: Repositories) -> None:
    found.house.lakes = [lake.model_copy(update={"retention": LakeFsRetention(dropped="keep")}) for lake in found.house.lakes]
    found.delete()
    found.forget(1)
    found.run(2)
    assert found.run(400).rows == 0
    assert found.waits_for() == "`retention.dropped` is keep"


def test_deleted_repository_with_lifecycle_rules_is_read(found: Repositories, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"old": {"prefix": "", "days": 1, "enabled": true}}')
    found.house.lakes = [lake.model_copy(update={"rules": str(rules)}) for lake in found.house.lakes]
    found.run(0.5)
    found.delete()
    found.forget(0.6)
    assert found.run(1).failed_gates == []
    found.run(9)
    assert {row["reason"] for row in found.house.rows("orphan_files") if row["key"].startswith("ml/")} == {"dropped"}


@pytest.fixture
def unknown(spark: SparkSession, tmp_path: Path) -> Iterator[Repositories]:
    """A repository that is deleted before the first run, and another one of its server, of no lake."""
    repositories = Repositories(spark, tmp_path, lakes=["ml"])
    repositories.builders["raw"].repository.storage_namespace = f"file://{repositories.house.warehouse}/raw"
    repositories.delete()
    with repositories.server.running() as url:
        repositories.configure(url)
        yield repositories


NEEDS_ACCEPT = "no run read the repository. To collect its files: gc-assets accept ml --by WHO --comment WHY"


def accept(found: Repositories, day: float, name: str = "ml", at: str | None = None) -> None:
    (row,) = [row for row in found.list_dropped() if row["table_name"] == name]
    house = found.house
    house.now = NOW + timedelta(days=day)
    accept_dead_table(house.config, house.clock, row["table_uuid"], f"file://{house.warehouse}/{at or name}/data/", "ada")


def forget_and_accept(unknown: Repositories, at: str | None = None) -> None:
    """Run before and after `forget`, and accept the repository half a day after the first run."""
    unknown.run(0)
    unknown.forget(0.1)
    unknown.run(0.2)
    accept(unknown, 0.5, at=at)


def test_repository_deleted_before_first_run_is_collected_if_accepted(unknown: Repositories) -> None:
    house, data = unknown.house, unknown.data()
    assert unknown.run(0).rows == 0
    (why,) = unknown.unreadable()
    assert "its server does not have this repository, and no run has read it. `location` is file://" in why
    assert "`gc-assets forget ml --by WHO`" in why
    unknown.forget(0.1)
    assert unknown.run(0.2).rows == 0
    assert unknown.waits_for() == NEEDS_ACCEPT
    accept(unknown, 0.5)

    header = unknown.run(4)

    assert house.planned_actions() == dict.fromkeys(data, "quarantine")
    assert outcomes(house.approve_and_apply(header)) == {"done"}
    assert outcomes(house.approve_and_apply(unknown.run(4.2))) == {"done"}
    assert unknown.data() == set()
    assert unknown.run(5).rows == 0


def test_message_reports_repository_that_may_use_namespace(unknown: Repositories) -> None:
    unknown.builders["raw"].repository.storage_namespace = "local://raw"
    unknown.run(0)
    unknown.forget(0.1)
    assert unknown.run(1).rows == 0
    (why,) = unknown.unreadable()
    assert "HTTP 404: not found; check endpoint and repository. It does not count as deleted: repository raw of the server at" in why
    assert why.endswith("and may be the same place under another address")


@pytest.mark.parametrize("is_first_plan", [False, True], ids=["new_claim", "claim_of_unknown_age"])
def test_files_of_unknown_repository_are_kept_without_acceptance(unknown: Repositories, is_first_plan: bool) -> None:
    """The first plan of a storage may follow the record, so that the age of its claims is unknown."""
    if is_first_plan:
        unknown.house.now = NOW
        unknown.house.mark()
    else:
        unknown.run(0)
    unknown.forget(0.1)
    unknown.run(1)
    header = unknown.run(9)
    assert (header.rows, header.failed_gates, unknown.waits_for()) == (0, [], NEEDS_ACCEPT)


def put_others(house: Lakehouse, *keys: str) -> None:
    """Write old files of others."""
    for key in keys:
        path = house.warehouse / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"others")
        written = days_ago(200).timestamp()
        os.utime(path, (written, written))


def test_files_of_other_writers_in_accepted_repository_are_kept(unknown: Repositories) -> None:
    house, data = unknown.house, unknown.data()
    put_others(house, "ml/data/raw/2024.csv", "ml/data/zarr/zarr.json", "ml/data/zarr/c/0/0")
    forget_and_accept(unknown)
    unknown.run(4)
    assert unknown.list_planned("ml") == data
    unknown.make_again()  # a live repository with an accepted predecessor
    unknown.run(5)
    assert (unknown.list_planned("ml"), unknown.unreadable()) == (set(), [])


def test_corrected_accepted_location_replaces_former_one(unknown: Repositories) -> None:
    house, good = unknown.house, unknown.house.lakes[0]
    house.lakes[0] = good.model_copy(update={"location": f"file://{house.warehouse}/m1/"})
    put_others(house, *(f"m1/{key.removeprefix('ml/')}" for key in unknown.data()))
    forget_and_accept(unknown, at="m1")
    unknown.run(4)
    assert len(unknown.list_planned("m1")) == len(unknown.data())
    house.lakes[0] = good
    assert unknown.run(5).rows == 0
    assert [(row["prefixes"], row["waits_for"]) for row in unknown.list_dropped()] == [(["ml/data/"], NEEDS_ACCEPT)]
    accept(unknown, 5.5)
    unknown.run(6)
    assert unknown.list_planned("ml") == unknown.data()
    assert unknown.list_planned("m1") == set()


def test_acceptance_for_another_server_is_ignored(unknown: Repositories) -> None:
    """With the earlier acceptance, the files would wait forever after `endpoint` was corrected."""
    house, data, wrong = unknown.house, unknown.data(), unknown.house.lakes[0]
    forget_and_accept(unknown)
    unknown.run(4)
    assert unknown.list_planned("ml") == data
    with FakeServer(unknown.builders["raw"].repository).running() as url:
        house.lakes[0] = wrong.model_copy(update={"endpoint": url})
        assert (unknown.run(4.1).rows, unknown.waits_for()) == (0, NEEDS_ACCEPT)
        assert (unknown.run(5).rows, unknown.waits_for()) == (0, NEEDS_ACCEPT)
        accept(unknown, 5.5)
        unknown.run(6)
        assert unknown.list_planned("ml") == data


def test_message_about_files_of_other_writers_contains_their_directory(unknown: Repositories) -> None:
    house = unknown.house
    address = f"file://{house.warehouse}/ml/data/"
    found = ForeignFiles(rule="unknown_path", lake="ml", address=address, files=1, bytes=6, samples=("ml/data/raw/2024.csv",))
    (note,) = foreign_notes(house.run_context(), house.storage, [found])
    assert f"gc-assets accept-prefix {address}raw/ --by" in note


def test_unknown_repository_is_kept_if_its_location_was_removed(unknown: Repositories) -> None:
    house = unknown.house
    forget_and_accept(unknown)
    house.lakes[0] = house.lakes[0].model_copy(update={"location": None})
    assert (unknown.run(4).rows, len(unknown.unreadable())) == (0, 1)


# Namespaces of another repository of the server that are or may be the location of the lake NAME, under the same or another address.
NAMESPACES = {
    "same": "file://{warehouse}/same",
    "nested": "file://{warehouse}/nested/inner",
    "outer": "file://{warehouse}",
    "local": "local://raw",
    "s3": "s3://bucket/raw",
    "azure": "https://account.blob.core.windows.net/lake/raw",
}


def test_unknown_repository_is_kept_if_known_one_has_its_namespace(spark: SparkSession, tmp_path: Path) -> None:
    """A record that is older than the first run, as of lake `early`, does not drop an unknown repository either."""
    names = [*NAMESPACES, "early"]
    found = Repositories(spark, tmp_path, names)
    others = {name: RepositoryBuilder(tmp_path / "others" / name, days_ago(40), "raw").repository for name in names}
    other_place = f"file://{found.house.warehouse}/other"
    for name, other in others.items():
        other.storage_namespace = NAMESPACES.get(name, other_place).format(warehouse=found.house.warehouse)
    with ExitStack() as stack:
        found.house.lakes = [found.config_of(stack.enter_context(FakeServer(other).running()), name) for name, other in others.items()]
        found.forget(-1, "early")
        found.run(0)
        for name in NAMESPACES:
            found.forget(0.1, name)
        for day in (1, 9):
            assert (found.run(day).rows, found.list_dropped()) == (0, [])
            assert {name: len(found.unreadable(name)) for name in names} == dict.fromkeys(names, 1)

        for other in others.values():
            other.storage_namespace = other_place
        found.run(10)
        assert found.dropped_names() == set(NAMESPACES)


def test_unknown_repository_is_kept_if_another_lake_claims_its_location(unknown: Repositories) -> None:
    house, (url, _, name) = unknown.house, unknown.house.lakes[0].catalog_location()[1].rpartition("/")
    house.lakes.append(unknown.config_of(url, "raw"))
    house.lakes[0] = config_of(url, name, name=name, location=f"file://{unknown.builders['raw'].namespace}/")
    unknown.builders["raw"].repository.storage_namespace = f"file://{house.warehouse}/another"
    forget_and_accept(unknown, at="raw")
    assert unknown.run(9).by_reason.get("dropped") is None
    assert unknown.waits_for() == "lake raw claims raw/data/, so it is not the namespace of a deleted repository"


def test_unknown_repository_that_is_recreated_is_not_dropped(unknown: Repositories) -> None:
    data = unknown.data()
    forget_and_accept(unknown)
    header = unknown.run(4)
    unknown.house.approve(header)
    unknown.make_again()
    assert outcomes(unknown.house.apply(header)) == {"changed"}
    unknown.run(5)
    assert unknown.list_dropped() == []
    assert data <= unknown.house.live()
