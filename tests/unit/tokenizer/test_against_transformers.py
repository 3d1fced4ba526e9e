"""The same ids, text and prompts as transformers, from constructions that share no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tests.unit.tokenizer.conftest import CONTROL, sentencepiece_metadata
from tests.unit.tokenizer.texts import TEXTS
from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from vllm_lite.tokenizer.hf_tokenizer import tokenizer_from_directory
from vllm_lite.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is 2 + 2?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüße <b>&amp;</b> 世界 \n"},
        {"role": "assistant", "content": "  Hallo  "},
        {"role": "user", "content": ""},
    ],
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather, <now>",
            "parameters": {"type": "object", "properties": {"città": {"type": "string"}}},
        },
    }
]
TOOL_TEMPLATE = """{{ bos_token }}
{%- for tool in tools or [] %}
{{ tool | tojson(indent=2) }}
{%- endfor %}
{%- for message in messages %}
    {%- if loop.index > 9 %}{% break %}{% endif %}
    {% generation %}
<{{ message.role }}>{{ message['content'] | trim }}</{{ message.role }}>
    {% endgeneration %}
    {%- for call in message.tool_calls or [] %}
    call {{ call.function.name }} {{ call.function.arguments | tojson }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.fixture(scope="module")
def reference(demo_metadata: dict[str, Any]) -> Any:
    """The demo's tokenizer as its authors assembled it: digits apart, then GPT-2's regex."""
    tokens = list(demo_metadata["tokenizer.ggml.tokens"])
    types = list(demo_metadata["tokenizer.ggml.token_type"])
    merges = [tuple(merge.split(" ")) for merge in demo_metadata["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        chat_template=demo_metadata["tokenizer.chat_template"],
    )


@pytest.mark.parametrize("text", TEXTS)
def test_the_demo_tokenizer_is_the_same(demo: Tokenizer, reference: Any, text: str) -> None:
    ids = reference.encode(text)
    assert demo.encode(text) == ids
    for skip in (False, True):
        assert demo.decode(ids, skip_special_tokens=skip) == reference.decode(
            ids, skip_special_tokens=skip
        )
    assert demo.convert_ids_to_tokens(ids) == reference.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("generate", [True, False])
def test_the_demo_template_renders_the_same(
    demo: Tokenizer, reference: Any, messages: list[dict[str, Any]], generate: bool
) -> None:
    expected = reference.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=generate
    )
    assert render_chat(demo, messages, add_generation_prompt=generate) == expected


@pytest.mark.parametrize("content", ["The answer", "The answer ", " spaced out "])
@pytest.mark.parametrize("template", [None, TOOL_TEMPLATE])
def test_continuing_a_message_renders_the_same(
    demo: Tokenizer, reference: Any, content: str, template: str | None
) -> None:
    messages = [*CHATS[0], {"role": "assistant", "content": content}]
    ours = render_chat(
        demo,
        messages,
        chat_template=template,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert ours == reference.apply_chat_template(
        messages, chat_template=template, tokenize=False, continue_final_message=True
    )


def test_tools_render_the_same(demo: Tokenizer, reference: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
    messages = [*CHATS[1], {"role": "assistant", "content": "", "tool_calls": [call]}]
    ours = render_chat(demo, messages, tools=TOOLS, chat_template=TOOL_TEMPLATE)
    assert ours == reference.apply_chat_template(
        messages,
        tools=TOOLS,
        chat_template=TOOL_TEMPLATE,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert "<now>" in ours and "città" in ours


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_eos_token": True}])
def test_a_saved_directory_reads_the_same(
    reference: Any, tmp_path: Path, flags: dict[str, bool]
) -> None:
    reference.save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    stated = "".join(f'"{name}": {str(value).lower()}, ' for name, value in flags.items())
    config.write_text(config.read_text().replace("{", "{" + stated, 1))
    ours = Tokenizer(tokenizer_from_directory(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(
            text, add_special_tokens=False
        )
    assert ours.chat_template == theirs.chat_template
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.all_special_ids >= set(theirs.all_special_ids)


def test_sentencepiece_merges_are_the_same() -> None:
    metadata = sentencepiece_metadata()
    ours = Tokenizer(tokenizer_from_gguf(metadata))
    vocab = {t: i for i, t in enumerate(metadata["tokenizer.ggml.tokens"])}
    scores = dict(zip(vocab, metadata["tokenizer.ggml.scores"], strict=True))
    merges = transformers.tokenization_utils_base.generate_merges(vocab, scores)
    theirs = transformers.LlamaTokenizer(vocab=vocab, merges=merges)
    for text in TEXTS:
        # transformers puts no second space before a text that begins with one.
        if text.strip() == text and "<|" not in text:
            assert ours.encode(text, False) == theirs.encode(text, add_special_tokens=False)
