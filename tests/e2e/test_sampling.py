"""Every sampling parameter on the real model, against plain arithmetic on transformers' logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import oracle
from vllm_lite import LLM, SamplingParams
from vllm_lite.errors import RequestError
from vllm_lite.outputs import CompletionOutput, RequestOutput
from vllm_lite.sampling_params import BeamSearchParams

CONTEXT = 512
TEXT = "The quick brown fox"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
EOS = 2  # <|im_end|>
# Changes the last position's logits [V] in place, knowing the prompt's and the generated ids.
Change = Callable[[Tensor, list[int], list[int]], None]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        "demo",
        dtype="float32",
        max_model_len=CONTEXT,
        num_gpu_blocks_override=300,
        disable_frontend_multiprocessing=True,
    ) as engine:
        yield engine


def run(llm: LLM, prompt: Any = TEXT, **params: Any) -> RequestOutput:
    options = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True, **params}
    return llm.generate(prompt, SamplingParams(**options), use_tqdm=False)[0]


def ask(llm: LLM, **params: Any) -> CompletionOutput:
    """The answer to a question that the model answers in one short sentence."""
    options = SamplingParams(**{"temperature": 0.0, "max_tokens": 32, **params})
    return llm.chat(QUESTION, options, use_tqdm=False)[0].outputs[0]


def ids_of(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


@torch.inference_mode()
def by_hand(prompt: list[int], output: list[int], change: Change) -> list[int]:
    """The likeliest ids by transformers' logits after `change`, each after its part of `output`.

    They are `output` just where greedy decoding of those logits gives it.
    """
    ids = torch.tensor([prompt + output[:-1]])
    likeliest: list[int] = []
    for index, logits in enumerate(oracle.demo_hf_model()(ids).logits[0, len(prompt) - 1 :]):
        change(logits, prompt, output[:index])
        likeliest.append(int(logits.argmax()))
    return likeliest


@torch.inference_mode()
def transformers_logprobs(ids: list[int], last: int = 0) -> Tensor:
    """[T, V]: what transformers expects after each of `ids`, or after the `last` of them."""
    return (
        oracle.demo_hf_model()(torch.tensor([ids]), logits_to_keep=last).logits[0].log_softmax(-1)
    )


# ---- log-probabilities


@pytest.mark.parametrize("count", [0, 5])
def test_logprobs_are_those_of_transformers(llm: LLM, count: int) -> None:
    result = run(llm, logprobs=count, prompt_logprobs=count)
    (choice,) = result.outputs
    ids = result.prompt_token_ids + choice.token_ids
    expected = transformers_logprobs(ids)
    assert result.prompt_logprobs is not None and choice.logprobs is not None
    assert result.prompt_logprobs[0] is None
    reported = result.prompt_logprobs[1:] + choice.logprobs
    assert len(reported) == len(ids) - 1
    for position, (row, target) in enumerate(zip(expected, ids[1:], strict=False)):
        entries = reported[position]
        assert entries is not None
        first = next(iter(entries))
        assert first == target
        assert entries[first].rank == int((row >= row[first]).sum())
        assert entries[first].decoded_token == llm.get_tokenizer().decode([first])
        best = row.topk(count).indices.tolist() if count else []
        assert list(entries) == [first, *(i for i in best if i != first)]
        for token_id, entry in entries.items():
            assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
            if token_id != first:
                assert entry.rank == best.index(token_id) + 1
    total = sum(
        entries[i].logprob for i, entries in zip(ids_of(result), choice.logprobs, strict=True)
    )
    assert choice.cumulative_logprob == pytest.approx(total)


def test_logprobs_show_the_model_before_penalties_and_temperature(llm: LLM) -> None:
    plain = run(llm, logprobs=3, max_tokens=1).outputs[0].logprobs
    changed = (
        run(llm, logprobs=3, max_tokens=1, temperature=1.9, top_k=1, repetition_penalty=1.001)
        .outputs[0]
        .logprobs
    )
    assert plain is not None and changed is not None
    assert plain == changed


# ---- what changes logits


def penalty(repetition: float, frequency: float, presence: float) -> Change:
    def change(logits: Tensor, prompt: list[int], output: list[int]) -> None:
        for token_id in {*prompt, *output}:
            value = float(logits[token_id])
            logits[token_id] = value / repetition if value > 0 else value * repetition
        for token_id, times in Counter(output).items():
            logits[token_id] -= frequency * times + presence

    return change


@pytest.mark.parametrize(
    ("repetition", "frequency", "presence"),
    [(1.3, 0.0, 0.0), (1.0, 0.7, 0.0), (0.9, -0.3, 1.5)],
)
def test_penalties(llm: LLM, repetition: float, frequency: float, presence: float) -> None:
    result = run(
        llm,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        max_tokens=24,
    )
    change = penalty(repetition, frequency, presence)
    assert len(ids_of(result)) == 24
    assert ids_of(result) == by_hand(result.prompt_token_ids, ids_of(result), change)
    assert ids_of(result) != ids_of(run(llm, max_tokens=24))


def test_logit_bias(llm: LLM) -> None:
    plain = ids_of(run(llm))
    bias = {plain[0]: -100.0, plain[2]: -2.5, 284: 3.0}

    def change(logits: Tensor, prompt: list[int], output: list[int]) -> None:
        for token_id, value in bias.items():
            logits[token_id] += value

    result = run(llm, logit_bias=bias)
    assert len(ids_of(result)) == 16
    assert ids_of(result) == by_hand(result.prompt_token_ids, ids_of(result), change)
    assert plain[0] not in ids_of(result)
    assert ids_of(run(llm, logit_bias={1234: 100.0})) == [1234] * 16


def test_allowed_token_ids(llm: LLM) -> None:
    allowed = list(range(300, 700))

    def change(logits: Tensor, prompt: list[int], output: list[int]) -> None:
        kept = logits[allowed].clone()
        logits.fill_(-math.inf)
        logits[allowed] = kept

    result = run(llm, allowed_token_ids=allowed)
    assert len(ids_of(result)) == 16
    assert ids_of(result) == by_hand(result.prompt_token_ids, ids_of(result), change)
    drawn = run(llm, allowed_token_ids=allowed, temperature=2.0, seed=1, max_tokens=40)
    assert set(ids_of(drawn)) <= set(allowed)


def test_bad_words(llm: LLM) -> None:
    """A word of one token is banned; of a longer one, only the token that would complete it."""
    encode = llm.get_tokenizer().encode
    plain = run(llm)
    word, phrase = " brown", " bear."
    assert word in plain.outputs[0].text and phrase in plain.outputs[0].text
    result = run(llm, bad_words=["brown", "bear."])
    assert "brown" not in result.outputs[0].text and "bear." not in result.outputs[0].text
    banned = [encode(text) for text in ("brown", word, "bear.", phrase)]

    def change(logits: Tensor, prompt: list[int], output: list[int]) -> None:
        for ids in banned:
            if len(ids) == 1 or output[-len(ids) + 1 :] == ids[:-1]:
                logits[ids[-1]] = -math.inf

    assert len(ids_of(result)) == 16
    assert ids_of(result) == by_hand(result.prompt_token_ids, ids_of(result), change)


# ---- where an output ends


def test_the_end_of_text_ends_it_and_ignore_eos_does_not(llm: LLM) -> None:
    ended, ignored = ask(llm), ask(llm, ignore_eos=True)
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    assert ended.token_ids[-1] == EOS and len(ended.token_ids) < 32
    assert ended.text == "The capital of France is Paris."
    assert (ignored.finish_reason, len(ignored.token_ids)) == ("length", 32)
    assert ignored.token_ids[: len(ended.token_ids)] == ended.token_ids


def test_min_tokens_bans_the_end_until_then(llm: LLM) -> None:
    prompt = llm.chat(QUESTION, SamplingParams(max_tokens=1), use_tqdm=False)[0].prompt_token_ids

    def change(logits: Tensor, prompt: list[int], output: list[int]) -> None:
        if len(output) < 20:
            logits[EOS] = -math.inf

    choice = ask(llm, min_tokens=20)
    assert len(choice.token_ids) >= 20
    assert choice.token_ids == by_hand(prompt, choice.token_ids, change)


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_may_lie_across_tokens(llm: LLM, included: bool) -> None:
    plain = run(llm).outputs[0]
    pieces = [llm.get_tokenizer().decode([i]) for i in plain.token_ids]
    # The end of one token, a whole one, and the beginning of the next.
    stop = pieces[1][-1] + pieces[2] + pieces[3][:2]
    start = len("".join(pieces[:2])) - 1
    assert plain.text.index(stop) == start and len(pieces[3]) > 2
    choice = run(llm, stop=["never said", stop], include_stop_str_in_output=included).outputs[0]
    assert choice.text == plain.text[: start + (len(stop) if included else 0)]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.token_ids == plain.token_ids[:4]


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_token_ends_it(llm: LLM, included: bool) -> None:
    plain = run(llm).outputs[0]
    stop = plain.token_ids[5]
    assert stop not in plain.token_ids[:5]
    choice = run(llm, stop_token_ids=[stop], include_stop_str_in_output=included).outputs[0]
    assert choice.token_ids == plain.token_ids[:6]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    shown = plain.token_ids[: 6 if included else 5]
    assert choice.text == llm.get_tokenizer().decode(shown)


def test_max_tokens_none_runs_to_the_end_of_the_context(llm: LLM) -> None:
    """The last position is computed as every other: transformers agrees to the last token."""
    words = llm.get_tokenizer().encode(
        "A list of colours: red, green, blue, white and so on. " * 99
    )
    prompt = words[: CONTEXT - 12]
    output = ids_of(run(llm, prompt, max_tokens=None))
    assert len(output) == 12
    assert output == transformers_logprobs(prompt + output, 13).argmax(-1).tolist()[:-1]
    for room, max_tokens in ((12, 12), (12, 10**6), (12, 11), (1, None), (1, 1)):
        result = run(llm, (prompt + output)[: CONTEXT - room], max_tokens=max_tokens)
        count = min(room, max_tokens or room)
        assert ids_of(result) == output[12 - room :][:count]
        assert result.outputs[0].finish_reason == "length"


# ---- drawing


@pytest.mark.parametrize("option", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_the_narrowest_filter_is_greedy(llm: LLM, option: dict[str, Any]) -> None:
    assert ids_of(run(llm, temperature=1.7, **option)) == ids_of(run(llm))


@pytest.mark.parametrize(
    "option", [{"top_k": 5}, {"top_p": 0.4}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.6}]
)
def test_draws_follow_the_filtered_distribution(llm: LLM, option: dict[str, Any]) -> None:
    prompt, temperature, count = llm.get_tokenizer().encode("My favourite"), 0.8, 250
    logits = transformers_logprobs(prompt)[-1] / temperature
    chances, order = logits.softmax(-1).sort(descending=True)
    if "min_p" in option:
        chances[chances < option["min_p"] * chances[0]] = 0
    chances[option.get("top_k", len(chances)) :] = 0
    chances /= chances.sum()
    # Of the likeliest tokens, those before which top_p is not reached yet.
    chances[chances.cumsum(-1) - chances >= option.get("top_p", math.inf)] = 0
    chances /= chances.sum()
    expected = {int(i): float(c) for i, c in zip(order, chances, strict=True) if c > 0}
    params = [
        SamplingParams(max_tokens=1, temperature=temperature, seed=seed, **option)
        for seed in range(count)
    ]
    outputs = llm.generate([prompt] * count, params, use_tqdm=False)
    drawn = Counter(ids_of(output)[0] for output in outputs)
    assert len(drawn) > 1 and set(drawn) <= set(expected)
    # Pearson's statistic has mean k - 1 and variance 2(k - 1); six deviations never happen.
    degrees = len(expected) - 1
    distance = sum((drawn[i] - count * c) ** 2 / (count * c) for i, c in expected.items())
    assert distance < degrees + 6 * math.sqrt(2 * degrees)


SEEDED = {"temperature": 1.0, "seed": 11, "max_tokens": 64, "top_p": 0.95}


@pytest.fixture(scope="module")
def seeded(llm: LLM) -> list[int]:
    return ids_of(run(llm, **SEEDED))


def test_a_seed_gives_its_text_alone_and_in_company(llm: LLM, seeded: list[int]) -> None:
    options = [{**SEEDED, "seed": seed, "max_tokens": 30} for seed in range(8, 16)]
    params = [SamplingParams(**{"ignore_eos": True, **option}) for option in options]
    outputs = [ids_of(o) for o in llm.generate([TEXT] * 8, params, use_tqdm=False)]
    assert outputs[3] == seeded[:30]
    assert len({tuple(ids) for ids in outputs}) == 8
    assert ids_of(run(llm, **{**SEEDED, "seed": 12, "max_tokens": 30})) == outputs[4]


def test_a_seed_gives_its_text_after_preemption(seeded: list[int]) -> None:
    params = SamplingParams(**{"ignore_eos": True, **SEEDED})
    with LLM(
        "demo",
        dtype="float32",
        max_model_len=256,
        num_gpu_blocks_override=20,
        enable_prefix_caching=False,
        disable_frontend_multiprocessing=True,
    ) as tight:
        outputs = tight.generate([TEXT] * 6, params, use_tqdm=False)
        assert tight.get_stats().num_preemptions > 0
    assert [ids_of(output) for output in outputs] == [seeded] * 6


def test_choices_of_one_request_differ_and_repeat(llm: LLM) -> None:
    first, second = (run(llm, n=4, temperature=1.0, seed=5).outputs for _ in range(2))
    assert [choice.index for choice in first] == [0, 1, 2, 3]
    assert len({tuple(choice.token_ids) for choice in first}) == 4
    assert [c.token_ids for c in first] == [c.token_ids for c in second]
    assert ids_of(run(llm, temperature=1.0, seed=7)) == first[2].token_ids


def test_without_a_seed_every_draw_is_another(llm: LLM) -> None:
    assert ids_of(run(llm, temperature=1.0)) != ids_of(run(llm, temperature=1.0))


# ---- prompts and text


def test_truncation_keeps_the_end_of_the_prompt(llm: LLM) -> None:
    whole = llm.get_tokenizer().encode("one two three " * 300 + TEXT)
    result = run(llm, "one two three " * 300 + TEXT, truncate_prompt_tokens=50)
    assert result.prompt_token_ids == whole[-50:]
    assert ids_of(result) == ids_of(run(llm, whole[-50:]))
    longest = run(llm, "one two three " * 300 + TEXT, truncate_prompt_tokens=-1)
    assert len(longest.prompt_token_ids) == CONTEXT - 1 and len(ids_of(longest)) == 1


def test_special_tokens_show_only_where_they_are_asked_for(llm: LLM) -> None:
    hidden = ask(llm, ignore_eos=True)
    shown = ask(llm, ignore_eos=True, skip_special_tokens=False)
    assert hidden.token_ids == shown.token_ids
    assert "<|im_end|>" in shown.text and "<|im_end|>" not in hidden.text
    decode = llm.get_tokenizer().decode
    assert shown.text == decode(shown.token_ids)
    assert hidden.text == decode(hidden.token_ids, skip_special_tokens=True)


def test_without_detokenize_there_are_only_ids(llm: LLM) -> None:
    choice = run(llm, detokenize=False, logprobs=1).outputs[0]
    assert choice.text == "" and choice.token_ids == ids_of(run(llm))
    assert choice.logprobs is not None
    assert all(entry.decoded_token is None for p in choice.logprobs for entry in p.values())


def test_a_beam_search_gives_whole_texts_best_first(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=4)
    first, second = llm.beam_search([TEXT, [1, 2, 3]], params)
    greedy = run(llm, max_tokens=4, logprobs=0, ignore_eos=False)
    assert len(first.sequences) == len(second.sequences) == 3
    scores = [one.cum_logprob for one in first.sequences if one.finish_reason == "length"]
    assert scores == sorted(scores, reverse=True)
    assert max(scores) >= greedy.outputs[0].cumulative_logprob - 1e-3
    assert all((one.text or "").startswith(TEXT) for one in first.sequences)
    assert all(one.tokens[:3] == [1, 2, 3] for one in second.sequences)
    with pytest.raises(RequestError, match="max-logprobs"):
        llm.beam_search(TEXT, BeamSearchParams(beam_width=30, max_tokens=4))
