"""Score documents by the vectors of their tokens, as ColBERT does."""

import sys

from vllm_lite import LLM

QUERY = "When was the lighthouse built?"
DOCUMENTS = [
    "The lighthouse on the cape was built in 1846.",
    "Lamps of ships are red on the left and green on the right.",
    "The house has a light roof.",
]


def main(model: str = "demo") -> None:
    with LLM(model, runner="pooling", max_model_len=512) as llm:
        outputs = llm.encode([QUERY, *DOCUMENTS], pooling_task="token_embed")
    # Each is [tokens, size], of rows with a length of 1.
    query, *documents = [output.outputs.data.numpy() for output in outputs]
    # Of each token of the query, the best match among the document's: their sum is the score.
    scores = [(query @ document.T).max(axis=1).sum() for document in documents]
    print(f"{QUERY} ({len(query)} tokens)")
    for score, text in sorted(zip(scores, DOCUMENTS, strict=True), reverse=True):
        print(f"  {score:.3f}  {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
