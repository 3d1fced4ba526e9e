"""A model of 8B parameters in 4 bits on this machine: its start, its speed and its memory.

    python benchmarks/large_gguf.py                    five rounds, 5 GB of disk and 10 GB of memory
    python benchmarks/large_gguf.py --layers 4 --rounds 1

A GGUF file in Llama-3.1-8B's shape with random Q4_0 weights is written once to --folder (kept for
the next run if named). Each round reads the file, so that the system's cache holds it, starts an
engine in a fresh process and decodes one stream. Start is the time until the engine is ready; a
part of it, writing as many bytes of new memory by all threads, is measured before each round. Floor
of a token: reading the weights that it uses at the machine's limit, measured before each round;
the median token is compared with the median limit.
Memory is the process's own, less what it had before the engine, over the weights in the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from kernels.limits import measure_limits, typical
from peers.machine import describe_machine

from vllm_lite.platform import num_compute_threads

HIDDEN, WIDE, HEADS, KV_HEADS, VOCABULARY = 4096, 14336, 32, 8, 128256
KEYS = HIDDEN // HEADS * KV_HEADS
BLOCK, BLOCK_BYTES = 32, 18
KV_BYTES, SHORT, LONG = 256 << 20, 4, 36
START_GOAL, SPEED_GOAL, MEMORY_GOAL = 5.0, 0.8, 1.05
CHILD = """
import json, sys, time
start = time.time()
from pathlib import Path
from vllm_lite import LLM, SamplingParams
def own_memory():
    status = Path("/proc/self/status").read_text()
    own = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(own.split()[1]) * 1024

if __name__ == "__main__":
    before = own_memory()
    llm = LLM(sys.argv[1], skip_tokenizer_init=True, max_model_len=1024, max_num_seqs=4,
              kv_cache_memory_bytes=int(sys.argv[2]), disable_frontend_multiprocessing=True)
    ready = time.time() - start
    seconds = {}
    for tokens in (2, *map(int, sys.argv[3:])):
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        llm.generate([{"prompt_token_ids": list(range(9, 25))}], params, use_tqdm=False)
        seconds[tokens] = time.perf_counter() - begin
    memory = own_memory() - before
    print(json.dumps({"ready": ready, "seconds": seconds, "memory": memory}))
    llm.close()
"""

# How long so many bytes of new memory take to be written: a copy of the weights needs them.
WRITE = """
import ctypes, sys, threading, time
from vllm_lite.kernels.cpu.mapped_memory import map_zeros
memory, count = map_zeros(int(sys.argv[1])), int(sys.argv[2])
part = len(memory) // count
places = [memory.data_ptr() + i * part for i in range(count)]
threads = [threading.Thread(target=ctypes.memset, args=(place, 1, part)) for place in places]
start = time.perf_counter()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(time.perf_counter() - start)
"""


def write_file(path: Path, num_layers: int) -> int:
    """Write the file unless it is there; the bytes of its weights."""
    matrices = {"token_embd": (VOCABULARY, HIDDEN), "output": (VOCABULARY, HIDDEN)}
    for layer in range(num_layers):
        of_layer = {"attn_q": (HIDDEN, HIDDEN), "attn_output": (HIDDEN, HIDDEN)}
        of_layer |= dict.fromkeys(("attn_k", "attn_v"), (KEYS, HIDDEN))
        of_layer |= dict.fromkeys(("ffn_gate", "ffn_up"), (WIDE, HIDDEN))
        of_layer["ffn_down"] = (HIDDEN, WIDE)
        matrices |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    num_bytes = sum(rows * columns // BLOCK * BLOCK_BYTES for rows, columns in matrices.values())
    if path.exists() and path.stat().st_size > num_bytes:
        return num_bytes
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(num_layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(VOCABULARY)])
    # All tensors are the first bytes of one: blocks of a scale and 32 codes.
    most = VOCABULARY * HIDDEN // BLOCK
    blocks = np.random.default_rng(0).integers(0, 256, (most, BLOCK_BYTES), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.003).tobytes(), np.uint8)
    kind = gguf.GGMLQuantizationType.Q4_0
    for name, (rows, columns) in matrices.items():
        row = columns // BLOCK * BLOCK_BYTES
        values = blocks.reshape(-1)[: rows * row].reshape(rows, row)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)
    ones = np.ones(HIDDEN, np.float32)
    norms = [f"blk.{i}.{name}" for i in range(num_layers) for name in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()
    return num_bytes


def run_round(path: Path) -> dict[str, Any]:
    """A start and a stream of a fresh process."""
    with path.open("rb") as file:
        while file.read(64 << 20):
            pass
    told: dict[str, Any] = json.loads(run_child(CHILD, path, KV_BYTES, SHORT, LONG))
    return told


def run_child(program: str, *arguments: object) -> str:
    """The last line that a fresh process prints."""
    words = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path, help="write JSON here")
    args = parser.parse_args()
    if args.layers < 1 or args.rounds < 1:
        parser.error("--layers and --rounds must be at least 1")
    if args.folder is not None and not args.folder.is_dir():
        parser.error(f"--folder {args.folder} is no folder")
    threads = num_compute_threads()
    with tempfile.TemporaryDirectory() as made:
        path = (args.folder or Path(made)) / f"llama_{args.layers}.gguf"
        num_bytes = write_file(path, args.layers)
        limits, rounds, writing = [], [], []
        for _ in range(args.rounds):
            limits.append(measure_limits(threads))
            writing.append(float(run_child(WRITE, num_bytes, threads)))
            rounds.append(run_round(path))
        limits.append(measure_limits(threads))
    limit = typical(limits)
    if limit is None:
        raise SystemExit("no C++ compiler, so that no limits can be measured")
    # Of the embedding a token uses a row.
    used = num_bytes - VOCABULARY * HIDDEN // BLOCK * BLOCK_BYTES
    tokens = [
        (one["seconds"][str(LONG)] - one["seconds"][str(SHORT)]) / (LONG - SHORT) for one in rounds
    ]
    start = statistics.median(one["ready"] for one in rounds)
    token = statistics.median(tokens)
    share = used / token * 1e-9 / limit.read_gb_s
    memory = max(one["memory"] for one in rounds) / num_bytes
    rows = [
        ("of it, new memory, s", statistics.median(writing), "", None),
        ("start to ready, s", start, f"<= {START_GOAL}", start <= START_GOAL),
        ("one token, ms", token * 1e3, "", None),
        ("share of the floor", share, f">= {SPEED_GOAL}", share >= SPEED_GOAL),
        ("memory over weights", memory, f"<= {MEMORY_GOAL}", memory <= MEMORY_GOAL),
    ]
    print(f"{num_bytes / 1e9:.2f} GB of weights; reads {limit.read_gb_s:.1f} GB/s")
    for name, value, goal, is_met in rows:
        print(f"{name:22} {value:8.2f}  {goal:8} {'' if is_met is None else is_met}")
    if args.output:
        found = {"machine": describe_machine(), "layers": args.layers, "limits": asdict(limit)}
        found |= {"weight_bytes": num_bytes, "token_seconds": tokens, "rounds": rounds}
        found |= {name: value for name, value, _, _ in rows}
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
