"""Where each hazard of lakeFS's own collector (H1 to H20, research on lakeFS, sections 9 and 12) is a test that the naive way fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

LAKE, CONTAINERS, RECORDINGS = (f"tests/lakes/lakefs/test_{name}.py" for name in ("lake", "containers", "recordings"))
STAGES, STORES = "tests/stages", "tests/stores"
# The hazard in a few words; then naive ways to collect, and under each the tests that were seen to fail when the collector was made so.
HAZARDS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "H1": (
        "no rules make an empty live set",
        {"missing rules keep no commit": [f"{LAKE}::test_missing_rules_keep_every_commit"]},
    ),
    "H2": (
        "only the last page's location counts",
        {
            "the last page's location is read alone": [
                f"{LAKE}::test_all_locations_of_the_server_list_are_read"
            ]
        },
    ),
    "H3": (
        "a branch deleted while paging takes the others' staging along",
        {
            "a reading in which a branch goes has nothing staged": [
                f"{LAKE}::test_branch_deleted_during_listing_loses_only_its_staging"
            ]
        },
    ),
    "H4": (
        "an error in the middle of a list is taken for its end",
        {
            "a page that fails behind the first ends the list": [f"{LAKE}::test_error_inside_a_list_stops_the_run"],
            "a commit whose parent the server lost is a first commit": [f"{LAKE}::test_truncated_dump_stops_the_run"],
        },
    ),
    "H5": (
        "identical bytes uploaded again look dead",
        {
            "an object like the committed one is not staged, whatever its address": [
                f"{LAKE}::test_second_upload_of_identical_content_is_live"
            ],
            "only what the server's list names is staged": [f"{LAKE}::test_second_upload_of_identical_content_is_live"],
        },
    ),
    "H6": (
        "what is committed meanwhile is in neither list",
        {
            "staging is read before the commits alone": [f"{LAKE}::test_objects_committed_during_freeze_are_live"],
            "staging is read behind the commits alone": [
                f"{LAKE}::test_objects_committed_after_the_dump_are_live"
            ],
            "a plan is carried out as it was made": [
                f"{STAGES}/test_lakefs_protocol.py::test_apply_refuses_plan_after_newer_references"
            ],
        },
    ),
    "H7": (
        "an old mark is swept without another look",
        {
            "a plan is carried out as it was made": [
                f"{STAGES}/test_lakefs_protocol.py::test_apply_refuses_plan_after_newer_references"
            ]
        },
    ),
    "H8": (
        "whatever lies in the root goes",
        {
            "the whole namespace is claimed": [
                f"{RECORDINGS}::test_refs_and_commits_equal_the_recording",
                f"{STAGES}/test_lakefs_protocol.py::test_objects_in_root_are_unowned_and_in_data_claimed",
            ]
        },
    ),
    "H9": (
        "failed deletions count as done",
        {
            "what was planned counts as done": [f"{STORES}/test_execution.py::test_every_row_has_one_outcome"],
            "an error of the disk counts as done": [
                f"{STORES}/local/test_quarantine.py::test_a_full_disk_fails_and_leaves_the_source",
                f"{STORES}/local/test_quarantine.py::test_a_permission_that_is_missing_is_denied",
            ],
            "a refused key counts as done, or ends the batch": [
                f"{STORES}/local/test_quarantine.py::test_one_bad_key_does_not_hold_up_the_others"
            ],
            "what failed is not tried again": [f"{STORES}/test_execution.py::test_what_failed_is_tried_again"],
            "figures that do not add up are published": [
                f"{STORES}/test_execution.py::test_books_that_do_not_balance_stop_with_their_figures"
            ],
            "a plan of which a part failed is finished": [
                f"{STAGES}/delete/test_failed_expiry.py::test_files_of_a_failed_edit_stay_until_another_apply"
            ],
        },
    ),
    "H10": (
        "the report is written after the deletion",
        {
            "intents are written together with the outcomes": [
                f"{STORES}/test_execution.py::test_the_intent_is_on_disk_before_the_first_action_and_the_outcome_after",
                f"{STORES}/test_kill.py::test_a_run_killed_before_any_step_is_ended_by_the_next",
                f"{STAGES}/delete/test_kill.py::test_killed_apply_is_completed_by_another_apply",
            ],
            "nothing is written before the end": [
                f"{STAGES}/delete/test_kill.py::test_killed_apply_is_completed_by_another_apply"
            ],
        },
    ),
    "H11": (
        "a file directly under data/ is never freed",
        {
            "only files in the partitions of data/ are candidates": [
                f"{STAGES}/test_lakefs_protocol.py::test_objects_in_root_are_unowned_and_in_data_claimed"
            ]
        },
    ),
    "H12": (  # the schema that is guessed from CSV files cannot reach us: refs and commits come typed, out of the dump's tables
        "nobody checks that heads and counts are whole",
        {
            "heads are not looked up among the commits": [
                f"{LAKE}::test_freeze_refuses_continuously_changing_repository",
                f"{LAKE}::test_freeze_repeats_if_the_dump_lacks_a_head",
            ],
            "parents are not looked up among the commits": [f"{LAKE}::test_truncated_dump_stops_the_run"],
            "commits are not counted": [f"{LAKE}::test_dump_with_missing_commits_stops_the_run"],
            "objects are not counted": [f"{CONTAINERS}::test_range_with_missing_objects_is_refused"],
            "a range's content is not held against its name": [f"{CONTAINERS}::test_range_with_another_id_is_refused"],
        },
    ),
    "H13": (
        "other lakes need the files too",
        {
            "a storage's live set is one lake's": [
                f"{STAGES}/test_lakefs_protocol.py::test_another_lake_protects_expired_objects"
            ],
            "a path of the server's disk is looked for in the namespace alone": [
                f"{CONTAINERS}::test_import_from_another_repository_protects_its_file"
            ],
        },
    ),
    "H14": (
        "active commits depend on the order of ids",
        {
            "a walk ends at a commit that another one reached, before it marks it": [
                f"{RECORDINGS}::test_active_commits_include_those_of_the_server"
            ]
        },
    ),
    "H15": (
        "an address can be linked at any age",
        {
            "what is quarantined is dead for good": [
                f"{STAGES}/test_lakefs_protocol.py::test_linked_quarantined_file_is_restored"
            ]
        },
    ),
    "H16": (
        "one file has two spellings",
        {
            "a full address is a file of its own": [
                f"{CONTAINERS}::test_file_with_two_spellings_is_one_file",
                f"{LAKE}::test_linked_objects_with_doubled_root_are_live",
            ]
        },
    ),
    "H17": (
        "the listing doubles the store's root",
        {
            "the store's root is taken off once": [
                f"{CONTAINERS}::test_full_address_with_doubled_root_protects_the_file",
                f"{LAKE}::test_linked_objects_with_doubled_root_are_live",
            ]
        },
    ),
    "H18": (
        "paging stands still, or has empty pages",
        {
            "a token that came before ends the list": [f"{LAKE}::test_repeated_continuation_token_stops_the_run"],
            "a page without a location ends the list": [
                f"{LAKE}::test_all_locations_of_the_server_list_are_read"
            ],
        },
    ),
    "H19": (
        "rules of zero days are read back as none, and odd ones are accepted",
        {
            "no rules are rules of zero days": [
                f"{LAKE}::test_rules_of_zero_days_keep_every_commit"
            ],
            "negative days are days": [f"{LAKE}::test_invalid_rules_stop_the_run"],
            "of two rules for a branch the first counts": [
                f"{LAKE}::test_last_rule_of_a_branch_applies"
            ],
        },
    ),
    "H20": (
        "two repositories on one namespace",
        {
            "namespaces are not compared, or for equality, or as they were typed": [
                f"{LAKE}::test_overlapping_repository_stops_the_run"
            ]
        },
    ),
}


def test_every_hazard_is_listed() -> None:
    assert list(HAZARDS) == [f"H{number}" for number in range(1, 21)]


@pytest.mark.parametrize("test", sorted({test for _, naive in HAZARDS.values() for tests in naive.values() for test in tests}))
def test_tests_of_the_hazards_exist(test: str) -> None:
    path, _, name = test.partition("::")
    module = ast.parse((Path(__file__).parents[3] / path).read_text())
    assert name in {item.name for item in ast.walk(module) if isinstance(item, ast.FunctionDef)}
