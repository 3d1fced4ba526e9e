"""One answer's text to events: splits off reasoning first, then tool calls.

Knows formats only by their names. The streamed and the whole answer take this one way; how the
text was cut into pieces never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vllm_lite.parsers import registry
from vllm_lite.parsers.channels import ChannelTools
from vllm_lite.parsers.events import Event, EventSink, NewId, new_call_id
from vllm_lite.parsers.reasoning import (
    Interludes,
    ReasoningFormat,
    ReasoningSplitter,
    TaggedReasoning,
)
from vllm_lite.parsers.reasoning_formats import SWITCHES
from vllm_lite.parsers.source import Put, Reading, Source
from vllm_lite.parsers.tools.constraint import has_own_envelope
from vllm_lite.parsers.tools.named import plain_format
from vllm_lite.parsers.tools.reader import ToolFormat, read_tools
from vllm_lite.parsers.tools.spec import ToolChoice, ToolSpec, is_forced

# Arguments of chat templates that turn reasoning off.
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class OutputParserConfig:
    """The settings by which one answer is parsed.

    `prompt_ends_in_reasoning` is what `registry.prompt_ends_in_reasoning` says of the prompt, or
    None where that is not known. Calls are looked for where there are tools and a tool parser, or
    where the choice forces a call.
    """

    reasoning_parser: str | None = None
    tool_parser: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True
    prompt_ends_in_reasoning: bool | None = None
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    new_id: NewId = new_call_id


class OutputParser:
    """Reads one answer, piece by piece; raises UsageError where a parser's name is not known."""

    def __init__(self, config: OutputParserConfig) -> None:
        self._sink = EventSink(only_first_call=not config.parallel_tool_calls, new_id=config.new_id)
        self._stages: list[_Stage] = []
        tools, reasoning = _tool_format(config), _reasoning_format(config)
        content: Put = self._sink.content
        may_be_answer = isinstance(reasoning, TaggedReasoning) and reasoning.may_be_answer
        given = config.chat_template_kwargs
        is_off = given.get("enable_thinking") is False
        # Reasoning is the answer then where there is no other.
        self._sink.needs_content = may_be_answer and (
            is_off or given.get("force_nonempty_content") is True
        )
        splitter = ReasoningSplitter(self._sink.reasoning, content, _starts_inside(config))
        splitter.has_ended = reasoning is None
        splitter.has_tools = tools is not None
        splitter.has_channels = isinstance(tools, ChannelTools)
        self._splitter = splitter
        put = content
        if tools is not None:
            again = None
            if isinstance(reasoning, TaggedReasoning):
                again = Interludes(reasoning, splitter)
            put = splitter.put_rest = self._add(
                lambda source: read_tools(tools, source, self._sink, config.tools, again)
            )
        if reasoning is not None:
            put = self._add(lambda source: reasoning.read(source, splitter))
        self._put = put

    @property
    def reasoning_ended(self) -> bool:
        """Whether the answer has begun; True from the start where there is no reasoning."""
        return self._splitter.has_ended

    def feed(self, text: str) -> list[Event]:
        """The events that `text`, the next piece of the answer, makes certain."""
        self._put(text)
        return self._sink.take()

    def finish(self, *, is_cut: bool = True) -> list[Event]:
        """The events that remain when the answer is over: cut off, or ended by the model itself."""
        for stage in reversed(self._stages):
            stage.finish(is_cut)
        self._stages.clear()
        self._sink.finish()
        return self._sink.take()

    def _add(self, program: Callable[[Source], Reading[None]]) -> Put:
        stage = _Stage(program)
        self._stages.append(stage)
        return stage.put


class _Stage:
    """A reading that is resumed whenever text arrives."""

    def __init__(self, program: Callable[[Source], Reading[None]]) -> None:
        self._source = Source()
        self._reading = program(self._source)

    def put(self, text: str) -> None:
        self._source.push(text)
        next(self._reading, None)

    def finish(self, is_cut: bool) -> None:
        self._source.close(is_cut=is_cut)
        next(self._reading, None)


def _tool_format(config: OutputParserConfig) -> ToolFormat | None:
    if config.tool_choice == "none" or not config.tools:
        return None
    native = registry.tool_format(config.tool_parser) if config.tool_parser else None
    if is_forced(config.tool_choice) and not has_own_envelope(
        config.tool_parser, config.tools, config.tool_choice
    ):
        return plain_format(config.tool_choice, native.id_style if native else "")
    return native


def _reasoning_format(config: OutputParserConfig) -> ReasoningFormat | None:
    name = config.reasoning_parser
    if name is None:
        return None
    switch = SWITCHES.get(name)
    is_on = switch is None or switch.is_on(config.chat_template_kwargs)
    if not is_on and not config.prompt_ends_in_reasoning:
        return None
    return registry.reasoning_format(name)


def _starts_inside(config: OutputParserConfig) -> bool | None:
    """Whether the text begins inside reasoning, by prompt or switch; None if unknown."""
    if config.prompt_ends_in_reasoning is not None:
        return config.prompt_ends_in_reasoning
    switches = [config.chat_template_kwargs.get(name) for name in _SWITCHES]
    return False if False in switches and True not in switches else None
