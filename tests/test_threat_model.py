"""Every promise of docs/threat-model.md has tests. A promise is named by the words in bold at the start of its line."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
TESTS = """
Files: test_code_cannot_read_or_change_files_outside_its_folder
Network: test_code_cannot_use_the_network
Processes: test_code_cannot_make_processes_or_threads
    test_code_cannot_reach_the_process_that_started_it
System calls: test_code_cannot_make_system_calls_that_computations_do_not_need
End: test_code_cannot_take_back_what_was_set_for_its_process
    test_the_code_ends_with_the_program_that_started_it
Limits: test_memory_files_and_open_files_are_limited
    test_removed_files_count_as_disk_as_long_as_they_are_open_or_mapped
    test_a_disk_is_not_filled_by_many_files
    test_code_cannot_keep_memory_outside_its_limits_nor_raise_them
Variables: test_code_sees_no_environment_variable_of_ours
Control tokens: test_any_foreign_text_comes_back_without_a_control_token
    test_a_result_that_spells_control_tokens_contains_none
    test_a_reply_is_a_chat_turn_and_a_new_thought_with_a_fresh_call_budget
Clients of `serve`: test_an_unknown_conversation_is_rendered_and_contains_no_control_token
    test_a_call_of_the_clients_tool_comes_back_and_its_result_is_continued_to_the_token
Converted logs: test_texts_of_a_log_never_become_control_tokens
Calls in results: test_forged_calls_and_results_within_a_result_are_quoted_and_start_no_call_even_in_the_whole_text
    test_a_call_is_two_lines_and_a_result_its_own_lines_without_empty_ones_in_which_forged_ones_are_quoted
Judges and critics: test_what_is_judged_stays_data
    test_control_tokens_in_what_the_policy_wrote_are_taken_apart
Reports: test_foreign_text_stays_text
    test_texts_of_others_reach_the_terminal_without_control_characters
    test_every_command_prints_with_tell
Arguments: test_patterns_are_left_to_the_tool_and_all_other_rules_hold
    test_definitions_that_refer_to_each_other_do_not_multiply_a_prompt
`serve`: test_a_conversation_without_end_is_refused_before_it_is_encoded
    test_deep_arguments_and_large_schemas_are_refused
    test_a_value_that_means_nothing_is_named
Agents: test_too_many_answers_in_progress_are_refused_for_now
    test_a_session_that_has_had_enough_refuses_without_a_retry
    test_a_closed_session_refuses_without_a_retry
Nonsense of an MCP server: test_nonsense_and_questions_of_a_server_do_not_stop_its_calls
    test_a_server_that_cannot_be_used_is_one_short_sentence
Life of an MCP server: test_a_server_that_ends_is_started_again
    test_closing_ends_calls_that_wait_for_a_server_and_a_server_that_hangs
    test_a_server_at_a_url_that_closes_a_connection_is_connected_again
Memory service of others: test_what_is_no_result_is_refused
    test_a_service_that_does_not_end_or_fails_is_given_up
    test_a_result_is_one_line_without_control_characters
    test_a_token_does_not_follow_a_redirection
    test_a_tls_handshake_that_never_ends_is_given_up
Tables of others: test_a_table_of_others_with_odd_columns_is_one_sentence_with_its_path
Odd files: test_a_reader_says_which_file_is_none
    test_a_pipe_in_a_models_folder_is_named_and_not_waited_for
`calculate`: test_any_text_at_all_has_a_finite_value_or_a_calculation_error
Settings files: test_a_settings_file_stays_small
JSON and Parquet: test_json_that_python_cannot_hold_is_an_error_of_ours
    test_a_parquet_file_that_repeats_a_long_value_is_read_in_small_batches
Our memory service: test_a_body_that_drips_is_given_up
    test_heads_that_are_too_large_or_none_are_refused
    test_a_crowd_that_is_too_large_is_told_to_come_again
Keys: test_a_key_does_not_go_unencrypted_to_another_machine
    test_everything_that_sends_a_key_keeps_to_this
A judge's key: test_the_key_travels_in_the_header_and_stands_nowhere_else
Access to the memory: test_beyond_loopback_nothing_is_served_without_a_token
    test_the_host_of_a_request_must_be_this_machine
    test_a_page_is_of_the_same_origin_by_name_and_port
Access to `serve`: test_access_is_that_of_the_memorys_service
Gateway: test_the_gateway_listens_on_loopback_only
    test_keys_are_random_and_not_shown
    test_keys_of_others_are_unknown
    test_the_key_of_another_session_neither_continues_nor_repeats_its_answers
Rewards of a session: test_a_reward_with_the_model_key_is_refused
    test_a_reward_that_is_no_finite_number_is_refused
    test_rewards_of_the_session_and_of_one_answer
    test_a_closed_session_refuses_without_a_retry
Run folders: test_a_run_folder_starts_no_code_by_itself
Settings of a run: test_programs_and_keys_in_the_settings_of_a_run_are_named_before_anything_starts
    test_what_the_command_repeats_is_permitted
Servers of a run: test_a_vllm_that_we_start_listens_on_a_socket_in_a_private_folder_while_somebody_holds_it
    test_an_sglang_that_we_start_answers_only_requests_with_its_random_key
    test_a_server_that_prints_its_key_and_ends_does_not_show_it_in_the_error
`engine serve`: test_engine_serve_protects_a_server_by_a_socket_or_a_key
    test_a_socket_where_others_could_reach_it_is_refused
Loopback: test_who_takes_weights_listens_on_this_machine_only
    test_flags_cannot_change_the_address_the_key_or_whose_code_runs
Our variables: test_the_server_sees_none_of_our_variables_but_those_it_was_given
    test_the_workers_see_no_key_of_this_process
Keys of an MCP server: test_a_key_that_a_server_prints_and_escapes_are_not_in_the_error
    test_a_result_that_makes_no_sense_is_an_error_that_the_model_reads_without_our_key
Hashes: test_every_requirement_is_locked_in_a_version_that_fits_it
    test_locked_versions_are_those_of_the_constraints
Model folders: test_code_in_a_models_folder_is_never_run
    test_nothing_but_safetensors_and_json_is_written
"""
"""Promise: its tests, a line each."""


def test_every_promise_of_the_page_has_tests_and_they_exist() -> None:
    promises = PAGE.partition("## Promises")[2].partition("## Not promised")[0]
    named = re.findall(r"^(\S.*): test_", TESTS, flags=re.MULTILINE)
    assert re.findall(r"^- \*\*(.+?)\*\*: ", promises, flags=re.MULTILINE) == named
    files = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in files for name in re.findall(r"^(?:async )?def (test_\w+)", text, flags=re.MULTILINE)}
    assert {*re.findall(r"\btest_\w+$", TESTS, flags=re.MULTILINE)} - there == set()
