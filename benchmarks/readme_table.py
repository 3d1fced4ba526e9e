"""README's figures of speed beside other engines, made from a results file.

    python benchmarks/readme_table.py       rewrites what stands between two comments of README.md

Knows which rows README shows and in which words; the figures are medians of results/peers.json.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from peers.results import Results, load
from peers.workloads import BF16, LLAMACPP, NUM_OFFLINE, OUTPUT, PROMPT, Q4_1, ROWS, VLLM

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results" / "peers.json"
BEGIN, END = (
    "<!-- benchmarks/readme_table.py: begin -->",
    "<!-- benchmarks/readme_table.py: end -->",
)
WIDTH = 104
# The best of a processor's instruction sets is what it is called by.
INSTRUCTION_SETS = {
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX512-VNNI",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}


def with_figures(readme: str, results: Results) -> str:
    """The page with the figures of these results."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures(results)}\n{END}{after}"


def figures(results: Results) -> str:
    """The workload, the table, and a paragraph about many chats."""

    def of(row: str, engine: str) -> float:
        (known,) = (one for one in ROWS if one.name == row)
        value = results.median(known, engine)
        assert value is not None, f"the results have no {row} of {engine}"
        return value

    machine = results.machine
    best = next(
        title for name, title in INSTRUCTION_SETS.items() if name in machine["instruction_sets"]
    )
    workload = (
        f"SmolLM2-135M offline, {NUM_OFFLINE} prompts of {PROMPT} tokens, {OUTPUT} out, a decode "
        "step of one sequence, and the start of its server, on "
        f"{machine['threads_used']} cores with {best} ({machine['processor']}, "
        f"family {machine['family']}, model {machine['model']}; {machine['date']}); "
        f"medians of {results.num_rounds} rounds, each engine in a fresh process in turn:"
    )
    vllm = "vLLM " + ".".join(results.engines[VLLM]["version"].split()[-1].split(".")[:2])
    titles = {
        BF16: "vllm-lite, bfloat16",
        Q4_1: "vllm-lite, Q4_1 (`--quantization gguf`)",
        VLLM: f"{vllm} on CPU, bfloat16",
        LLAMACPP: "llama.cpp, Q4_1",
    }
    rows = ["| | output tokens/s | one sequence | start to ready |", "| --- | --- | --- | --- |"]
    for engine, title in titles.items():
        rate, step = of("offline.tokens_per_s", engine), of("decode-1.step_ms", engine)
        unit = "ms a token" if engine == BF16 else "ms"
        ready = of("server.ready_s", engine)
        rows.append(f"| {title} | {rate:,.0f} | {step:.1f} {unit} | {ready:.1f} s |")
    rate, theirs = of("chat-32.tokens_per_s", BF16), of("chat-32.tokens_per_s", VLLM)
    first, their_first = (of("chat-32.ttft_ms", one) / 1000 for one in (BF16, VLLM))
    gap, their_gap = of("chat-32.itl_ms", BF16), of("chat-32.itl_ms", VLLM)
    chats = (
        f"32 chats at once over HTTP: {rate:,.0f} tokens/s against vLLM's {theirs:,.0f}, a median "
        f"first token after {first:.2f} s against {their_first:.2f} s, and p99 gaps between tokens "
        f"of {gap:,.0f} ms against {their_gap:,.0f} ms."
    )
    return "\n\n".join(
        [textwrap.fill(workload, WIDTH), "\n".join(rows), textwrap.fill(chats, WIDTH)]
    )


def main() -> None:
    readme = README.read_text("utf-8")
    README.write_text(with_figures(readme, load(RESULTS, {})), "utf-8")


if __name__ == "__main__":
    main()
