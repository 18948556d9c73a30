"""The hazards H1 to H20 of lakeFS's own garbage collector, and the tests that cover them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

LAKE, CONTAINERS, RECORDINGS = (f"tests/lakes/lakefs/test_{name}.py" for name in ("lake", "containers", "recordings"))
STAGES, STORES = "tests/stages", "tests/stores"
# Each hazard, naive implementations with it, and the tests that failed when the collector was changed to that implementation.
HAZARDS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "H1": (
        "no rules make an empty live set",
        {"missing rules keep no commit": [f"{LAKE}::test_missing_retention_rules_keep_every_commit"]},
    ),
    "H2": (
        "only the last page's location counts",
        {"the last page's location is read alone": [f"{LAKE}::test_all_pages_of_uncommitted_list_are_read"]},
    ),
    "H3": (
        "a branch deleted while paging discards the staging of others",
        {
            "a read during a branch deletion has no staged objects": [
                f"{LAKE}::test_branch_deleted_during_listing_affects_no_other_staged_object"
            ]
        },
    ),
    "H4": (
        "an error inside a list is treated as its end",
        {
            "a failed page after the first ends the list": [f"{LAKE}::test_error_on_later_page_of_list_stops_run"],
            "a commit whose parent the server lost is a first commit": [f"{LAKE}::test_truncated_refs_dump_stops_run"],
        },
    ),
    "H5": (
        "a second upload of identical content looks unused",
        {
            "an object with the content of the committed one is not staged": [f"{LAKE}::test_second_upload_of_identical_content_is_live"],
            "only objects of the server's list are staged": [f"{LAKE}::test_second_upload_of_identical_content_is_live"],
        },
    ),
    "H6": (
        "an object committed in the meantime is in neither list",
        {
            "staging is read only before the commits": [f"{LAKE}::test_objects_committed_during_freeze_are_live"],
            "staging is read only after the commits": [f"{LAKE}::test_objects_committed_after_the_dump_are_live"],
            "a plan is executed without revalidation": [
                f"{STAGES}/test_lakefs_protocol.py::test_apply_refuses_plan_if_new_commits_reference_planned_files"
            ],
        },
    ),
    "H7": (
        "an old mark is swept without revalidation",
        {
            "a plan is executed without revalidation": [
                f"{STAGES}/test_lakefs_protocol.py::test_apply_refuses_plan_if_new_commits_reference_planned_files"
            ]
        },
    ),
    "H8": (
        "all objects in the root are deleted",
        {
            "the whole namespace is claimed": [
                f"{RECORDINGS}::test_refs_and_commits_match_recording",
                f"{STAGES}/test_lakefs_protocol.py::test_objects_in_namespace_root_are_unowned",
            ]
        },
    ),
    "H9": (
        "failed deletions count as done",
        {
            "planned actions count as done": [f"{STORES}/test_execution.py::test_every_row_has_one_outcome"],
            "an error of the disk counts as done": [
                f"{STORES}/local/test_quarantine.py::test_full_disk_fails_and_keeps_the_source",
                f"{STORES}/local/test_quarantine.py::test_missing_permission_is_denied",
            ],
            "a refused key counts as done, or ends the batch": [
                f"{STORES}/local/test_quarantine.py::test_one_failed_key_does_not_stop_the_others"
            ],
            "failed actions are not repeated": [f"{STORES}/test_execution.py::test_failed_row_is_retried"],
            "inconsistent counts are published": [f"{STORES}/test_execution.py::test_outcome_counts_that_differ_from_the_plan_raise"],
            "a partially failed plan is finished": [
                f"{STAGES}/delete/test_failed_expiry.py::test_files_of_failed_history_edit_stay_until_edit_succeeds"
            ],
        },
    ),
    "H10": (
        "the report is written after the deletion",
        {
            "intents are written together with the outcomes": [
                f"{STORES}/test_execution.py::test_intent_precedes_the_action_and_outcome_follows",
                f"{STORES}/test_kill.py::test_next_run_completes_a_run_killed_at_any_step",
                f"{STAGES}/delete/test_kill.py::test_killed_apply_is_completed_by_next_apply",
            ],
            "nothing is written before the end": [f"{STAGES}/delete/test_kill.py::test_killed_apply_is_completed_by_next_apply"],
        },
    ),
    "H11": (
        "a file directly under data/ is never freed",
        {
            "only files in the partitions of data/ are candidates": [
                f"{STAGES}/test_lakefs_protocol.py::test_objects_in_data_with_paths_unlike_lakefs_are_foreign"
            ]
        },
    ),
    "H12": (  # a schema inferred from CSV files cannot occur, because the tables of the dump are typed
        "heads and counts are not verified",
        {
            "heads are not looked up among the commits": [
                f"{LAKE}::test_freeze_refuses_continuously_changing_repository",
                f"{LAKE}::test_freeze_is_repeated_if_dump_lacks_branch_head",
            ],
            "parents are not looked up among the commits": [f"{LAKE}::test_truncated_refs_dump_stops_run"],
            "commits are not counted": [f"{LAKE}::test_refs_dump_with_missing_commits_stops_run"],
            "objects are not counted": [f"{CONTAINERS}::test_range_with_missing_objects_is_refused"],
            "the content of a range is not compared with its id": [f"{CONTAINERS}::test_range_with_another_id_is_refused"],
        },
    ),
    "H13": (
        "other lakes need the files",
        {
            "a storage's live set is one lake's": [
                f"{STAGES}/test_lakefs_protocol.py::test_expired_objects_are_kept_if_another_lake_needs_them"
            ],
            "a path of the server's disk is resolved only in the namespace": [
                f"{CONTAINERS}::test_object_imported_from_another_repository_is_protected"
            ],
        },
    ),
    "H14": (
        "active commits depend on the order of ids",
        {"a walk ends before a commit that another walk reached": [f"{RECORDINGS}::test_retained_commits_include_those_kept_by_server"]},
    ),
    "H15": (
        "an address can be linked at any age",
        {"quarantined files are never live again": [f"{STAGES}/test_lakefs_protocol.py::test_linked_quarantined_file_is_restored"]},
    ),
    "H16": (
        "one file has two spellings",
        {
            "a full address is a separate file": [
                f"{CONTAINERS}::test_address_with_another_spelling_resolves_to_the_same_file",
                f"{LAKE}::test_linked_objects_whose_address_repeats_root_are_live",
            ]
        },
    ),
    "H17": (
        "the listing doubles the store's root",
        {
            "the store's root is removed only once": [
                f"{CONTAINERS}::test_file_is_protected_if_its_address_repeats_root",
                f"{LAKE}::test_linked_objects_whose_address_repeats_root_are_live",
            ]
        },
    ),
    "H18": (
        "paging does not advance, or has empty pages",
        {
            "a repeated token ends the list": [f"{LAKE}::test_repeated_continuation_token_stops_the_run"],
            "a page without a location ends the list": [f"{LAKE}::test_all_pages_of_uncommitted_list_are_read"],
        },
    ),
    "H19": (
        "rules of zero days are read as missing, and invalid rules are accepted",
        {
            "missing rules are rules of zero days": [f"{LAKE}::test_retention_rules_of_zero_days_keep_every_commit"],
            "negative days are valid": [f"{LAKE}::test_invalid_retention_rules_stop_run"],
            "the first of two rules for a branch applies": [f"{LAKE}::test_last_of_two_rules_for_branch_applies"],
        },
    ),
    "H20": (
        "two repositories on one namespace",
        {
            "namespaces are not compared, or only for equality, or not normalized": [
                f"{LAKE}::test_repository_with_overlapping_namespace_stops_run"
            ]
        },
    ),
}


def test_every_hazard_is_listed() -> None:
    assert list(HAZARDS) == [f"H{number}" for number in range(1, 21)]


@pytest.mark.parametrize("test", sorted({test for _, naive in HAZARDS.values() for tests in naive.values() for test in tests}))
def test_listed_hazard_tests_exist(test: str) -> None:
    path, _, name = test.partition("::")
    module = ast.parse((Path(__file__).parents[3] / path).read_text())
    assert name in {item.name for item in ast.walk(module) if isinstance(item, ast.FunctionDef)}
