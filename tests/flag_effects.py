"""Which test sees the effect of which flag: `file::test` for every flag that has one."""

from __future__ import annotations

_HERE = "tests/test_flag_effects.py::"
_WALK = "tests/test_flags.py::"
_CLI = "tests/unit/config/test_cli.py::"
_RESOLVE = "tests/unit/config/test_resolve.py::"
_REPLIES = "tests/server/test_replies.py::"
_FRONT = "tests/server/test_front_end.py::"
_AUTH = "tests/server/test_auth.py::"
_HEALTH = "tests/server/test_health.py::"
_TLS = "tests/server/test_tls.py::"
_LIFE = "tests/server/test_lifecycle.py::"
_SCHEDULER = "tests/unit/core/test_scheduler.py::"
_PLAN = "tests/unit/core/test_kv_plan.py::"
_NEWER = "tests/test_newer_flag_effects.py::"
_GRAPHS = "tests/unit/config/test_graphs.py::"
_DRAFTS = "tests/models/test_drafts.py::"
_LIMITS = "tests/unit/core/test_scheduler_options.py::"
_ADMISSION = "tests/unit/engine/test_async_llm.py::test_admission_is_bounded"
_FIELDS = "tests/server/test_fields.py::"
_RANKS = "tests/unit/executor/test_multiproc.py::"
_FORMATS = "tests/models/test_load_formats.py::"
_CHAT = "tests/unit/cli/test_chat.py::"
_BATCH = "tests/unit/cli/test_run_batch.py::"

_LOGGED = _HERE + "test_requests_and_texts_are_logged_as_far_as_asked"
_CORS = _HERE + "test_browsers_may_send_what_is_allowed"
_FETCHED = _HERE + "test_models_are_fetched_as_said"
_PLUGIN = _HERE + "test_a_plugin_brings_parsers"
_REASONING = _HERE + "test_reasoning_is_told_from_the_answer_by_the_parser_named"
_CALLS = _HERE + "test_calls_are_read_by_the_parser_where_the_model_may_choose"
_CLIENT_CERTIFICATES = _HERE + "test_client_certificates_are_asked_for_as_said"
_OWN_TEMPLATE = _REPLIES + "test_the_server_can_have_a_template_and_a_role_of_its_own"
_SAMPLING_DEFAULTS = _RESOLVE + "test_sampling_defaults_follow_the_generation_config"
_USERS_NUMBERS = _PLAN + "test_the_users_numbers_go_before_the_machines"
_PARTIAL_PREFILLS = (
    _SCHEDULER + "test_partial_prefills_are_counted_and_short_prompts_pass_long_ones"
)
_CERTIFICATE = _TLS + "test_a_certificate_and_its_key_are_taken"
_SOME_WORK = _WALK + "test_a_partial_option_takes_what_works_and_refuses_the_rest"
_BATCH_OPTIONS = _BATCH + "test_options_reach_their_configs"

EFFECTS = {
    "--help": _CLI + "test_summary",
    "--version": "tests/unit/cli/test_main.py::test_version_is_the_project_s",
    "--config": _CLI + "test_every_kind_of_value",
    # options
    "--disable-log-stats": "tests/unit/metrics/test_prometheus.py::test_statistics_can_be_off",
    "--enable-log-requests": _LOGGED,
    "--api-server-count": "tests/e2e/test_api_server_count.py::"
    "test_all_answer_alike_and_metrics_count_all",
    # Frontend
    "--host": _LIFE + "test_a_server_listens_on_the_host_and_port_said",
    "--port": _LIFE + "test_a_server_listens_on_the_host_and_port_said",
    "--uds": _LIFE + "test_a_unix_socket_goes_with_its_server",
    "--uvicorn-log-level": _HERE + "test_the_http_servers_log_has_a_level_of_its_own",
    "--disable-uvicorn-access-log": _FRONT + "test_no_access_lines_where_they_are_off",
    "--allow-credentials": _CORS,
    "--convert": "tests/unit/config/test_pooler.py::test_a_model_is_run_for_what_it_is_made_for",
    "--allowed-origins": _HEALTH + "test_preflights_follow_the_allowed_origins",
    "--allowed-methods": _CORS,
    "--allowed-headers": _CORS,
    "--api-key": _AUTH + "test_any_of_the_keys_opens",
    "--chat-template": _OWN_TEMPLATE,
    "--chat-template-content-format": _HERE
    + "test_content_reaches_the_template_in_the_form_asked_for",
    "--trust-request-chat-template": _REPLIES + "test_a_trusted_request_brings_its_own_template",
    "--response-role": _OWN_TEMPLATE,
    "--ssl-keyfile": _CERTIFICATE,
    "--ssl-certfile": _CERTIFICATE,
    "--ssl-ca-certs": _CLIENT_CERTIFICATES,
    "--ssl-cert-reqs": _CLIENT_CERTIFICATES,
    "--enable-ssl-refresh": _TLS + "test_renewed_files_are_used_once_they_fit",
    "--root-path": _AUTH + "test_a_root_path_is_guarded_with_and_without_its_prefix",
    "--log-error-stack": _HERE + "test_stacks_of_refusals_are_logged_where_asked",
    "--middleware": _FRONT + "test_middleware_wraps_every_route_in_the_order_given",
    "--return-tokens-as-token-ids": _REPLIES + "test_tokens_can_be_shown_as_ids",
    "--disable-frontend-multiprocessing": _HERE
    + "test_the_engine_runs_in_the_servers_process_where_asked",
    "--enable-request-id-headers": _REPLIES
    + "test_request_id_headers_come_with_every_response_where_enabled",
    "--enable-auto-tool-choice": _CALLS,
    "--tool-call-parser": _CALLS,
    "--tool-parser-plugin": _PLUGIN,
    "--exclude-tools-when-tool-choice-none": _HERE
    + "test_tools_that_may_not_be_called_are_left_out_where_asked",
    "--log-config-file": _HERE + "test_a_logging_configuration_counts_from_the_start",
    "--max-log-len": _LOGGED,
    "--disable-fastapi-docs": _FRONT + "test_documents_are_served_unless_they_are_off",
    "--enable-prompt-tokens-details": _REPLIES + "test_cached_tokens_are_reported_where_enabled",
    "--enable-tokenizer-info-endpoint": "tests/server/test_batch_and_invocations.py::"
    "test_the_tokenizer_is_described_where_that_is_asked_for",
    "--enable-server-load-tracking": _HEALTH + "test_load_counts_running_requests_where_tracked",
    "--enable-force-include-usage": "tests/server/test_streams.py::"
    "test_the_server_can_force_usage_into_every_stream",
    "--enable-log-outputs": _LOGGED,
    "--h11-max-incomplete-event-size": _FRONT
    + "test_a_head_larger_than_allowed_is_refused_before_it_ends",
    "--h11-max-header-count": _FRONT + "test_a_request_with_more_headers_than_allowed_is_refused",
    # ObservabilityConfig
    "--otlp-traces-endpoint": "tests/unit/metrics/test_tracing.py::test_spans_reach_a_collector",
    # ModelConfig
    "--model": _FETCHED,
    "--io-processor-plugin": "tests/server/test_io_processor.py::"
    "test_a_plugin_makes_prompts_and_the_reply",
    "--tokenizer": "tests/unit/tokenizer/test_hf_tokenizer.py::"
    "test_the_tokenizer_option_overrules_the_model",
    "--tokenizer-mode": "tests/unit/tokenizer/test_mistral.py::"
    "test_the_mode_chooses_and_auto_takes_what_is_there",
    "--trust-remote-code": _HERE + "test_code_of_a_tokenizer_runs_only_where_trusted",
    "--dtype": _RESOLVE + "test_dtype",
    "--seed": "tests/unit/sample/test_sampler.py::"
    "test_requests_without_a_seed_differ_but_the_engines_seed_repeats_them",
    "--config-format": "tests/models/test_mistral_layout.py::"
    "test_where_both_layouts_lie_together_the_options_choose",
    "--quantization": "tests/models/test_in_flight.py::"
    "test_a_model_computes_as_if_its_checkpoint_held_the_values",
    "--hf-config-path": _HERE + "test_a_configuration_may_lie_elsewhere",
    "--revision": _FETCHED,
    "--tokenizer-revision": _FETCHED,
    "--max-model-len": _HERE + "test_a_context_is_as_long_as_said",
    "--enforce-eager": _HERE + "test_steps_run_layer_by_layer_where_asked",
    "--max-logprobs": _HERE + "test_logprobs_are_limited_as_said",
    "--logprobs-mode": "tests/unit/sample/test_logprobs.py::"
    "test_processed_modes_report_the_sampled_logits",
    "--disable-sliding-window": "tests/models/test_families.py::"
    "test_a_sliding_window_can_be_switched_off",
    "--enable-sleep-mode": "tests/models/test_sleep.py::test_an_engine_wakes_to_the_same_tokens",
    "--skip-tokenizer-init": _HERE + "test_without_a_tokenizer_ids_are_all_there_is",
    "--served-model-name": _HERE + "test_names_of_the_model_are_those_that_are_served",
    "--hf-token": _FETCHED,
    "--hf-overrides": "tests/unit/config/test_checkpoint.py::"
    "test_an_old_override_beats_the_new_spelling",
    "--generation-config": _SAMPLING_DEFAULTS,
    "--override-generation-config": _SAMPLING_DEFAULTS,
    # LoadConfig
    "--quantization-config": "tests/models/test_in_flight.py::"
    "test_settings_say_which_layers_are_rounded_and_how",
    "--load-format": _FORMATS + "test_pickled_weights_are_read_with_a_warning",
    "--pt-load-map-location": _FORMATS + "test_a_device_that_is_not_there_is_named",
    "--safetensors-load-strategy": _FORMATS + "test_threads_prefetch_in_blocks",
    "--safetensors-prefetch-num-threads": _FORMATS + "test_threads_prefetch_in_blocks",
    "--safetensors-prefetch-block-size": _FORMATS + "test_threads_prefetch_in_blocks",
    "--model-loader-extra-config": _FORMATS + "test_threads_that_load_are_as_many_as_said",
    "--download-dir": _FETCHED,
    "--ignore-patterns": _FETCHED,
    "--use-tqdm-on-load": _HERE + "test_the_bar_of_a_load_can_be_off",
    # AttentionConfig, StructuredOutputsConfig
    "--attention-backend": _GRAPHS + "test_a_backend_chooses_kernels_and_whether_there_are_graphs",
    "--reasoning-parser": _REASONING,
    "--reasoning-parser-plugin": _REASONING,
    "--structured-outputs-config": _HERE + "test_the_engines_word_on_json_is_in_every_constraint",
    # SpeculativeConfig
    "--speculative-config": _DRAFTS + "test_drafts_change_no_output",
    "--spec-method": _DRAFTS + "test_drafts_are_refused_where_impossible",
    "--spec-model": "tests/models/test_draft_models.py::test_flags_name_a_draft_model",
    "--spec-tokens": _DRAFTS + "test_drafts_may_be_asked_for_by_flags_of_their_own",
    # CompilationConfig
    "--cudagraph-capture-sizes": _GRAPHS + "test_sizes_are_those_given",
    "--max-cudagraph-capture-size": _GRAPHS + "test_sizes_are_those_given",
    "--compilation-config": _GRAPHS + "test_what_is_captured_follows_the_mode_before_the_level",
    "--optimization-level": _GRAPHS + "test_levels_capture_or_not",
    # CacheConfig
    "--block-size": _LIMITS + "test_a_prompt_is_cached_in_whole_blocks_or_not_at_all",
    "--gpu-memory-utilization": "tests/unit/executor/test_uniproc.py::"
    "test_memory_is_the_users_number_or_a_share_of_free_memory",
    "--kv-cache-memory-bytes": _USERS_NUMBERS,
    "--num-gpu-blocks-override": _USERS_NUMBERS,
    "--enable-prefix-caching": _LIMITS + "test_a_prompt_is_cached_in_whole_blocks_or_not_at_all",
    "--kv-events-config": "tests/unit/engine/test_event_publisher.py::"
    "test_an_engine_core_tells_what_it_caches",
    "--kv-cache-dtype": "tests/e2e/test_tokens.py::"
    "test_scheduling_never_changes_tokens_of_a_small_cache",
    # SchedulerConfig
    "--max-num-batched-tokens": _RESOLVE + "test_step_sizes_follow_what_is_set",
    "--mamba-block-size": "tests/unit/core/test_state_pool.py::"
    "test_a_prompt_s_states_are_kept_as_often_as_asked",
    "--max-num-seqs": _RESOLVE + "test_step_sizes_follow_what_is_set",
    "--max-num-partial-prefills": _PARTIAL_PREFILLS,
    "--max-long-partial-prefills": _PARTIAL_PREFILLS,
    "--long-prefill-token-threshold": _SCHEDULER + "test_long_prompts_are_cut_at_the_threshold",
    "--scheduling-policy": _SCHEDULER + "test_priority_admits_and_preempts_by_priority",
    "--enable-chunked-prefill": _SCHEDULER
    + "test_without_chunking_a_prompt_waits_until_it_fits_whole",
    "--tensor-parallel-size": _RANKS + "test_ranks_give_the_tokens_of_one_process",
    "--max-parallel-loading-workers": "tests/models/test_tensor_parallel.py::"
    "test_ranks_load_a_few_at_a_time",
    "--distributed-executor-backend": _RANKS + "test_a_backend_of_processes_can_have_one_rank",
    "--async-scheduling": "tests/unit/engine/test_core.py::"
    "test_async_scheduling_plans_a_step_while_another_runs",
    "--stream-interval": "tests/unit/engine/test_outputs.py::"
    "test_stream_interval_gathers_tokens_but_not_the_first",
    # What 0.32 added
    "--log-level": _NEWER + "test_the_log_is_as_fine_as_said",
    "--logging-config": _NEWER + "test_the_log_can_be_objects_or_the_applications",
    "--enable-log-deltas": _NEWER
    + "test_parts_of_a_streamed_text_are_logged_unless_they_are_not_wanted",
    "--tool-strict-level": _NEWER + "test_a_call_that_the_model_chooses_is_enforced_as_far_as_said",
    "--anthropic-disabled-thinking-effort": _NEWER
    + "test_thinking_that_is_off_is_told_with_the_effort_said",
    "--custom-histogram-buckets": _NEWER + "test_a_family_of_histograms_has_the_bounds_said",
    "--enable-logging-iteration-details": _NEWER + "test_every_step_is_told_where_asked",
    "--performance-mode": _NEWER + "test_a_mode_chooses_the_sizes_of_a_step_that_are_not_given",
    "--fail-on-environ-validation": _NEWER
    + "test_variables_without_effect_are_refused_where_asked",
    "--reasoning-config": "tests/models/test_constrained.py::"
    "test_a_spent_budget_forces_the_text_said",
    "--max-num-scheduled-tokens": _LIMITS + "test_step_schedules_fewer_tokens_than_it_can_hold",
    "--max-num-active-seqs": _LIMITS + "test_fewer_may_run_than_a_step_can_hold",
    "--long-prefill-token-threshold-adaptive": _LIMITS
    + "test_long_prompt_limit_grows_when_few_share_a_step",
    "--scheduler-reserve-full-isl": _LIMITS + "test_a_prompt_may_begin_before_all_of_it_fits",
    "--watermark": _LIMITS + "test_blocks_below_the_watermark_are_kept_while_others_run",
    "--max-num-queued-reqs": _ADMISSION,
    "--max-num-queued-tokens": _ADMISSION,
    "--default-chat-template-kwargs": "tests/server/test_tools.py::"
    "test_the_effort_and_the_servers_variables_reach_the_template",
    "--enable-per-request-metrics": _FIELDS + "test_request_reports_its_timings_where_enabled",
    "--per-request-spec-decode-metrics": _DRAFTS + "test_choices_count_their_drafts",
    "--sse-keep-alive-interval": "tests/server/test_streams.py::"
    "test_a_stream_with_comments_ends_with_its_reader",
    "--fingerprint-mode": _FIELDS + "test_fingerprint_follows_the_server_option",
    "--fingerprint-value": _FIELDS + "test_fingerprint_follows_the_server_option",
    "--disable-access-log-for-endpoints": _FRONT
    + "test_access_lines_have_the_known_form_and_leave_out_what_is_asked",
    "--ssl-ciphers": _TLS + "test_ciphers_are_openssls_words",
    "--shutdown-timeout": _LIFE + "test_drain_finishes_running_requests_and_refuses_new_ones",
    # chat and complete
    "chat --url": _CHAT + "test_an_address_without_an_api_is_named",
    "chat --api-key": _CHAT + "test_a_key_is_needed_where_the_server_asks_for_one",
    "chat --model-name": _CHAT + "test_an_unknown_model_lists_those_that_are_served",
    "chat --system-prompt": _CHAT + "test_lines_of_a_pipe_are_turns_of_one_conversation",
    "chat --quick": _CHAT + "test_a_quick_question_prints_the_model_and_the_reply",
    # run-batch
    "run-batch --port": _BATCH_OPTIONS,
    "run-batch --url": _BATCH_OPTIONS,
    "run-batch --enable-metrics": "tests/unit/batch/test_records.py::"
    "test_metrics_are_served_while_the_batch_runs",
    "run-batch --output-tmp-dir": "tests/unit/batch/test_transfer.py::test_both_ways_with_patience",
    "run-batch --input-file": _BATCH + "test_options_reach_their_configs",
    "run-batch --output-file": _BATCH + "test_options_reach_their_configs",
}
