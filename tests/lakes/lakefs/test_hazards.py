"""Where each hazard of lakeFS's own collector (H1 to H20, research on lakeFS, sections 9 and 12) is a test that the naive way fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE, STAGES, STORES = "tests/lakes/lakefs", "tests/stages", "tests/stores"
# The hazard in a few words, and the tests that stand for it.
HAZARDS: dict[str, tuple[str, list[str]]] = {
    "H1": ("no rules make an empty live set", [f"{HERE}/test_lake.py::test_without_rules_every_commit_is_kept"]),
    "H2": (
        "only the last page's location counts",
        [f"{HERE}/test_lake.py::test_every_location_of_the_servers_list_counts_though_the_last_page_has_none"],
    ),
    "H3": (
        "a branch deleted while paging takes the others' staging along",
        [f"{HERE}/test_lake.py::test_a_branch_deleted_while_it_is_paged_takes_only_its_own_staging_along"],
    ),
    "H4": (
        "an error in the middle of a list is taken for its end",
        [f"{HERE}/test_lake.py::test_an_error_in_the_middle_of_a_list_is_not_its_end"],
    ),
    "H5": ("identical bytes uploaded again look dead", [f"{HERE}/test_lake.py::test_identical_bytes_uploaded_again_are_live"]),
    "H6": (
        "what is committed meanwhile is in neither list",
        [f"{HERE}/test_lake.py::test_what_is_committed_while_we_read_is_in_one_of_the_two_readings"],
    ),
    "H7": (
        "an old mark is swept without another look",
        [f"{STAGES}/test_lakefs_protocol.py::test_a_plan_is_stopped_by_a_longer_rule_a_new_branch_or_a_commit_made_since"],
    ),
    "H8": (
        "whatever lies in the root goes",
        [f"{STAGES}/test_lakefs_protocol.py::test_objects_in_the_root_directly_under_data_and_of_uploads_in_progress"],
    ),
    "H9": (
        "failed deletions count as done",
        [
            f"{STORES}/test_execution.py::test_every_row_has_one_outcome",
            f"{STORES}/test_execution.py::test_books_that_do_not_balance_stop_with_their_figures",
            f"{STORES}/test_quarantine.py::test_one_bad_key_does_not_hold_up_the_others",
        ],
    ),
    "H10": (
        "the report is written after the deletion",
        [
            f"{STORES}/test_execution.py::test_the_intent_is_on_disk_before_the_first_action_and_the_outcome_after",
            f"{STAGES}/test_kill.py::test_an_apply_that_was_killed_is_completed_by_applying_again",
        ],
    ),
    "H11": (
        "a file directly under data/ is never freed",
        [f"{STAGES}/test_lakefs_protocol.py::test_objects_in_the_root_directly_under_data_and_of_uploads_in_progress"],
    ),
    "H12": (
        "nobody checks that heads and counts are whole",
        [
            f"{HERE}/test_lake.py::test_a_repository_that_never_stands_still_is_given_up_after_a_few_readings",
            f"{HERE}/test_lake.py::test_a_truncated_dump_stops_the_run",
            f"{HERE}/test_containers.py::test_a_range_with_fewer_objects_than_its_metarange_promises_is_refused",
            f"{HERE}/test_containers.py::test_a_range_under_another_ranges_name_is_refused",
        ],
    ),
    "H13": (
        "other lakes need the files too",
        [
            f"{STAGES}/test_lakefs_protocol.py::test_another_lake_on_the_storage_protects_what_the_repository_lets_go",
            f"{HERE}/test_containers.py::test_an_import_from_another_repository_under_another_mount_point_protects_its_file",
        ],
    ),
    "H14": (
        "active commits depend on the order of ids",
        [f"{HERE}/test_recordings.py::test_active_commits_are_those_of_the_rule_and_hold_all_that_the_server_answered"],
    ),
    "H15": (
        "an address can be linked at any age",
        [f"{STAGES}/test_lakefs_protocol.py::test_a_quarantined_file_that_is_linked_again_comes_back"],
    ),
    "H16": (
        "one file has two spellings",
        [
            f"{HERE}/test_containers.py::test_a_file_with_two_spellings_is_one_file",
            f"{HERE}/test_lake.py::test_linked_objects_with_full_addresses_are_live_though_the_listing_doubles_the_root",
        ],
    ),
    "H17": (
        "the listing doubles the store's root",
        [
            f"{HERE}/test_containers.py::test_a_full_address_with_the_root_written_twice_still_protects_the_file",
            f"{HERE}/test_lake.py::test_linked_objects_with_full_addresses_are_live_though_the_listing_doubles_the_root",
        ],
    ),
    "H18": (
        "paging stands still, or has empty pages",
        [
            f"{HERE}/test_lake.py::test_a_continuation_token_that_leads_back_stops_the_run",
            f"{HERE}/test_lake.py::test_every_location_of_the_servers_list_counts_though_the_last_page_has_none",
        ],
    ),
    "H19": (
        "rules of zero days are read back as none",
        [f"{HERE}/test_lake.py::test_rules_of_zero_days_without_branches_are_read_back_as_none_and_keep_everything"],
    ),
    "H20": (
        "two repositories on one namespace",
        [f"{HERE}/test_lake.py::test_a_second_repository_on_the_same_storage_stops_the_run"],
    ),
}


def test_every_hazard_is_listed() -> None:
    assert list(HAZARDS) == [f"H{number}" for number in range(1, 21)]


@pytest.mark.parametrize("test", sorted({test for _, tests in HAZARDS.values() for test in tests}))
def test_the_tests_of_the_hazards_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    module = ast.parse((Path(__file__).parents[3] / path).read_text())
    assert name in {item.name for item in ast.walk(module) if isinstance(item, ast.FunctionDef)}
