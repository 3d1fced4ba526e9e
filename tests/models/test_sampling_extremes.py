"""Every number that a request may set gives a token of finite probability, or a refusal by name."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.models.byte_model import CONTEXT, save_byte_model
from vllm_lite import LLM, SamplingParams
from vllm_lite.errors import RequestError

FIELDS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p")
FIELDS += ("min_p",)
TINY = (5e-324, 1e-300, 1e-45, 1.2e-38, 1e-20, 1e-7, 1e-6, 1e-5, 9.9e-6, 0.01)
HUGE = (1.0, 1.9999999, 2.0, math.nextafter(2.0, 3), 100.0, 1e6, 1e7, 1e38, 3.5e38, 1e300)
VALUES = [sign * value for value in (0.0, *TINY, *HUGE) for sign in (1, -1)]
VALUES += [10**400, math.inf, math.nan]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(
        str(save_byte_model(tmp_path_factory.mktemp("bytes"))),
        dtype="float32",
        max_model_len=CONTEXT,
        num_gpu_blocks_override=500,
        disable_frontend_multiprocessing=True,
        logprobs_mode="processed_logprobs",
    ) as engine:
        yield engine


def check(llm: LLM, every: list[dict[str, Any]]) -> int:
    """Run what is not refused; how many ran."""
    params = []
    for given in every:
        try:
            params.append(SamplingParams(max_tokens=4, logprobs=2, ignore_eos=True, **given))
        except RequestError as error:
            assert error.param in given and error.param in error.message
    outputs = llm.generate(["abcabc"] * len(params), params, use_tqdm=False)
    for one, output in zip(params, outputs, strict=True):
        choice = output.outputs[0]
        assert choice.finish_reason == "length", (one, choice.stop_reason)
        assert choice.logprobs is not None
        for position, token_id in zip(choice.logprobs, choice.token_ids, strict=True):
            assert math.isfinite(position[token_id].logprob), one
    return len(params)


@pytest.mark.parametrize("field", FIELDS)
def test_a_number_at_its_limits(llm: LLM, field: str) -> None:
    assert check(llm, [{field: value} for value in VALUES]) >= 3


def test_numbers_at_their_limits_together(llm: LLM) -> None:
    rng = random.Random(5)
    limits = {
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        "repetition_penalty": (1e-6, 1e6),
        "temperature": (1e-300, 1e-5, 0.01, 2.0),
        "top_p": (5e-324, 1e-45, 1.0),
        "min_p": (0.0, 5e-324, 1.0),
        "top_k": (-1, 1, 2**31 - 1),
        "seed": (-(2**63), 2**63 - 1),
        "logit_bias": ({65: 100.0, 66: -100.0}, {i: -100.0 for i in range(256)}),
    }
    drawn = [{name: rng.choice(values) for name, values in limits.items()} for _ in range(100)]
    assert check(llm, drawn) == len(drawn)


@pytest.mark.parametrize("value", [1e300, -1e300, 5e-324, 10**400, math.inf])
def test_a_bias_at_its_limits(llm: LLM, value: float) -> None:
    try:
        params = SamplingParams.from_optional(logit_bias={"65": value}, max_tokens=3)
    except RequestError as error:
        assert error.param == "logit_bias"
        return
    assert llm.generate(["a"], [params], use_tqdm=False)[0].outputs[0].finish_reason == "length"
