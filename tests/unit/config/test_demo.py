"""The demo model is used as its makers mean it to be, and its prompts show tools."""

from __future__ import annotations

import json

from vllm_lite.config.demo import DEMO_SAMPLING, demo_path, fetch_demo
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.tokenizer.chat_template import render_chat, shows_tools
from vllm_lite.tokenizer.tokenizer import load_tokenizer

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_the_demo_has_recommended_sampling_whichever_way_it_is_named() -> None:
    fetch_demo()
    for name in ("demo", str(demo_path())):
        config = EngineArgs(model=name).create_engine_config()
        assert config.sampling_defaults == DEMO_SAMPLING
        assert config.model.quantization == "dequantize"
    plain = EngineArgs(model="demo", generation_config="vllm").create_engine_config()
    assert plain.sampling_defaults == {}


def test_the_demo_shows_tools_calls_and_their_answers_to_the_model() -> None:
    tokenizer = load_tokenizer(EngineArgs(model="demo").create_engine_config())
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    prompt = render_chat(tokenizer, messages, tools=[TOOL])
    assert json.dumps(TOOL) in prompt
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in prompt
    assert prompt.endswith("<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n")
    assert shows_tools(tokenizer.chat_templates["tool_use"])
    own = [{"role": "system", "content": "Be short."}, *messages]
    assert "system\nBe short.\n\n# Tools" in render_chat(tokenizer, own, tools=[TOOL])


def test_without_tools_the_demo_has_its_own_template() -> None:
    tokenizer = load_tokenizer(EngineArgs(model="demo").create_engine_config())
    assert "tool" not in render_chat(tokenizer, [{"role": "user", "content": "Hi"}])
