"""Measures embeddings of texts: ours or vLLM with its LLM class, or sentence-transformers.

    PYTHON embed.py '{"module": "vllm", "model": DIR, "options": {...}, "texts": FILE, ...}'

`texts` names a JSON list. After a first batch all are embedded. Vectors of the first `num_kept` go
to the file `vectors`, to be compared. Batch sizes are sentence-transformers' alone: the one that
is fastest on a sample is measured. Where all texts would take minutes the sample stands for them.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import session

SAMPLE = 128
PATIENCE = 150.0  # seconds
Embed = Callable[[list[str]], Any]


def embedders(orders: dict[str, Any]) -> Iterator[tuple[str, Embed]]:
    """Name each way of embedding that is to be measured; starts the engine."""
    model, options = orders["model"], orders["options"]
    if orders["module"] != "sentence_transformers":
        llm = importlib.import_module(orders["module"]).LLM(model=model, **options)

        def embed(texts: list[str]) -> list[list[float]]:
            outputs = llm.embed(texts, use_tqdm=False)
            return [list(output.outputs.embedding) for output in outputs]

        yield "embed", embed
        return
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(orders["num_threads"])
    kind = {"torch_dtype": getattr(torch, options["dtype"])}
    st = SentenceTransformer(model, device="cpu", model_kwargs=kind)
    for size in orders["batch_sizes"]:

        def encode(texts: list[str], size: int = size) -> list[list[float]]:
            rows = st.encode(texts, batch_size=size, convert_to_tensor=True)
            return rows.float().tolist()

        yield f"batches of {size}", encode


def timed(embed: Embed, texts: list[str]) -> tuple[float, Any]:
    """Seconds, and the vectors."""
    begin = time.perf_counter()
    vectors = embed(texts)
    return time.perf_counter() - begin, vectors


def main() -> None:
    orders = session.orders()
    texts = json.loads(Path(orders["texts"]).read_text())
    ways = dict(embedders(orders))
    session.ready(orders["spawned"])
    first = next(iter(ways.values()))
    first(texts[: orders["num_kept"]])
    fastest, sample = first, texts[:SAMPLE]
    least, scale = float("inf"), len(texts) / len(sample)
    for name, embed in ways.items() if len(ways) > 1 else ():
        seconds, vectors = timed(embed, sample)
        session.measured(name, seconds=seconds)
        if seconds < least:
            fastest, least = embed, seconds
        if seconds * scale > PATIENCE:
            break
    if least == float("inf") or least * scale <= PATIENCE:
        least, vectors = timed(fastest, texts)
        scale = 1
    session.measured("all", seconds=least * scale)
    Path(orders["vectors"]).write_text(json.dumps(vectors[: orders["num_kept"]]))


if __name__ == "__main__":
    main()
