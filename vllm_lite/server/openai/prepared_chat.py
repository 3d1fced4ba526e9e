"""Turns a chat's body into the engine's prompt and parameters, and the reader of its answers.

Every API that takes a conversation goes this way. Knows no wire format. Invariant: what comes
out can be started, and whatever is wrong with it was raised before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from vllm_lite.beam_search import BeamSearch
from vllm_lite.engine.client import PromptDict
from vllm_lite.errors import RequestError
from vllm_lite.parsers import registry
from vllm_lite.parsers.events import new_call_id
from vllm_lite.parsers.pipeline import OutputParserConfig
from vllm_lite.parsers.tools.constraint import tool_constraint
from vllm_lite.parsers.tools.spec import ToolChoice, ToolSpec, is_forced
from vllm_lite.sampling_params import SamplingParams, StructuredOutputsParams
from vllm_lite.server.context import SHOWS_NO_TOOLS, ServingContext
from vllm_lite.server.openai.beam_search import beam_search_of
from vllm_lite.server.openai.chat_protocol import (
    ChatCompletionRequest,
    TemplateFields,
    allowed_tools,
    tool_choice_of,
    tool_specs,
)
from vllm_lite.server.openai.sampling_protocol import blamed_on, effective_max_tokens
from vllm_lite.tokenizer.chat import encode_chat


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation that is ready for the engine."""

    prompt: PromptDict
    params: SamplingParams
    num_choices: int
    # Set where the choices come from a beam search.
    search: BeamSearch | None
    # How a MessageReader reads the answers; None where their text is content and nothing else.
    parser: OutputParserConfig | None

    @property
    def has_reasoning(self) -> bool:
        """Whether reasoning is looked for in the answers."""
        return self.parser is not None and self.parser.reasoning_parser is not None


async def prepare_chat(context: ServingContext, body: ChatCompletionRequest) -> PreparedChat:
    """Check `body`, render its messages and compile its constraint; raises RequestError."""
    body.check(
        trust_template=context.server_config.trust_request_chat_template,
        max_logprobs=context.max_logprobs,
        vocab_size=context.vocab_size,
    )
    tools, choice = _tools(context, body)
    parser = _parser_config(context, body, tools, choice)
    params = _sampling_params(context, body, _constraint(context, body, tools, choice))
    search = beam_search_of(context, body, params) if body.use_beam_search else None
    if parser is not None and registry.needs_special_tokens(
        parser.tool_parser, parser.reasoning_parser
    ):
        params.skip_special_tokens = False
    context.generations.check_open()
    shown = body
    if choice == "none" and context.server_config.exclude_tools_when_tool_choice_none:
        shown = body.model_copy(update={"tools": None})
    prompt = await render_prompt(context, shown, template_kwargs(context, body))
    if parser is not None and parser.reasoning_parser is not None:
        inside = registry.prompt_ends_in_reasoning(parser.reasoning_parser, prompt["prompt"])
        is_shaped = is_forced(choice) or body.constraint() is not None
        if inside is None and is_shaped and _opens_by_one_token(context, parser.reasoning_parser):
            inside = False  # the constraint holds from the start, unless that token is said
        parser = replace(parser, prompt_ends_in_reasoning=inside)
    if params.structured_outputs is not None or params.bad_words:
        with blamed_on(_source(body, choice)):
            await context.generations.prepare(params)
    num_choices = params.n if search is None else body.n or 1
    return PreparedChat(prompt, params, num_choices, search, parser)


async def render_prompt(
    context: ServingContext, body: TemplateFields, template_kwargs: dict[str, object] | None
) -> PromptDict:
    """The prompt of `body`'s messages, as text and as token ids; raises RequestError."""
    job: dict[str, Any] = {
        "messages": body.messages,
        "tools": body.tools,
        "documents": body.documents,
        "chat_template": body.chat_template or context.chat_template,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message,
        "chat_template_kwargs": template_kwargs,
        "content_format": context.server_config.chat_template_content_format,
    }
    tokenizer, cut = context.tokenizer, body.truncate_prompt_tokens is not None
    if tokenizer.chat is not None:  # which is no code of the model's, to be run apart
        said = "".join(str(message.get("content")) for message in body.messages)
        context.check_characters(said, "messages", cut=cut)
        text, token_ids = await asyncio.to_thread(encode_chat, tokenizer, **job)
    else:
        text = await context.render(**job)
        token_ids = await context.encode(text, "messages", special=body.add_special_tokens, cut=cut)
    return {"prompt": text, "prompt_token_ids": token_ids}


def _opens_by_one_token(context: ServingContext, reasoning_parser: str) -> bool:
    """Whether one token begins reasoning; otherwise the engine assumes that it has begun."""
    markers = registry.reasoning_markers(reasoning_parser)
    if markers is None:
        return False
    return len(context.tokenizer.marker_ids(markers.start)) == 1


def template_kwargs(context: ServingContext, body: ChatCompletionRequest) -> dict[str, object]:
    """Extra variables of the chat template: the server's, then the request's own."""
    return {**context.server_config.default_chat_template_kwargs, **body.template_kwargs}


def _tools(
    context: ServingContext, body: ChatCompletionRequest
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """The tools that may be called and the choice among them; raises RequestError."""
    if not body.tools and body.tool_choice is None:
        return (), "none"
    config = context.server_config
    specs = tool_specs(body.tools)
    if config.tool_strict_level == "parameter":
        specs = tuple(replace(tool, strict=True) for tool in specs)
    tools, wanted = allowed_tools(body.tool_choice, specs)
    choice = tool_choice_of(wanted, tools)
    if choice == "auto" and not (config.enable_auto_tool_choice and config.tool_call_parser):
        raise RequestError(
            '"auto" tool choice needs a server that was started with --enable-auto-tool-choice '
            "and --tool-call-parser; send tool_choice required, none or a function",
            "tool_choice",
        )
    if choice == "auto" and not context.shows_tools(body.chat_template):
        raise RequestError(
            f'"auto" tool choice is of no use here: {SHOWS_NO_TOOLS}, or send tool_choice '
            "required or a function",
            "tools",
        )
    return tools, choice


def _parser_config(
    context: ServingContext,
    body: ChatCompletionRequest,
    tools: tuple[ToolSpec, ...],
    choice: ToolChoice,
) -> OutputParserConfig | None:
    """The parser settings of the answers; None if they are plain content."""
    names = context.parsers
    if names.reasoning is None and choice == "none":
        return None
    given = template_kwargs(context, body)
    registry.check_template_kwargs((names.reasoning, names.tool), given)
    return OutputParserConfig(
        reasoning_parser=names.reasoning,
        tool_parser=None if choice == "none" else names.tool,
        tools=() if choice == "none" else tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        chat_template_kwargs=given,
        new_id=_new_id,
    )


def _new_id(style: str, name: str, index: int) -> str:
    """OpenAI's kind of id, but where a model's template wants its own."""
    return new_call_id(style or "call", name, index)


def _constraint(
    context: ServingContext,
    body: ChatCompletionRequest,
    tools: tuple[ToolSpec, ...],
    choice: ToolChoice,
) -> StructuredOutputsParams | None:
    """The constraint on the answer. With a forced call a response format does not apply."""
    own = body.constraint()
    if choice == "none":
        return own
    with blamed_on("tools"):
        forced = tool_constraint(
            context.parsers.tool,
            tools,
            choice,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            guards_free_calls=context.server_config.tool_strict_level != "auto",
        )
    if is_forced(choice) and body.structured_outputs:
        raise RequestError.about(
            "structured_outputs",
            "cannot shape an answer that must be a tool call; drop one of structured_outputs and "
            "tool_choice",
        )
    return forced if is_forced(choice) or own is None else own


def _source(body: ChatCompletionRequest, choice: ToolChoice) -> str:
    if body.structured_outputs:
        return "structured_outputs"
    is_free = body.response_format is None or body.response_format.get("type") == "text"
    return "tools" if is_free or is_forced(choice) else "response_format"


def _sampling_params(
    context: ServingContext, body: ChatCompletionRequest, constraint: StructuredOutputsParams | None
) -> SamplingParams:
    defaults = context.sampling_defaults
    asked, name = body.limit
    scored = body.prompt_logprobs
    if scored is None and body.echo and body.logprobs and not body.stream:
        scored = body.top_logprobs or 0
    return body.sampling_params(
        defaults,
        max_tokens=effective_max_tokens(
            asked,
            name,
            default=defaults.get("max_tokens"),
            cap=context.max_tokens_cap,
            limit=context.max_model_len,
        ),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=scored,
        constraint=constraint,
    )
