"""IO processors: data in, a plugin's prompts to the engine, and the plugin's reply out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.models.test_pooling_calls import QUERY, ids_of, written
from tests.server.fake_client import FakeEngineClient, vector_of
from tests.server.harness import app_of, error_of, post
from vllm_lite import LLM, PoolingParams, io_processor
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.errors import RequestError, UsageError
from vllm_lite.io_processor import Answer, IOProcessor

SIZE = 8
FACTS = PoolingFacts(size=SIZE)


class Words(IOProcessor[list[str], dict[str, Any]]):
    """A vector of each word of a text, and their sum."""

    def parse_data(self, data: object) -> list[str]:
        if not isinstance(data, str) or not data.strip():
            raise ValueError("give it words")
        return data.split()

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="embed", use_activation=False)

    def pre_process(self, prompt: list[str], request_id: str | None = None, **kwargs: Any) -> Any:
        assert self.tokenizer is not None
        first, *rest = prompt
        return [{"prompt_token_ids": self.tokenizer.encode(first)}, *rest]

    def post_process(
        self, model_output: Sequence[Answer], request_id: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        rows = [answer.outputs.as_array() for answer in model_output]
        return {"count": len(rows), "sum": np.sum(rows, axis=0)}


class Broken(Words):
    def pre_process(self, prompt: list[str], request_id: str | None = None, **kwargs: Any) -> Any:
        return {"one": ["prompt"], "none": []}[prompt[0]]


class Failing(Words):
    def __init__(self, *given: Any) -> None:
        raise OSError("no such file")


class Entry(NamedTuple):
    """An entry point."""

    name: str
    load: Callable[[], Callable[[], str]]


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package with the plugins of this file."""

    def found(*, group: str) -> list[Entry]:
        assert group == "vllm.io_processor_plugins"
        return [
            Entry(name.lower(), lambda name=name: lambda: f"{__name__}.{name}")
            for name in ("Words", "Broken", "Failing")
        ]

    monkeypatch.setattr(io_processor, "entry_points", found)


async def ask(body: dict[str, Any], plugin: str | None = "words") -> httpx.Response:
    client = FakeEngineClient(pooling=FACTS, io_processor_plugin=plugin)
    return await post("/pooling", body, client)


def vector(text: str) -> list[float]:
    numbers: list[float] = vector_of(list(text.encode()), SIZE).tolist()
    return numbers


@pytest.mark.parametrize("path", ["/pooling", "/invocations"])
async def test_a_plugin_makes_prompts_and_the_reply(path: str) -> None:
    client = FakeEngineClient(pooling=FACTS, io_processor_plugin="words")
    reply = await post(path, {"data": "a few words", "model": "tiny", "task": "plugin"}, client)
    payload = reply.json()
    assert payload["request_id"].startswith("pooling-") and payload["created_at"] > 0
    assert payload["data"]["count"] == 3
    want = np.sum([vector(word) for word in ("a", "few", "words")], axis=0)
    assert payload["data"]["sum"] == pytest.approx(want.tolist())
    assert [params.use_activation for _, params, _ in client.pooled] == [False] * 3


async def test_what_a_plugin_refuses_is_refused() -> None:
    for body, plugin, words in (
        ({"data": 7}, "words", "refused by the plugin: give it words"),
        ({"data": "none"}, "broken", "makes 0 prompts"),
        ({"data": "a"}, None, "--io-processor-plugin"),
        ({"data": "a", "input": "b"}, "words", "not both"),
        ({"data": "a" * 300}, "words", "maximum context length"),
    ):
        error = error_of(await ask(body, plugin))
        assert error["code"] == 400 and error["param"] in ("data", "input_tokens")
        assert words in error["message"]
    reply = await ask({"data": "missing"}, "broken")
    assert reply.status_code == 500
    # Without data all is as it was.
    assert (await ask({"input": "hello"})).json()["data"][0]["data"] == pytest.approx(
        vector("hello")
    )


@pytest.mark.parametrize(
    ("pooling", "plugin", "words"),
    [
        (FACTS, "other", "no installed package has it .* there: broken, failing, words"),
        (FACTS, "failing", "failed with OSError: no such file"),
        (None, "words", "needs a model that pools"),
    ],
)
def test_plugins_that_cannot_be_used_end_the_start(
    pooling: PoolingFacts | None, plugin: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        app_of(FakeEngineClient(pooling=pooling, io_processor_plugin=plugin))


def test_python_programs_have_plugins_too(tmp_path: Path) -> None:
    written(tmp_path, "BertModel")
    options: dict[str, Any] = {"dtype": "float32", "disable_frontend_multiprocessing": True}
    with LLM(str(tmp_path), io_processor_plugin="words", **options) as llm:
        (found,) = llm.encode({"data": QUERY}, use_tqdm=False)
        words = llm.encode(
            [{"prompt_token_ids": ids_of(word)} for word in QUERY.split()],
            PoolingParams(use_activation=False),
            use_tqdm=False,
        )
        want = np.sum([word.outputs.as_array() for word in words], axis=0)
        assert found.outputs["count"] == 3
        assert found.outputs["sum"] == pytest.approx(want, abs=1e-5)
        with pytest.raises(ValueError, match="give it words"):
            llm.encode({"data": " "}, use_tqdm=False)
    with LLM(str(tmp_path), **options) as llm, pytest.raises(RequestError, match="io_processor"):
        llm.encode({"data": QUERY}, use_tqdm=False)
