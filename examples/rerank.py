"""Sort documents by how well they fit a query."""

import sys

from vllm_lite import LLM

QUERY = "How do bees make honey?"
DOCUMENTS = [
    "Honey is kept in cells of wax.",
    "Bees collect nectar, and enzymes turn it into honey.",
    "The bee is a small car of the 1960s.",
]


def main(model: str = "demo") -> None:
    # A cross-encoder, such as BAAI/bge-reranker-base, reads query and document together; scores of
    # a model that embeds are the cosines of their vectors.
    with LLM(model, runner="pooling", max_model_len=512) as llm:
        scores = [output.outputs.score for output in llm.score(QUERY, DOCUMENTS)]
    print(QUERY)
    for score, document in sorted(zip(scores, DOCUMENTS, strict=True), reverse=True):
        print(f"  {score:.3f}  {document}")


if __name__ == "__main__":
    main(*sys.argv[1:])
