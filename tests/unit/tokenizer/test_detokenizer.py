"""The laws of streaming text: whole characters, stop strings, and no dependence on the split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tokenizer.texts import TEXTS
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tokenizer.detokenizer import IncrementalDetokenizer
from vllm_lite.tokenizer.tokenizer import Tokenizer

PROMPT = [19556]  # "Hello"


def stream(
    tokenizer: Tokenizer,
    ids: list[int],
    params: SamplingParams,
    *,
    splits: list[int] | None = None,
    prompt: list[int] | None = None,
    stop_terminated: bool = False,
) -> tuple[str, str | None, list[str]]:
    """The final text, the stop string, and the deltas, with updates of the given sizes."""
    detokenizer = IncrementalDetokenizer(tokenizer, PROMPT if prompt is None else prompt, params)
    deltas, stop, start = [], None, 0
    sizes = iter(splits or [])
    while start < len(ids) and stop is None:
        end = min(start + next(sizes, 1), len(ids))
        stop = detokenizer.update(ids[start:end], stop_terminated and end == len(ids))
        start = end
        deltas.append(detokenizer.get_next_output_text(False, True))
    deltas.append(detokenizer.get_next_output_text(True, True))
    return detokenizer.get_next_output_text(True, False), stop, deltas


def shown_of(text: str, stops: list[str], *, keep: bool = False) -> tuple[str, str | None]:
    """The expected result of streaming `text`: cut at the stop string that ends first."""
    ends = [(text.find(s) + len(s), rank, s) for rank, s in enumerate(stops) if s in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if keep else end - len(stop)], stop


@pytest.mark.parametrize("text", TEXTS)
def test_deltas_join_to_the_text(demo: Tokenizer, text: str) -> None:
    ids = demo.encode(text)
    params = SamplingParams(skip_special_tokens=False)
    final, _, deltas = stream(demo, ids, params)
    assert final == "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_any_ids_give_what_the_whole_decodes_to(
    demo: Tokenizer, ids: list[int], skip: bool
) -> None:
    final, _, deltas = stream(demo, ids, SamplingParams(skip_special_tokens=skip))
    assert final == "".join(deltas)
    whole = demo.decode(ids, skip_special_tokens=skip)
    # The whole ends in one U+FFFD where the stream still waits for the rest of a character.
    assert final in (whole, whole.removesuffix("\ufffd"))


@settings(deadline=None)
@given(
    text=st.text(alphabet="abcé😀 ", max_size=30),
    stops=st.lists(st.text(alphabet="abcé😀 ", min_size=1, max_size=4), max_size=3),
    keep=st.booleans(),
    splits=st.lists(st.integers(1, 5), max_size=30),
)
def test_stop_strings_do_not_depend_on_the_split(
    demo: Tokenizer, text: str, stops: list[str], keep: bool, splits: list[int]
) -> None:
    params = SamplingParams(stop=stops, include_stop_str_in_output=keep)
    final, stop, deltas = stream(demo, demo.encode(text), params, splits=splits)
    assert (final, stop) == shown_of(text, stops, keep=keep)
    assert "".join(deltas) == final


@given(
    text=st.text(alphabet="ab", max_size=20),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_only_a_real_beginning_of_a_stop_string_is_held_back(
    demo: Tokenizer, text: str, stops: list[str]
) -> None:
    detokenizer = IncrementalDetokenizer(demo, PROMPT, SamplingParams(stop=stops))
    shown = ""
    for token_id in [demo.encode(char)[0] for char in text]:
        if detokenizer.update([token_id], False) is not None:
            break
        shown += detokenizer.get_next_output_text(False, True)
        held = detokenizer.output_text.removeprefix(shown)
        assert detokenizer.output_text.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_before_min_tokens_does_not_count(demo: Tokenizer) -> None:
    ids = demo.encode("a b a b a")  # one token a letter
    assert len(ids) == 5
    assert stream(demo, ids, SamplingParams(stop=["b"], max_tokens=9))[0] == "a "
    assert stream(demo, ids, SamplingParams(stop=["b"], max_tokens=9, min_tokens=2))[0] == "a b a "
    # It may begin before, as long as it ends after.
    late = SamplingParams(stop=["b a"], max_tokens=9, min_tokens=2)
    assert stream(demo, ids, late)[:2] == ("a ", "b a")


@pytest.mark.parametrize("keep", [False, True])
def test_the_token_that_ends_the_text_shows_only_if_asked(demo: Tokenizer, keep: bool) -> None:
    ids = [*demo.encode("bye"), 2]
    params = SamplingParams(skip_special_tokens=False, include_stop_str_in_output=keep)
    final, _, _ = stream(demo, ids, params, stop_terminated=True)
    assert final == ("bye<|im_end|>" if keep else "bye")


def test_a_part_of_a_character_is_never_shown(demo: Tokenizer) -> None:
    ids = demo.encode("ok 😀")
    for end in range(len(ids)):
        final, _, _ = stream(demo, ids[:end], SamplingParams())
        assert "ok 😀".startswith(final) and "\ufffd" not in final


def test_without_detokenize_there_is_no_text(demo: Tokenizer) -> None:
    for tokenizer in (demo, None):
        detokenizer = IncrementalDetokenizer(tokenizer, PROMPT, SamplingParams(detokenize=False))
        assert detokenizer.update([1, 2, 3], False) is None
        assert detokenizer.get_next_output_text(True, False) == ""


def test_ids_without_a_token_are_silent(demo: Tokenizer) -> None:
    assert stream(demo, [*demo.encode("a"), 60000, *demo.encode("b")], SamplingParams())[0] == "ab"


@given(st.lists(st.integers(3, 325), max_size=30))
def test_sentencepiece_bytes_stream_as_they_decode(
    sentencepiece: Tokenizer, ids: list[int]
) -> None:
    tokenizer = sentencepiece
    prompt = tokenizer.encode("the", add_special_tokens=False)
    final, _, deltas = stream(tokenizer, ids, SamplingParams(), prompt=prompt)
    assert final == "".join(deltas)
    # A run of bytes that is not valid UTF-8 as a whole shows as U+FFFD only where it is broken.
    whole = tokenizer.decode([*prompt, *ids]).removeprefix("the")
    if "\ufffd" not in whole:
        assert final == whole


def test_a_word_keeps_its_space_unless_it_begins_the_text(sentencepiece: Tokenizer) -> None:
    cat = [sentencepiece.token_to_id("▁cat") or 0]
    after = stream(sentencepiece, cat, SamplingParams(), prompt=sentencepiece.encode("the"))
    first = stream(sentencepiece, cat, SamplingParams(), prompt=[1])
    assert (after[0], first[0]) == (" cat", "cat")


def test_other_vocabularies_decode_through_a_window(words: Tokenizer) -> None:
    assert words.spelling is None
    ids = words.encode("one two <a> <b> three")
    shown = SamplingParams(skip_special_tokens=False)
    tight = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=False)
    assert stream(words, ids, shown, prompt=[1])[0] == " one two <a> <b> three"
    assert stream(words, ids, tight, prompt=[1])[0] == " one two <a><b> three"
    assert stream(words, ids, SamplingParams(), prompt=[1])[0] == " one two three"
    assert words.decode(ids, spaces_between_special_tokens=False) == "one two <a><b> three"


def test_one_token_has_text_and_bytes(demo: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer, text in ((demo, "né 😀 世"), (sentencepiece, "né 😀 世")):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode().lstrip() == text
        assert all(tokenizer.decode_token(token_id) for token_id in ids)
    part = demo.encode("😀")[0]
    assert demo.decode_token(part) == "\ufffd" and demo.token_bytes(part)[0] == 0xF0
    assert demo.decode_token(2) == "<|im_end|>"
    assert sentencepiece.decode_token(sentencepiece.token_to_id("▁cat") or 0) == " cat"
