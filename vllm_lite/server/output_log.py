"""Log lines for generated texts that are streamed: one for each choice, when it has ended.

Knows no wire format. Invariant: without --enable-log-outputs it costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator

from vllm_lite.outputs import RequestOutput
from vllm_lite.server.context import ServingContext

Outputs = AsyncIterable[tuple[int, RequestOutput]]


def logged(context: ServingContext, request_id: str, outputs: Outputs) -> Outputs:
    """The same outputs, deltas, whose texts are logged where the server is told to."""
    if not context.server_config.enable_log_outputs:
        return outputs
    return _logged(context, request_id, outputs)


async def _logged(
    context: ServingContext, request_id: str, outputs: Outputs
) -> AsyncIterator[tuple[int, RequestOutput]]:
    texts: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    async for prompt_index, output in outputs:
        for choice in output.outputs:
            parts = texts[prompt_index, choice.index]
            parts.append(choice.text)
            if choice.finish_reason is not None:
                context.log_output(request_id, "".join(parts), choice.finish_reason)
        yield prompt_index, output
