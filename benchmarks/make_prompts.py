"""Prompts to measure drafts with: edits, answers that quote, code, and chats; made, not downloaded.

    python benchmarks/make_prompts.py build/prompts.jsonl --each 50
    vllm-lite bench throughput --model demo --dataset-path build/prompts.jsonl \\
        --dataset-name spec_bench --spec-bench-category edit

A line has a prompt, its category, and as many output tokens as an answer takes, about; it is read
as `spec_bench`, which chooses a category, and as `custom`, with `--custom-output-len -1`. An `edit`
repeats a text with a word changed, `rag` asks for a passage word by word, `code` for a module with
a change in every function, and a `chat` repeats nothing. The same seed gives the same prompts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

PEOPLE = ("keeper", "baker", "captain", "teacher", "gardener", "clerk", "miller", "doctor")
THINGS = ("lamp", "letter", "map", "basket", "clock", "boat", "ladder", "door", "bell", "ledger")
PLACES = ("harbour", "market", "mill", "old bridge", "station", "library", "orchard", "lighthouse")
VERBS = ("repaired", "painted", "counted", "carried", "sold", "dropped", "measured", "borrowed")
COLOURS = ("grey", "green", "red", "yellow", "white", "brown", "blue", "black")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SENTENCES = (
    "On {day} the {who} {done} the {colour} {what} near the {where}.",
    "Nobody at the {where} remembered who had {done} the {what}, least of all the {who}.",
    "The {colour} {what} was still there on {day}, although the {who} denied it.",
    '"A {what} like this belongs in the {where}," said the {who} one {day} evening.',
)
TASKS = ("Tell me a story about", "Explain in a few sentences", "Write a short poem about")
TASKS += ("List five facts about", "Give me advice on", "What is the history of")
TOPICS = ("bread", "rivers", "maps", "trains", "glass", "bees", "salt", "bridges", "chess", "tea")
ASPECTS = (
    "for a child",
    "for an expert",
    "in winter",
    "at sea",
    "in a small town",
    "for travellers",
)
NOUNS = ("order", "invoice", "ticket", "parcel", "account", "booking", "payment", "message")
FIELDS = ("total", "weight", "price", "count", "delay", "discount", "deposit", "distance")


def paragraph(chance: Random, length: int) -> str:
    """So many sentences of some sixteen tokens."""
    words = {"who": PEOPLE, "what": THINGS, "where": PLACES, "day": DAYS}
    words |= {"colour": COLOURS, "done": VERBS}
    return " ".join(
        chance.choice(SENTENCES).format_map({key: chance.choice(words[key]) for key in words})
        for _ in range(length)
    )


def edit(chance: Random) -> tuple[str, int]:
    """A text that is to be repeated with one word changed."""
    text = paragraph(chance, 16)
    old = chance.choice([place for place in PLACES if place in text])
    task = f'Repeat the text below, but write "theatre" for "{old}". Change nothing else.'
    return f"{task}\n\n{text}", 260


def rag(chance: Random) -> tuple[str, int]:
    """Passages, of which one is to be quoted."""
    passages = [paragraph(chance, 5) for _ in range(6)]
    listed = "\n".join(f"[{number}] {text}" for number, text in enumerate(passages, 1))
    first = " ".join(chance.choice(passages).split()[:7])
    task = f'Quote word by word the passage that begins with "{first}", with its number.'
    return f"{listed}\n\n{task}", 100


def code(chance: Random) -> tuple[str, int]:
    """A module that is to be repeated with a change in each function."""
    functions = []
    for noun, field in zip(chance.sample(NOUNS, 5), chance.sample(FIELDS, 5), strict=True):
        limit = chance.randrange(10, 900)
        functions.append(
            f"def largest_{field}({noun}s, limit={limit}):\n"
            f"    largest = 0\n"
            f"    for {noun} in {noun}s:\n"
            f"        if {noun}.{field} > largest and {noun}.{field} < limit:\n"
            f"            largest = {noun}.{field}\n"
            f"    return largest\n"
        )
    task = "Write this module again with a docstring of one line in each function."
    return f"{task}\n\n```python\n{chr(10).join(functions)}```", 420


def chat(chance: Random) -> tuple[str, int]:
    """A question whose answer repeats nothing."""
    asked = f"{chance.choice(TASKS)} {chance.choice(TOPICS)} {chance.choice(ASPECTS)}"
    return f"{asked}, in {chance.randrange(50, 150)} words.", 128


KINDS = {"edit": edit, "rag": rag, "code": code, "chat": chat}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--each", type=int, default=50, help="prompts of each category")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = []
    for kind, make in KINDS.items():
        chance = Random(f"{kind} {args.seed}")
        for _ in range(args.each):
            prompt, tokens = make(chance)
            row = {"category": kind, "prompt": prompt, "turns": [prompt]}
            rows.append(row | {"output_tokens": tokens})
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} prompts are in {args.output}")


if __name__ == "__main__":
    main()
