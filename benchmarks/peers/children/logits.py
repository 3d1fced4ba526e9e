"""Logits of llama.cpp, in llama-cpp-python's own environment.

    PYTHON logits.py

Reads lines [MODEL, IDS, OUTPUT] and answers each with a line: the rows
and columns of the float32 logits that it wrote to `output`, or the reason that there are none.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp as lib

GGML_F32 = 0


def logits(path: str, ids: list[int], output: str) -> dict[str, Any]:
    """Write the logits of every token of `ids`."""
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    if not model:
        return {"error": "the model was not loaded"}
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_threads = params.n_threads_batch = 1
    # Nothing is rounded, so that what differs is arithmetic.
    params.type_k = params.type_v = GGML_F32
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = lib.llama_init_from_model(model, params)
    if not context:
        return {"error": "no context was made"}
    batch = lib.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    if status := lib.llama_decode(context, batch):
        return {"error": f"llama_decode gave {status}"}
    size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    values = lib.llama_get_logits(context)
    with open(output, "wb") as file:
        file.write(ctypes.string_at(values, len(ids) * size * 4))
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return {"shape": [len(ids), size]}


def main() -> None:
    said: list[str] = []

    @lib.llama_log_callback
    def note(level: int, text: bytes, _: Any) -> None:
        if level >= 3:
            said.append(text.decode(errors="replace").strip())

    lib.llama_log_set(note, ctypes.c_void_p(0))
    lib.llama_backend_init()
    for line in sys.stdin:
        said.clear()
        answer = logits(**dict(zip(("path", "ids", "output"), json.loads(line), strict=True)))
        if "error" in answer and said:
            answer["error"] += f": {' / '.join(said[:2])}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
