"""The measurements as data: steps of the child processes, rows of the table, targets.

A figure's name is `work.value`, such as `decode-32.step_ms`. Knows no engine's command line and
no process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BATCHES = (1, 8, 32, 64)
CHATS = (1, 8, 32)
PROMPT, OUTPUT = 128, 128
NUM_OFFLINE = 64
LONG_PROMPT = 1024
CHAT_OUTPUT = 64
SYSTEM_PROMPT = 1000
NUM_LOOPS = 2
WORKLOADS = {
    "a": "start to ready, memory and idle processor time of a server",
    "b": f"prefill of one prompt of {LONG_PROMPT} tokens",
    "c": "decode at " + ", ".join(map(str, BATCHES)) + " sequences",
    "d": f"offline, {NUM_OFFLINE} x ({PROMPT} in, {OUTPUT} out)",
    "e": f"HTTP, {', '.join(map(str, CHATS))} streaming chats, {PROMPT} in, {CHAT_OUTPUT} out",
    "f": f"HTTP, two chats with one system prompt of {SYSTEM_PROMPT} tokens",
    "g": f"decode at 8 sequences beside {NUM_LOOPS} busy loops",
    "h": "c and d with a Llama of 1.1B parameters, made-up bfloat16 weights",
}
# A Llama of 1.1B parameters (the shape of TinyLlama).
LARGE_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Step = dict[str, Any]


def _decode(prefix: str, num_seqs: int, num_steps: int, times: int) -> Step:
    return {
        "work": f"{prefix}decode-{num_seqs}",
        "kind": "decode",
        "num_seqs": num_seqs,
        "input_len": PROMPT,
        "num_steps": num_steps,
        "times": times,
    }


def _offline(prefix: str) -> Step:
    size = {"num_seqs": NUM_OFFLINE, "input_len": PROMPT, "output_len": OUTPUT}
    return {"work": f"{prefix}offline", "kind": "offline", **size}


def small_steps(letters: str) -> list[Step]:
    """The steps of b, c, d and g that `letters` names."""
    found: list[Step] = []
    if "b" in letters:
        size = {"input_len": LONG_PROMPT, "times": 3}
        found.append({"work": "prefill", "kind": "prefill", **size})
    if "c" in letters:
        found += [_decode("", num_seqs, 48, 2 if num_seqs > 8 else 3) for num_seqs in BATCHES]
    if "d" in letters:
        found.append(_offline(""))
    if "g" in letters:
        step = _decode("", 8, 32, 3)
        found.append(step | {"work": "neighbours", "kind": "neighbours", "num_loops": NUM_LOOPS})
    return found


def large_steps() -> list[Step]:
    """The steps of h."""
    return [_decode("large-", num_seqs, 24, 1) for num_seqs in BATCHES] + [_offline("large-")]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure in the table."""

    name: str
    letter: str
    title: str
    unit: str
    is_less_better: bool = False

    def times_better(self, ours: float, peer: float) -> float:
        """How many times better ours is; above 1 is better, whatever the unit."""
        return peer / ours if self.is_less_better else ours / peer


def _rows() -> list[Row]:
    rows = [
        Row("server.ready_s", "a", "start to ready", "s", True),
        Row("server.over_weights_mb", "a", "memory at rest beyond the weights", "MB", True),
        Row("server.idle_percent", "a", "idle server, share of a core", "%", True),
        Row("prefill.tokens_per_s", "b", f"prefill 1 x {LONG_PROMPT}", "tok/s"),
    ]
    rows += _decode_rows("decode", "c", "decode step")
    rows.append(Row("offline.tokens_per_s", "d", f"offline 64 x {PROMPT}/{OUTPUT}", "tok/s"))
    for n in CHATS:
        chats = "HTTP, 1 chat" if n == 1 else f"HTTP, {n} chats"
        rows.append(Row(f"chat-{n}.tokens_per_s", "e", f"{chats}, output", "tok/s"))
        rows.append(Row(f"chat-{n}.ttft_ms", "e", f"{chats}, median TTFT", "ms", True))
        rows.append(Row(f"chat-{n}.itl_ms", "e", f"{chats}, p99 ITL", "ms", True))
    rows += [
        Row("prefix.first_ms", "f", "long system prompt, first TTFT", "ms", True),
        Row("prefix.share", "f", "the same again, share of the first", "", True),
        Row("neighbours.kept", "g", "speed kept beside busy loops", ""),
    ]
    rows += _decode_rows("large-decode", "h", "1.1B, decode step")
    rows.append(Row("large-offline.tokens_per_s", "h", f"1.1B, 64 x {PROMPT}/{OUTPUT}", "tok/s"))
    return rows


def _decode_rows(work: str, letter: str, title: str) -> list[Row]:
    return [Row(f"{work}-{n}.step_ms", letter, f"{title}, {_many(n)}", "ms", True) for n in BATCHES]


def _many(num_seqs: int) -> str:
    return "1 sequence" if num_seqs == 1 else f"{num_seqs} sequences"


ROWS = _rows()
BF16, Q4_1, VLLM, LLAMACPP = "ours-bf16", "ours-q4_1", "vllm", "llamacpp"
PAIRS = ((BF16, VLLM), (Q4_1, LLAMACPP))

# (row, engine of ours): how many times better than its peer it should be.
TARGET_RATIOS: dict[tuple[str, str], float] = {
    ("server.ready_s", BF16): 20,
    ("prefill.tokens_per_s", BF16): 2.5,
    ("prefill.tokens_per_s", Q4_1): 15,
    ("decode-1.step_ms", BF16): 3,
    ("decode-1.step_ms", Q4_1): 1.6,
    ("decode-8.step_ms", BF16): 4,
    ("decode-32.step_ms", BF16): 5,
    ("decode-64.step_ms", BF16): 5,
    ("decode-64.step_ms", Q4_1): 8,
    ("offline.tokens_per_s", BF16): 5,
    ("chat-32.tokens_per_s", BF16): 5,
    ("chat-32.ttft_ms", BF16): 4,
    ("chat-32.itl_ms", BF16): 4,
    ("large-decode-32.step_ms", BF16): 2,
}

# (row, engine of ours): what the figure itself should be, at most or at least.
TARGET_VALUES: dict[tuple[str, str], float] = {
    ("server.ready_s", Q4_1): 2.5,
    ("server.over_weights_mb", BF16): 500,
    ("server.over_weights_mb", Q4_1): 500,
    ("server.idle_percent", BF16): 1,
    ("prefix.share", BF16): 0.10,
    ("neighbours.kept", BF16): 0.35,
    ("neighbours.kept", Q4_1): 0.35,
}

# (row, engine of ours): the share of the floor that it should reach.
TARGET_SHARES: dict[tuple[str, str], float] = {
    ("decode-1.step_ms", Q4_1): 0.65,
    ("large-decode-1.step_ms", BF16): 0.80,
}
