"""Mistral's tokenizers: ids of texts and chats are mistral-common's own, text comes back whole."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from tests.unit.tokenizer.tekken import write_tekken
from tests.unit.tokenizer.texts import TEXTS
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import CheckpointError, RequestError, UsageError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.compiler import GrammarEngines
from vllm_lite.structured_output.grammar import Refusal, Vocabulary
from vllm_lite.structured_outputs_params import StructuredOutputsParams
from vllm_lite.tokenizer.chat import encode_chat
from vllm_lite.tokenizer.detokenizer import IncrementalDetokenizer
from vllm_lite.tokenizer.mistral import mistral_file, tokenizer_from_mistral
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer

mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
pytest.importorskip("sentencepiece")

DATA = Path(mistral.__file__).parents[2] / "data"
SPM = {
    "v1": ("tokenizer.model", "tokenizer.model.v1"),
    "v2": ("tokenizer.model.v2", "mistral_instruct_tokenizer_240216.model.v2"),
    "v3": ("tokenizer.model.v3", "mistral_instruct_tokenizer_240323.model.v3"),
    "v7": ("tokenizer.model.v7", "mistral_instruct_tokenizer_241114.model.v7"),
}
TEKKEN = ("tekken v3", "tekken v7", "tekken v11", "tekken v13")
KINDS = (*SPM, *TEKKEN)
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
CALL = {
    "id": "chatcmpl-tool-abc123def",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"città": "Roma"}'},
}
PLAIN: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße [INST] <s> 世界 \n"},
    {"role": "assistant", "content": "Hallo"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}],
    },
]
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "How is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": CALL["id"], "name": "weather", "content": '{"sun": 1}'},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind in KINDS:
        found[kind] = folder = tmp_path_factory.mktemp(kind.replace(" ", "-"))
        if kind in SPM:
            name, stored = SPM[kind]
            shutil.copy(DATA / stored, folder / name)
        else:
            write_tekken(folder / "tekken.json", kind.split()[1])
    return found


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer(tokenizer_from_mistral(folder)) for kind, folder in folders.items()}


def oracle(folder: Path) -> Any:
    file = mistral_file(folder)
    assert file is not None
    return mistral.MistralTokenizer.from_file(str(file))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_have_the_packages_ids_and_come_back(
    kind: str, folders: dict[str, Path], loaded: dict[str, Tokenizer]
) -> None:
    own, text_tokenizer = loaded[kind], oracle(folders[kind]).instruct_tokenizer.tokenizer
    assert (own.bos_token_id, own.eos_token_id) == (text_tokenizer.bos_id, text_tokenizer.eos_id)
    for text in (*TEXTS, "[INST] is text </s>"):
        ids = own.encode(text)
        assert ids == text_tokenizer.encode(text, bos=True, eos=False)
        assert ids[1:] == own.encode(text, add_special_tokens=False)
        assert not own.all_special_ids.intersection(ids[1:])
        assert own.decode(ids, skip_special_tokens=True) == text_tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_show_whole_characters_and_the_same_text(
    kind: str, loaded: dict[str, Tokenizer]
) -> None:
    own = loaded[kind]
    for text in TEXTS:
        ids = own.encode(text, add_special_tokens=False)
        expected = own.decode(ids, skip_special_tokens=True)
        for skips in (True, False):
            params = SamplingParams(skip_special_tokens=skips)
            stream, shown = IncrementalDetokenizer(own, [], params), ""
            for token_id in [*ids, own.eos_token_id or 0]:
                stream.update([token_id], False)
                shown += stream.get_next_output_text(False, True)
                assert (expected + "</s>").startswith(shown)
            assert shown == expected + ("" if skips else "</s>")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_chats_have_the_packages_ids(
    kind: str, tools: Any, folders: dict[str, Path], loaded: dict[str, Tokenizer]
) -> None:
    request = pytest.importorskip("mistral_common.protocol.instruct.request")
    # The first version knows no calls.
    chats = [PLAIN, CALLED] if tools and kind != "v1" else [PLAIN]
    for messages in chats:
        text, ids = encode_chat(loaded[kind], messages, tools=tools)
        given = json.loads(json.dumps(messages).replace("chatcmpl-tool-", ""))
        asked = request.ChatCompletionRequest.from_openai(given, tools=tools)
        assert ids == oracle(folders[kind]).encode_chat_completion(asked).tokens
        assert text == loaded[kind].decode(ids) and ids[0] == loaded[kind].bos_token_id


def test_a_reply_goes_on_where_its_text_ends(loaded: dict[str, Tokenizer]) -> None:
    own = loaded["tekken v3"]
    messages = [*PLAIN, {"role": "assistant", "content": "It is"}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    text, _ = encode_chat(own, messages, **goes_on)
    assert text.endswith("[/INST]It is")
    with pytest.raises(RequestError, match="assistant"):
        encode_chat(own, messages)


def test_reasoning_and_its_marks_are_special_tokens(loaded: dict[str, Tokenizer]) -> None:
    own = loaded["tekken v13"]
    said = {"role": "assistant", "reasoning_content": "hm", "content": "Yes."}
    text, ids = encode_chat(own, [*PLAIN, said, {"role": "user", "content": "Why?"}])
    assert "[THINK]hm[/THINK]Yes.</s>" in text
    assert (
        own.marker_ids("[THINK]") == [own.token_to_id("[THINK]")]
        and ids.count(own.marker_ids("[THINK]")[0]) == 1
    )
    assert len(own.marker_ids("[THINK] ")) > 1


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs"),
        ({"documents": [{"text": "a"}]}, "documents"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tools": [{"type": "function"}]}, "messages"),
    ],
)
def test_what_has_no_place_in_such_chats_is_refused(
    options: dict[str, Any], param: str, loaded: dict[str, Tokenizer]
) -> None:
    with pytest.raises(RequestError) as caught:
        encode_chat(loaded["v3"], PLAIN, **options)
    assert caught.value.param == param and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}],
        [{"type": "image_url", "image_url": "file:///etc/hostname"}],
        [{"type": "text"}],
    ],
)
def test_no_picture_is_fetched(content: Any, loaded: dict[str, Tokenizer]) -> None:
    with pytest.raises(RequestError, match="content part"):
        encode_chat(loaded["tekken v3"], [{"role": "user", "content": content}])


@pytest.mark.parametrize("kind", ["v3", "tekken v3"])
@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_outputs_can_be_constrained(kind: str, backend: str, loaded: dict[str, Tokenizer]) -> None:
    own = loaded[kind]
    eos = own.eos_token_id
    assert eos is not None
    spelt = [own.token_bytes(i) for i in range(own.vocab_size)]
    engines = GrammarEngines(Vocabulary(spelt, own.all_special_ids, (eos,)), backend)
    compiled = engines.compile(StructuredOutputsParams(regex="Grüße, [0-9]{2}"))
    assert not isinstance(compiled, Refusal)
    matcher = engines.open(compiled).matcher()
    plain = {spelt[i]: i for i in range(own.vocab_size) if i not in own.all_special_ids}
    for char in "Grüße, 42":
        text = char.encode()
        for part in [text] if text in plain else [bytes([byte]) for byte in text]:
            assert matcher.accept(plain[part])
    assert matcher.accept(eos)


def test_the_mode_chooses_and_auto_takes_what_is_there(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    from tests.unit.tokenizer.test_hf_tokenizer import write

    folder = write_hf(tmp_path / "model", vocab_size=32768)

    def load(mode: str) -> Tokenizer:
        options: dict[str, Any] = {"model": str(folder), "load_format": "dummy"}
        return load_tokenizer(EngineArgs(**options, tokenizer_mode=mode).create_engine_config())

    with pytest.raises(CheckpointError, match=r"--tokenizer-mode mistral: .*tekken\.json"):
        load("mistral")
    shutil.copy(folders["v3"] / "tokenizer.model.v3", folder)
    assert load("auto").chat is not None
    write(folder)
    assert load("auto").chat is None and load("hf").chat is None
    assert load("mistral").chat is not None
    (folder / "tokenizer.model.v3").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model\.v3 cannot be read"):
        load("mistral")
    for mode in ("slow", "custom"):
        with pytest.raises(UsageError, match=f"--tokenizer-mode {mode} is not available"):
            load(mode)


def test_files_are_found_by_name(tmp_path: Path) -> None:
    assert mistral_file(tmp_path) is None
    for name in ("tokenizer.model", "tokenizer.model.v3", "tokenizer.model.v11m1", "tekken.json"):
        (tmp_path / name).touch()
        assert mistral_file(tmp_path) == tmp_path / name


def test_a_missing_package_is_named(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mistral_common.tokens.tokenizers.mistral", None)
    with pytest.raises(UsageError, match=r"pip install 'vllm-lite\[mistral\]'"):
        tokenizer_from_mistral(folders["v3"])
