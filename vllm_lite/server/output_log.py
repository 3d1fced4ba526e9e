"""Log lines for generated texts: for each choice its parts as they are sent, and the whole.

Knows no wire format. Invariant: without --enable-log-outputs it costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator

from vllm_lite.outputs import RequestOutput
from vllm_lite.server.context import ServingContext

Outputs = AsyncIterable[tuple[int, RequestOutput]]


def logged(
    context: ServingContext, request_id: str, outputs: Outputs, *, is_streamed: bool = True
) -> Outputs:
    """The same outputs, whose texts are logged with --enable-log-outputs.

    Deltas are logged only for streams.
    """
    config = context.server_config
    if not config.enable_log_outputs:
        return outputs
    return _logged(context, request_id, outputs, is_streamed and config.enable_log_deltas)


async def _logged(
    context: ServingContext, request_id: str, outputs: Outputs, tells_deltas: bool
) -> AsyncIterator[tuple[int, RequestOutput]]:
    texts: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    async for prompt_index, output in outputs:
        for choice in output.outputs:
            parts = texts[prompt_index, choice.index]
            parts.append(choice.text)
            if tells_deltas and choice.text:
                context.log_delta(request_id, choice.text)
            if choice.finish_reason is not None:
                context.log_output(request_id, "".join(parts), choice.finish_reason)
        yield prompt_index, output
