"""Prompts have the lengths that were asked for, whatever the vocabulary."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.unit.tokenizer.conftest import sentencepiece_metadata
from tests.unit.tokenizer.tekken import write_tekken
from vllm_lite.bench.datasets import Sample, Source, load_samples
from vllm_lite.bench.options.datasets import DatasetOptions
from vllm_lite.bench.prompts import PromptMaker, open_tokenizer
from vllm_lite.errors import UsageError
from vllm_lite.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from vllm_lite.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def demo() -> PromptMaker:
    return PromptMaker(open_tokenizer("demo"))


@pytest.fixture(scope="module")
def with_bos() -> PromptMaker:
    """A tokenizer that begins every text with a token of its own."""
    return PromptMaker(Tokenizer(tokenizer_from_gguf(sentencepiece_metadata())))


def samples(
    name: str, maker: PromptMaker, *, seed: int = 0, as_chat: Any = None, **options: Any
) -> list[Sample]:
    return load_samples(name, Source(DatasetOptions(**options), maker, seed, as_chat))


def write_lines(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return str(path)


def talk(question: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"id": "1", "conversations": turns}


def real_length(maker: PromptMaker, text: str) -> int:
    return maker.count(text) + maker.num_added


@pytest.mark.parametrize("length", [1, 7, 200])
def test_random_prompts_have_exactly_the_length(demo: PromptMaker, length: int) -> None:
    made = samples("random", demo, num_prompts=60, input_len=length, output_len=9)
    assert {real_length(demo, sample.prompt) for sample in made} == {length}
    assert {(s.prompt_tokens, s.output_tokens) for s in made} == {(length, 9)}
    assert len({sample.prompt for sample in made}) == 60


def test_what_the_model_adds_counts_as_prompt(with_bos: PromptMaker) -> None:
    assert with_bos.num_added == 1
    made = samples("random", with_bos, num_prompts=20, random_input_len=30)
    assert [real_length(with_bos, sample.prompt) for sample in made] == [30] * 20


def test_random_lengths_fill_their_range(demo: PromptMaker) -> None:
    ratio = '{"input": 0.5, "output": 0.0}'
    made = samples("random", demo, num_prompts=300, input_len=20, random_range_ratio=ratio)
    lengths = {sample.prompt_tokens for sample in made}
    assert lengths == set(range(10, 31))
    assert {sample.output_tokens for sample in made} == {128}


def test_random_prompts_share_their_prefix(demo: PromptMaker) -> None:
    made = samples("random", demo, num_prompts=8, input_len=10, random_prefix_len=40)
    assert {sample.prompt_tokens for sample in made} == {50}
    encoded = [demo._tokenizer.encode(sample.prompt) for sample in made]
    # The last token of the prefix may melt into what follows it.
    assert len({tuple(ids[:36]) for ids in encoded}) == 1


def test_a_seed_repeats_itself(demo: PromptMaker) -> None:
    for name in ("random", "prefix_repetition"):
        first = samples(name, demo, seed=3, num_prompts=10)
        assert first == samples(name, demo, seed=3, num_prompts=10)
        assert first != samples(name, demo, seed=4, num_prompts=10)


def test_prefixes_repeat_equally_often(demo: PromptMaker) -> None:
    made = samples(
        "prefix_repetition",
        demo,
        num_prompts=12,
        prefix_repetition_prefix_len=30,
        prefix_repetition_suffix_len=10,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=5,
    )
    assert {(s.prompt_tokens, s.output_tokens) for s in made} == {(40, 5)}
    beginnings = [tuple(demo._tokenizer.encode(sample.prompt)[:26]) for sample in made]
    assert sorted(beginnings.count(each) for each in set(beginnings)) == [4, 4, 4]
    with pytest.raises(UsageError, match="less than --prefix-repetition-num-prefixes"):
        samples("prefix_repetition", demo, num_prompts=2, prefix_repetition_num_prefixes=3)


def test_sharegpt_keeps_first_turns_of_a_sensible_length(demo: PromptMaker, tmp_path: Path) -> None:
    good = talk("What is the capital of France?", "The capital of France is Paris.")
    rows = [
        good,
        talk("Hi", "The question is too short for this."),
        talk("Is this answer too short?", "Yes"),
        talk("word " * 1100, "The question is too long for this."),
        talk("Is this answer too long?", "word " * 2100),
        {"conversations": [{"value": "There is nobody to answer."}]},
        {"text": "no conversation"},
    ]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(rows))
    options: dict[str, Any] = {"dataset_path": str(path), "num_prompts": 5}
    made = samples("sharegpt", demo, **options, oversample=False)
    assert made == [Sample("What is the capital of France?", 7, 7)]
    assert samples("sharegpt", demo, **options) == made * 5
    fixed = samples("sharegpt", demo, **options, sharegpt_output_len=2, oversample=False)
    assert {sample.output_tokens for sample in fixed} == {2} and len(fixed) == 3
    ordered = samples("sharegpt", demo, **options, output_len=2, disable_shuffle=True)
    assert ordered[0].prompt == good["conversations"][0]["value"]


def test_custom_takes_lengths_from_options_or_rows(demo: PromptMaker, tmp_path: Path) -> None:
    rows = [{"prompt": f"Question {i}", "output_tokens": i} for i in range(1, 5)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    own = samples("custom", demo, dataset_path=path, num_prompts=4, custom_output_len=-1)
    assert sorted((s.prompt, s.output_tokens) for s in own) == [
        (f"Question {i}", i) for i in range(1, 5)
    ]
    some = samples("custom", demo, dataset_path=path, num_prompts=2, disable_shuffle=True)
    assert [(s.prompt, s.output_tokens) for s in some] == [("Question 1", 256), ("Question 2", 256)]


def test_custom_prompts_become_chats(with_bos: PromptMaker, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"prompt": "the cat"}])
    made = samples(
        "custom", with_bos, dataset_path=path, num_prompts=1, as_chat=lambda text: f"<{text}>"
    )
    assert made[0].prompt == "<the cat>"
    assert made[0].prompt_tokens == with_bos.count("<the cat>")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ('{"prompt": "a", "output_tokens": 1}\n{nonsense', "line 2 is not JSON"),
        ('{"text": "a"}', 'line 1 has no text under "prompt"'),
        ('{"prompt": "a", "output_tokens": "3"}', 'line 1 has no whole number under "output_tok'),
        ("", "holds no prompt"),
    ],
)
def test_a_bad_file_is_one_line(
    demo: PromptMaker, tmp_path: Path, content: str, cause: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=cause):
        samples("custom", demo, dataset_path=str(path), custom_output_len=-1)


def test_a_missing_or_wrong_file_is_one_line(demo: PromptMaker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        samples("sharegpt", demo, dataset_path=str(tmp_path / "none.json"))
    (tmp_path / "object.json").write_text("{}")
    with pytest.raises(UsageError, match="not a list of conversations"):
        samples("sharegpt", demo, dataset_path=str(tmp_path / "object.json"))
    with pytest.raises(UsageError, match=r"cannot load the tokenizer of \./none"):
        open_tokenizer("./none")


def test_fitting_holds_for_ids_that_do_not_survive_as_text(demo: PromptMaker) -> None:
    rng = np.random.default_rng(1)
    for length in range(1, 80):
        text, ids = demo.fit(demo.draw(length, rng), rng)
        assert demo.count(text) == len(ids) == length


POEM = [f"Line {number} of a poem that nobody wrote\n" for number in range(60)]


def test_sonnets_begin_alike_and_have_about_the_length(demo: PromptMaker, tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("".join(POEM))
    options = {"dataset_path": str(path), "num_prompts": 6, "sonnet_prefix_len": 60}
    made = samples("sonnet", demo, **options, input_len=160, sonnet_output_len=9)
    per_line = demo.count(POEM[0])
    assert all(abs(sample.prompt_tokens - 160) <= 2 * per_line for sample in made)
    assert {sample.output_tokens for sample in made} == {9}
    first = [str(sample.prompt).splitlines()[:4] for sample in made]
    assert first == first[:1] * 6 and len({str(sample.prompt) for sample in made}) == 6
    for wanted, cause in ((61, "leaves no line after"), (9000, "has 60 lines")):
        with pytest.raises(UsageError, match=cause):
            samples("sonnet", demo, **options, input_len=wanted)


def test_spec_bench_takes_a_category_s_first_turns(demo: PromptMaker, tmp_path: Path) -> None:
    rows = [
        {"question_id": 1, "category": "coding", "turns": ["Write a loop.", "Shorter."]},
        {"question_id": 2, "category": "math", "turns": ["What is 2 + 2?"]},
    ]
    path = write_lines(tmp_path / "question.jsonl", rows)
    made = samples("spec_bench", demo, dataset_path=path, num_prompts=2, disable_shuffle=True)
    assert [(s.prompt, s.output_tokens) for s in made] == [
        ("Write a loop.", 256),
        ("What is 2 + 2?", 256),
    ]
    some = samples("spec_bench", demo, dataset_path=path, num_prompts=1, spec_bench_category="math")
    assert some[0].prompt == "What is 2 + 2?"
    with pytest.raises(UsageError, match="it has coding, math"):
        samples("spec_bench", demo, dataset_path=path, spec_bench_category="art")


BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
1,GPT-4,12,5,17,API log
2,ChatGPT,900,5,905,API log
3,GPT-4,30,0,30,API log
4,GPT-4,20,7,27,API log
"""


def test_burstgpt_keeps_what_gpt_4_answered(demo: PromptMaker, tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURST)
    made = samples("burstgpt", demo, dataset_path=str(path), num_prompts=2)
    assert sorted((s.prompt_tokens, s.output_tokens) for s in made) == [(12, 5), (20, 7)]
    assert all(real_length(demo, str(s.prompt)) == s.prompt_tokens for s in made)
    assert len(samples("burstgpt", demo, dataset_path=str(path), num_prompts=9)) == 9
    for content, cause in (
        ("a,b\n1,2\n", "has no column Model, Request tokens, Response tokens"),
        (BURST.replace("GPT-4,12", "GPT-4,many"), "line 2 has no whole numbers"),
        (BURST.replace("GPT-4", "GPT-5"), "holds no answered request"),
    ):
        path.write_text(content)
        with pytest.raises(UsageError, match=cause):
            samples("burstgpt", demo, dataset_path=str(path))


def trace_row(time: float, length: int, hashes: list[int]) -> dict[str, Any]:
    return {"timestamp": time, "input_length": length, "output_length": 3, "hash_ids": hashes}


def test_a_trace_shares_what_its_hashes_share(demo: PromptMaker, tmp_path: Path) -> None:
    rows = [
        trace_row(5000, 40, [1, 2, 3]),
        trace_row(5500, 36, [1, 2, 9]),
        trace_row(9000, 20, [1, 2]),
        trace_row(9000, 40, []),
    ]
    path = write_lines(tmp_path / "trace.jsonl", rows)
    made = samples(
        "timed_trace", demo, dataset_path=path, num_prompts=9, timed_trace_sec_multiplier=0.001
    )
    assert [sample.at for sample in made] == [0.0, 0.5, 4.0, 4.0]
    ids = [list(sample.prompt) for sample in made]
    assert [len(one) for one in ids] == [40, 36, 20, 40] == [s.prompt_tokens for s in made]
    assert ids[0][:32] == ids[1][:32] and ids[0][32:36] != ids[1][32:36]
    assert ids[2] == ids[0][:20], "a part of a chunk is its beginning"
    assert ids[3][:16] not in (ids[0][:16], ids[3][16:32])


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        ([trace_row(2, 9, []), trace_row(1, 9, [])], "line 2 is earlier than the line before"),
        ([{"timestamp": 1, "input_length": 3}], 'no whole number under "output_length"'),
        ([{"input_length": 3, "output_length": 3}], 'no number under "timestamp"'),
        ([{**trace_row(1, 9, []), "hash_ids": ["x"]}], 'no list of whole numbers under "hash_ids"'),
        ([], "holds no request"),
    ],
)
def test_a_bad_trace_is_one_line(
    demo: PromptMaker, tmp_path: Path, rows: list[Any], cause: str
) -> None:
    path = write_lines(tmp_path / "trace.jsonl", rows)
    with pytest.raises(UsageError, match=cause):
        samples("timed_trace", demo, dataset_path=path)


def test_random_prompts_come_in_batches_for_embeddings(demo: PromptMaker) -> None:
    made = samples("random", demo, num_prompts=5, input_len=6, random_batch_size=2)
    assert [len(sample.prompt) for sample in made] == [2, 2, 1]
    assert [sample.prompt_tokens for sample in made] == [12, 12, 6]


def test_a_query_comes_with_documents_to_rank(demo: PromptMaker) -> None:
    made = samples("random-rerank", demo, num_prompts=3, input_len=12, random_batch_size=2)
    assert [len(sample.prompt) for sample in made] == [3, 2]
    assert made[0].prompt[0] == made[1].prompt[0]
    assert len({text for sample in made for text in sample.prompt}) == 4
    assert [sample.prompt_tokens for sample in made] == [24, 12]


def test_a_tokenizer_by_mistral_common_makes_prompts(tmp_path: Path) -> None:
    pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    write_tekken(tmp_path / "tekken.json", "v3")
    for mode in ("auto", "mistral"):
        assert PromptMaker(open_tokenizer(str(tmp_path), mode=mode)).count("Grüße") > 0


def test_prompts_for_drafts_are_read_by_category_and_with_their_lengths(
    demo: PromptMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    maker, path = importlib.import_module("make_prompts"), str(tmp_path / "prompts.jsonl")
    made = []
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["make_prompts.py", path, "--each", "30"])
        maker.main()
        made.append(Path(path).read_text())
    assert made[0] == made[1]
    options = {"dataset_path": path, "num_prompts": 30, "oversample": False}
    told = {}
    for kind in maker.KINDS:
        read = samples("spec_bench", demo, spec_bench_category=kind, **options)
        told |= {sample.prompt: kind for sample in read}
        assert all(20 < s.prompt_tokens < 900 for s in read) == (kind != "chat")
    assert len(told) == 120
    everything = options | {"num_prompts": 120, "custom_output_len": -1}
    for sample in samples("custom", demo, **everything):
        assert sample.output_tokens == maker.KINDS[told[str(sample.prompt)]](Random(0))[1]
