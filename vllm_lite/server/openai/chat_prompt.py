"""Messages to a prompt: the chat template and its tokens. Used by chat and by tokenize."""

from __future__ import annotations

from vllm_lite.engine.client import PromptDict
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chat_protocol import TemplateFields


async def render_prompt(
    context: ServingContext, body: TemplateFields, template_kwargs: dict[str, object] | None
) -> PromptDict:
    """The prompt of `body`'s messages, as text and as token ids; raises RequestError."""
    text = await context.render(
        messages=body.messages,
        tools=body.tools,
        documents=body.documents,
        chat_template=body.chat_template or context.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=template_kwargs,
        content_format=context.server_config.chat_template_content_format,
    )
    token_ids = await context.encode(
        text,
        "messages",
        special=body.add_special_tokens,
        cut=body.truncate_prompt_tokens is not None,
    )
    return {"prompt": text, "prompt_token_ids": token_ids}
