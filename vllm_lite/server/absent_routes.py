"""Routes of vLLM and OpenAI that are not there, and what each would need.

A request to one is answered with 501 and the reason, so that it is not taken for a mistyped path.
Knows no route that is there.
"""

from __future__ import annotations

import re

# What is missing -> the paths that need it.
_ABSENT = {
    "scores of given tokens": "/generative_scoring",
    "audio: its models take and give text": """
        /v1/audio/transcriptions /v1/audio/translations /v1/audio/speech /v1/realtime
    """,
    "images: its models take and give text": """
        /v1/images/generations /v1/images/edits /v1/images/variations
    """,
    "moderation": "/v1/moderations",
    "fine-tuning": "/v1/fine_tuning/jobs",
    "uploads in parts: send a file at once to /v1/files": "/v1/uploads",
    "adapters (--enable-lora)": """
        /v1/load_lora_adapter /v1/unload_lora_adapter /adapters /adapters/{name}
    """,
    "prompts rendered by one server for another (--enable-scale-out)": """
        /v1/chat/completions/render /v1/completions/render /v1/messages/render
        /v1/chat/completions/derender /v1/completions/derender /v1/responses/render
        /inference/v1/generate /inference/v1/abort_requests
    """,
    "structured decisions": "/v1/systemone",
    "Cohere's API: send the messages to /v1/chat/completions": "/cohere/v2/chat",
    "a profiler of its own: use one from outside, such as py-spy or perf": """
        /start_profile /stop_profile
    """,
    "several engines (--enable-elastic-ep)": "/scale_elastic_ep /is_scaling_elastic_ep",
    "fault tolerance (--enable-fault-tolerance)": """
        /fault_tolerance/apply /fault_tolerance/status
    """,
    "a list of event sources: see the endpoint of --kv-events-config": "/kv_event_sources",
}
_ABSENT_WITHOUT_STORAGE = {
    "a place for files and batches: start it with --batch-storage-dir DIR": """
        /v1/files /v1/files/{id} /v1/files/{id}/content
        /v1/batches /v1/batches/{id} /v1/batches/{id}/cancel
    """
}
# The same for the routes of VLLM_SERVER_DEV_MODE=1.
_ABSENT_IN_DEV_MODE = {
    "media input": "/reset_mm_cache /reset_encoder_cache",
    "calls into workers": "/collective_rpc",
    "weights that change while it runs": """
        /init_weight_transfer_engine /shutdown_weight_transfer_engine /start_weight_update
        /start_draft_weight_update /update_weights /finish_weight_update /update_weight_version
        /weight_checker /weight_info /get_world_size /release_kv_cache_memory
    """,
}


def missing_for(path: str, *, has_storage: bool, is_dev_mode: bool) -> str | None:
    """The feature that `path` needs; None where vLLM has no such route either."""
    known = _ABSENT | (_ABSENT_IN_DEV_MODE if is_dev_mode else {})
    known |= {} if has_storage else _ABSENT_WITHOUT_STORAGE
    for need, paths in known.items():
        if any(re.fullmatch(re.sub(r"{\w+}", "[^/]+", one), path) for one in paths.split()):
            return need
    return None
