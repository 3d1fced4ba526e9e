"""Write golden_demo.json: the prompts' ids and transformers' greedy continuation in float32.

    python -m tests.e2e.make_golden

Run it only when the prompts change; a test recomputes a few entries on every run.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests import oracle
from tests.e2e import prompts
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.tokenizer import load_tokenizer

GOLDEN = Path(__file__).with_name("golden_demo.json")
NUM_TOKENS = 64


def main() -> None:
    tokenizer = load_tokenizer(EngineArgs(model="demo").create_engine_config())
    model = oracle.demo_hf_model()
    entries = []
    kinds = {
        "chat": prompts.CHAT,
        "text": prompts.TEXT,
        "code": prompts.CODE,
        "non-latin": prompts.NON_LATIN,
        "long": prompts.LONG,
    }
    for kind, texts in kinds.items():
        for text in texts:
            if kind == "chat":
                rendered = render_chat(tokenizer, [{"role": "user", "content": text}])
                ids = tokenizer.encode(rendered, add_special_tokens=False)
            else:
                ids = tokenizer.encode(text)
            output, gaps = oracle.greedy(model, ids, NUM_TOKENS)
            entries.append(
                {
                    "kind": kind,
                    "prompt": text,
                    "prompt_token_ids": list(ids),
                    "output_token_ids": [int(i) for i in output],
                    "top2_gaps": [round(float(g), 5) for g in gaps],
                }
            )
            print(f"{kind:10} {len(ids):4} ids, smallest gap {min(gaps):.5f}", flush=True)
    GOLDEN.write_text(json.dumps(entries, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
