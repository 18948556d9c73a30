"""The shares of `DEPTH=fifth` together are the full suite, and the turns of `make test` are a usual run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import depth


def test_each_test_file_is_in_one_share() -> None:
    files = Counter(file for number in range(depth.SHARES) for file in depth.files_of_share(number))
    assert set(files.values()) == {1}
    assert {"stages/test_cluster.py", "job/test_submit.py", "stages/test_s3_protocol.py", "test_demo.py"} <= files.keys()


def test_five_consecutive_commits_run_each_test_file_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "DEPTH", "fifth")
    runs = list[bool]()
    for commits in range(1_000, 1_000 + depth.SHARES):
        monkeypatch.setattr(depth, "commit_count", lambda commits=commits: commits)
        runs.append(depth.in_full(depth.FOLDER / "test_demo.py"))
    assert sorted(runs) == [False] * (depth.SHARES - 1) + [True]


def test_each_slow_test_file_has_one_turn() -> None:
    files = Counter(file for number in range(depth.TURNS) for file in depth.files_of_turn(number))
    assert set(files.values()) == {1}
    assert "stages/delete/test_kill.py" in files


def test_nine_consecutive_commits_run_each_slow_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "DEPTH", "turns")
    runs = list[bool]()
    for commits in range(1_000, 1_000 + depth.TURNS):
        monkeypatch.setattr(depth, "commit_count", lambda commits=commits: commits)
        runs.append(depth.has_turn(depth.FOLDER / "stages/delete/test_kill.py"))
    assert sorted(runs) == [False] * (depth.TURNS - 1) + [True]


@pytest.mark.parametrize("value", ["", "usual", "fifth", "all"])
def test_other_depths_run_all_slow_tests(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "DEPTH", value)
    assert depth.has_turn(depth.FOLDER / "stages/delete/test_kill.py")


@pytest.mark.parametrize("value, expected", [("", False), ("all", True)])
def test_other_depths_treat_all_test_files_alike(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "DEPTH", value)
    assert depth.in_full(__file__) is expected
    assert depth.example_count(1, 2) == 1 + expected
    assert depth.select_cases([1], [2]) == [1, 2][: 1 + expected]
