"""Clients of others against a server that embeds: `python tests/e2e/pooling_clients.py URL FOLDER`.

Runs in an environment with openai, cohere, langchain-openai, llama-index-embeddings-openai and
sentence-transformers: peers/st of `make peers`. FOLDER is the model that the server at URL serves,
in sentence-transformers' layout: its own vectors are what all clients must get.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cohere
import numpy as np
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from openai import OpenAI
from sentence_transformers import SentenceTransformer

TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "A man is eating a piece of bread, and then another one, while it rains.",
]
LEAST_COSINE = 0.999


def check(client: str, found: Sequence[Sequence[float]], wanted: np.ndarray) -> None:
    """Fail unless each vector is that of sentence-transformers."""
    vectors = np.array(found)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (vectors * wanted).sum(axis=1) / lengths
    assert vectors.shape == wanted.shape, f"{client}: {vectors.shape}, not {wanted.shape}"
    assert cosines.min() >= LEAST_COSINE, f"{client}: cosines {cosines}"
    print(f"{client}: cosines from {cosines.min():.6f}")


def main(url: str, folder: str) -> None:
    reference = SentenceTransformer(folder, device="cpu")
    wanted = reference.encode(TEXTS)
    key = {"api_key": "EMPTY", "base_url": f"{url}/v1"}
    openai = OpenAI(**key)
    name = openai.models.list().data[0].id
    reply = openai.embeddings.create(model=name, input=TEXTS)
    vectors = [one.embedding for one in reply.data]
    check("openai", vectors, wanted)
    similar = reference.similarity(np.array(vectors, np.float32), np.array(vectors, np.float32))
    own = reference.similarity(wanted, wanted)
    assert abs(similar - own).max() < 2e-3, "sentence-transformers' similarity"
    co = cohere.ClientV2(api_key="EMPTY", base_url=url)
    embedded = co.embed(
        model=name, texts=TEXTS, input_type="search_document", embedding_types=["float"]
    )
    check("cohere", embedded.embeddings.float_, wanted)
    ranked = co.rerank(model=name, query=TEXTS[0], documents=TEXTS[1:], top_n=2)
    assert [one.index for one in ranked.results] == list(np.argsort(-own[0, 1:].numpy())[:2])
    print(f"cohere, rerank: {[round(one.relevance_score, 3) for one in ranked.results]}")
    chain = OpenAIEmbeddings(model=name, check_embedding_ctx_length=False, **key)
    check("langchain", chain.embed_documents(TEXTS), wanted)
    check("langchain, query", [chain.embed_query(TEXTS[0])], wanted[:1])
    index = OpenAIEmbedding(model_name=name, api_key="EMPTY", api_base=key["base_url"])
    check("llama-index", index.get_text_embedding_batch(TEXTS), wanted)
    check("llama-index, query", [index.get_query_embedding(TEXTS[0])], wanted[:1])


if __name__ == "__main__":
    main(*sys.argv[1:])
