"""`docs/lakefs.md` lists all options, reasons and permissions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gc_assets.lakes.lakefs.config import LakeFsLakeConfig, LakeFsRetention
from gc_assets.lakes.lakefs.kind import KIND
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.lakefs_lakes import serve
from tests.lakes.lakefs.test_lake import NOW

DOCS = Path(__file__).parents[3] / "docs"
PAGE, PAGE_OF_IDLE_BRANCHES = (DOCS / "lakefs.md").read_text(), (DOCS / "idle_branches.md").read_text()
# Permission that lakeFS requires for each request (`pkg/api/controller.go`), by the end of the path.
PERMISSIONS = {
    r"/repositories$": "fs:ListRepositories",
    r"/repositories/[^/]+$": "fs:ReadRepository",
    r"/branches$": "fs:ListBranches",
    r"/tags$": "fs:ListTags",
    r"/objects/ls$": "fs:ListObjects",
    r"/settings/gc_rules$": "retention:GetGarbageCollectionRules",
    r"/gc/prepare_uncommited$": "retention:PrepareGarbageCollectionUncommitted",
    r"/config/garbage-collection$": "fs:ReadConfig",
    r"/dump$": "fs:ListCommits",
}


def options(table: str) -> set[str]:
    """Return the names in backticks in the first column of the table under a heading."""
    section = PAGE.split(f"## {table}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))


def test_examples_use_valid_repository_and_branch_names() -> None:
    """lakeFS 1.84 refuses repositories with less than three characters, and branches with a slash."""
    idle = PAGE_OF_IDLE_BRANCHES.split("kind: lakefs", 1)[1].split("```", 1)[0]
    repositories = re.findall(r"^ +repository: (.+)$", PAGE, re.MULTILINE)
    branches = re.findall(r'match: "([^"]+)"', PAGE + idle)
    assert repositories
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]{2,62}", name) for name in repositories)
    assert len(branches) > 1
    assert not any("/" in name for name in branches)


def test_docs_page_explains_every_option() -> None:
    fields = {*LakeFsLakeConfig.model_fields, *(f"retention.{name}" for name in LakeFsRetention.model_fields)} - {"retention"}
    of_every_kind = {"name", "kind", "owners", "tags", "assets", "max_garbage_share"}  # in docs/configuration.md
    assert options("Configuration") == fields - of_every_kind


def test_docs_page_explains_every_reason() -> None:
    assert options("Reasons") == {"expired", "lifecycle", KIND.files.never_committed, "unreferenced"}


def test_docs_page_lists_permissions_of_all_api_calls(tmp_path: Path) -> None:
    with serve(RepositoryBuilder(tmp_path, NOW).repository) as (lake, server):
        lake.freeze(NOW)
    requested = {path for _, path, _ in server.requests if not path.endswith("/usage-report/summary")}  # optional
    needed = {next(name for end, name in PERMISSIONS.items() if re.search(end, path)) for path in requested}
    assert needed == set(PERMISSIONS.values())
    assert {name for name in needed if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize(
    "table", ["policy_table", "current_rules", "potential_commits", "lifecycle_objects", "lifecycle_paths", "uncommitted_objects"]
)
def test_docs_page_mentions_every_lakefs_table(table: str) -> None:
    assert f"`{table}`" in PAGE
