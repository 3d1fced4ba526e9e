"""Find the texts that mean most nearly what a question asks."""

import sys

import numpy as np

from vllm_lite import LLM

TEXTS = [
    "The Loire is the longest river in France.",
    "Bread rises because yeast makes gas of sugar.",
    "Mount Everest is the highest mountain above sea level.",
    "A violin has four strings, tuned in fifths.",
]
QUESTIONS = ["Which river in France is the longest?", "Why does dough grow?"]


def main(model: str = "demo") -> None:
    # A model made for this, such as sentence-transformers/all-MiniLM-L6-v2, searches better.
    with LLM(model, runner="pooling", max_model_len=512) as llm:
        vectors = [output.outputs.embedding for output in llm.embed([*TEXTS, *QUESTIONS])]
    texts, questions = np.split(np.array(vectors), [len(TEXTS)])
    # Vectors have a length of 1, so that their products are cosines.
    for question, scores in zip(QUESTIONS, questions @ texts.T, strict=True):
        print(question)
        for index in scores.argsort()[::-1][:2]:
            print(f"  {scores[index]:.3f}  {TEXTS[index]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
