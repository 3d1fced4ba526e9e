"""When a sequence ends on its own: end of sequence, a stop token, its length, or repeats.

The front end finds stop strings, and then aborts the sequence.
"""

from __future__ import annotations

from vllm_lite.core.request import Request, RequestStatus


def check_stop(request: Request) -> RequestStatus | None:
    """How the request ends with its last token; None where it goes on.

    Call it once for each token. Sets `stop_reason` for a stop token and for repeats; an
    end-of-sequence token leaves it None. Before min_tokens no token ends it, but its length
    may. Source: vLLM's finish and stop reasons.
    """
    token_id = request.token_ids[-1]
    num_tokens = request.num_tokens
    is_repeating = request.repetition is not None and request.repetition.append(token_id)
    may_stop = num_tokens - request.num_prompt_tokens >= request.sampling_params.min_tokens
    if may_stop:
        if token_id in request.eos_token_ids and not request.sampling_params.ignore_eos:
            return RequestStatus.FINISHED_STOPPED
        if token_id in request.stop_token_ids:
            request.stop_reason = token_id
            return RequestStatus.FINISHED_STOPPED
    if num_tokens >= request.max_total_tokens:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    if is_repeating and may_stop:
        request.stop_reason = "repetition_detected"
        return RequestStatus.FINISHED_REPETITION
    return None


def append_tokens(request: Request, token_ids: list[int]) -> RequestStatus | None:
    """Append sampled tokens up to one that ends the request; how it ends, or None.

    A pooling request ends once all of its tokens are computed.
    """
    for token_id in token_ids:
        request.append_token(token_id)
        status = check_stop(request)
        if status is not None:
            # Drafts beyond that are not the request's.
            computed = min(request.num_computed_tokens, request.num_tokens)
            request.num_computed_tokens = computed
            return status
    is_open = token_ids or request.num_computed_tokens < request.num_tokens
    return None if is_open else RequestStatus.FINISHED_STOPPED
