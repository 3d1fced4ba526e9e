"""A choice's text as events: reasoning, content and calls. The engine's outputs to meaning.

Readers know no wire format; `delta_of` and `message_of` write that of chat completions.
Invariant: deltas give the events that the whole text gives, joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence

from vllm_lite.log import init_logger
from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    collect,
)
from vllm_lite.parsers.pipeline import OutputParser, OutputParserConfig
from vllm_lite.parsers.tools.spec import NamedTool
from vllm_lite.server.context import ServingContext

logger = init_logger(__name__)

Outputs = AsyncIterable[tuple[int, RequestOutput]]


class MessageReader:
    """Reads the outputs of one choice, deltas in turn or a single whole one."""

    def __init__(
        self, config: OutputParserConfig | None, *, include_reasoning: bool = True
    ) -> None:
        """Without `config` the text is content and nothing else."""
        self._parser = None if config is None else OutputParser(config)
        self._is_named = config is not None and isinstance(config.tool_choice, NamedTool)
        self._include_reasoning = include_reasoning
        self._reasoning: list[str] = []
        # Whether a whole call was found.
        self.has_called = False
        # As the client sees it; None until the choice has ended.
        self.finish_reason: str | None = None

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def is_reasoning(self) -> bool:
        """Whether the answer proper is still to come."""
        return self._parser is not None and not self._parser.reasoning_ended

    def feed(self, choice: CompletionOutput) -> Sequence[Event]:
        """The events of the next output; all that remain once it has a finish_reason."""
        if self._parser is None:
            self.finish_reason = choice.finish_reason
            return [ContentDelta(choice.text)] if choice.text else []
        events = self._parser.feed(choice.text) if choice.text else []
        if choice.finish_reason is not None:
            is_cut = choice.finish_reason != "stop"
            events = [*events, *self._parser.finish(is_cut=is_cut)]
        for event in events:
            if isinstance(event, ReasoningDelta):
                self._reasoning.append(event.text)
            elif isinstance(event, ToolCallEnd):
                self.has_called = self.has_called or event.complete
        self.finish_reason = choice.finish_reason
        # A call that the client named is no news to it: OpenAI's API says "stop" then.
        if self.finish_reason == "stop" and self.has_called and not self._is_named:
            self.finish_reason = "tool_calls"
        if self._include_reasoning:
            return events
        return [event for event in events if not isinstance(event, ReasoningDelta)]


class ChoiceReaders:
    """The readers of one reply's choices."""

    def __init__(
        self,
        num_choices: int,
        config: OutputParserConfig | None,
        count_tokens: Callable[[str], Awaitable[int]],
        *,
        include_reasoning: bool = True,
    ) -> None:
        """`count_tokens` gives the number of tokens of a text."""
        self.num_choices = num_choices
        self.has_parser = config is not None
        self.has_reasoning = config is not None and config.reasoning_parser is not None
        self._has_tools = config is not None and bool(config.tools)
        self._count_tokens = count_tokens
        self._readers = [
            MessageReader(config, include_reasoning=include_reasoning) for _ in range(num_choices)
        ]

    def __getitem__(self, index: int) -> MessageReader:
        return self._readers[index]

    def outcomes(self) -> list[bool]:
        """Of each text in which calls were looked for: whether there was one."""
        return [reader.has_called for reader in self._readers] if self._has_tools else []

    async def count_reasoning(self) -> int:
        """Tokens of the reasoning of all choices, shown or not."""
        texts = [text for reader in self._readers if (text := reader.reasoning)]
        return sum([await self._count_tokens(text) for text in texts])


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
                shown = choice.text[: context.server_config.max_log_len]
                own = {"request_id": request_id}
                logger.info("Streamed for %s: %r", request_id, shown, extra=own)
            if choice.finish_reason is not None:
                context.log_output(request_id, "".join(parts), choice.finish_reason)
        yield prompt_index, output


def delta_of(event: Event, *, has_reasoning: bool) -> dict[str, object] | None:
    """The `delta` of an event; None if it has none.

    With `has_reasoning` content and reasoning name each other as null, as clients of reasoning
    models expect.
    """
    match event:
        case ContentDelta(text):
            if has_reasoning:
                return {"content": text, "reasoning": None, "reasoning_content": None}
            return {"content": text}
        case ReasoningDelta(text):
            return {"content": None, "reasoning": text, "reasoning_content": text}
        case ToolCallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return None


def message_of(role: str, echo: str, events: Iterable[Event]) -> dict[str, object]:
    """The `message` that `events` make, its content after `echo`.

    Content is null only where there is reasoning or a call in its place.
    """
    parsed = collect(events)
    content = echo + (parsed.content or "")
    is_empty = not content and (parsed.tool_calls or parsed.reasoning is not None)
    message: dict[str, object] = {
        "role": role,
        "content": None if is_empty else content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if parsed.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in parsed.tool_calls
        ]
    message["reasoning"] = message["reasoning_content"] = parsed.reasoning
    return message
