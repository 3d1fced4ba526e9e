"""The host time of a decode step in the engine core, without the model, by phase.

    python benchmarks/step_overhead.py                     64 sequences, greedy and drawn
    python benchmarks/step_overhead.py --sequences 1 8 64 --json FILE
    python benchmarks/step_overhead.py --groups 1 4        block tables of each sequence

The core is the real one, from message in to message out: channel, scheduler, KV blocks, batch
preparation, sampler, output messages. Its model is none: hidden states and logits lie ready, over
a vocabulary so small that choosing a token is no arithmetic to speak of. The front end is a child
process that only receives. A phase's own time excludes the phases that it calls.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_lite.config.cache import CacheConfig
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec
from vllm_lite.core.pending import PendingOutput
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import EngineCoreRequest, LateMasks, SchedulerOutput
from vllm_lite.engine.core.constraints import Constraints
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.engine.core.loop import CoreLoop
from vllm_lite.engine.link.channel import CoreChannel, FrontEndChannel, Heartbeat
from vllm_lite.engine.link.messages import AddRequests, Shutdown, StepOutputs
from vllm_lite.executor.uniproc import UniprocExecutor
from vllm_lite.sample.sampler import Sampler
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.batch import HostInputs
from vllm_lite.worker.drafting.drafters import Models
from vllm_lite.worker.model_runner import ModelRunner
from vllm_lite.worker.worker import host_runner

VOCAB, WIDTH = 256, 16
MAX_LEN = 4096
# Of one layer each, so that each is a group of its own.
WINDOWS = (None, 1024, 512, 256, 128)
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.7, "top_p": 0.9, "seed": 1},
    "logprobs": {"temperature": 0.0, "logprobs": 1},
}
PHASES: list[tuple[str, Any, str]] = [
    ("messages in", CoreChannel, "receive"),
    ("schedule", Scheduler, "schedule"),
    ("constraints", Constraints, "masks"),
    ("constraints", Constraints, "advance"),
    ("worker: requests", ModelRunner, "_update_requests"),
    ("worker: batch", HostInputs, "model_inputs"),
    ("worker: sampling", Sampler, "choose"),
    ("worker: rest", ModelRunner, "submit"),
    ("update from output", Scheduler, "update_from_output"),
    ("statistics", EngineCore, "make_stats"),
    ("core: rest", EngineCore, "step"),
    ("message out", CoreChannel, "send"),
]


class NoModel:
    """Answers that lie ready."""

    def __init__(self, rows: int, spec: KVCacheSpec) -> None:
        self._spec = spec
        self._hidden = torch.zeros(rows, WIDTH)
        self._logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0))

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self._hidden[: len(input_ids)]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self._logits[: len(hidden)]

    def greedy_tokens(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        largest, tokens = self._logits[: len(hidden)].max(-1)
        return tokens, largest

    def kv_cache_spec(self) -> KVCacheSpec:
        return self._spec


class NoModelWorker:
    """A real ModelRunner over no model."""

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self._runner: ModelRunner | None = None

    def kv_cache_spec(self) -> KVCacheSpec:
        layer = LayerCacheSpec(1, WIDTH, "float32")
        windows = self._config.facts.layer_windows
        return KVCacheSpec(tuple(replace(layer, sliding_window=w) for w in windows))

    def available_memory(self) -> int:
        return 1 << 30

    def initialize_cache(self, plan: KVCachePlan) -> float:
        model: Any = NoModel(self._config.scheduler.max_num_batched_tokens, plan.spec)
        self._runner = host_runner(self._config, plan, Models(model), torch.device("cpu"))
        return 0.0

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> PendingOutput:
        assert self._runner is not None
        return self._runner.submit(step, masks)

    def describe(self) -> str:
        return "no model"


class Clock:
    """The processor time of phases, each without those inside it, in the steps that count."""

    def __init__(self, is_counted: Callable[[StepOutputs], bool]) -> None:
        self._is_counted = is_counted
        self._inside: list[float] = []
        self._step: dict[str, float] = defaultdict(float)
        # One entry a step that counts, in microseconds.
        self.phases: dict[str, list[float]] = defaultdict(list)
        self.wholes: list[float] = []

    def watch(self, label: str, owner: Any, name: str) -> None:
        """Time every call of `owner.name`."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            begun = time.perf_counter()
            try:
                result = function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - begun
                self._step[label] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent
            if name == "send" and isinstance(args[1], StepOutputs):
                self._end_step(args[1])
            return result

        setattr(owner, name, timed)

    def _end_step(self, outputs: StepOutputs) -> None:
        if self._is_counted(outputs):
            for label, _, _ in PHASES:
                self.phases[label].append(self._step.get(label, 0.0) * 1e6)
            self.wholes.append(sum(self._step.values()) * 1e6)
        self._step.clear()


def configuration(sequences: int, groups: int) -> VllmConfig:
    facts = ModelFacts(
        path="",
        format="hf",
        architecture="LlamaForCausalLM",
        hf_config={},
        dtype="float32",
        max_position=MAX_LEN,
        num_layers=groups,
        layer_windows=WINDOWS[:groups],
        hidden_size=WIDTH,
        num_heads=1,
        num_kv_heads=1,
        head_size=WIDTH,
        vocab_size=VOCAB,
    )
    return VllmConfig(
        facts=facts,
        model=ModelConfig(model="none", max_model_len=MAX_LEN),
        cache=CacheConfig(
            # One beside what the sequences take: the null block.
            block_size=16,
            num_gpu_blocks_override=groups * sequences * MAX_LEN // 16 + 1,
        ),
        scheduler=SchedulerConfig(max_num_seqs=sequences, max_num_batched_tokens=8192),
    )


def front_end(args: argparse.Namespace) -> None:
    """Send the requests, receive until all have ended, say stop."""
    channel = FrontEndChannel(socket.socket(fileno=args.channel_fd))
    channel.receive(block=True)
    params = SamplingParams(max_tokens=args.steps, ignore_eos=True, **SAMPLING[args.sampling])
    requests = [
        EngineCoreRequest(
            f"chatcmpl-{i:032x}-{i:08x}.0",
            [(7 * i + j) % VOCAB for j in range(args.prompt_len)],
            params,
            [0],
            time.monotonic(),
        )
        for i in range(args.sequences[0])
    ]
    channel.send(AddRequests(requests))
    left = len(requests)
    while left:
        message = channel.receive(block=True)
        if isinstance(message, StepOutputs):
            left -= sum(output.finish_reason is not None for output in message.outputs)
    channel.send(Shutdown())
    channel.close(linger=5)


def measure(sequences: int, groups: int, sampling: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one core in this process, against a front end in another."""
    end, theirs = socket.socketpair()
    command = [sys.executable, str(Path(__file__).resolve())]
    command += ["--channel-fd", str(theirs.fileno())]
    command += ["--sequences", str(sequences), "--steps", str(args.steps)]
    command += ["--prompt-len", str(args.prompt_len), "--sampling", sampling]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    clock = Clock(lambda step: len(step.outputs) == sequences)
    originals = [(owner, name, getattr(owner, name)) for _, owner, name in PHASES]
    for label, owner, name in PHASES:
        clock.watch(label, owner, name)
    channel = CoreChannel([end])
    try:
        begun = time.process_time()
        CoreLoop(channel, Heartbeat.create()).run(
            lambda: EngineCore(
                configuration(sequences, groups), lambda c: UniprocExecutor(c, NoModelWorker)
            )
        )
        busy = time.process_time() - begun
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)
        channel.close()
        child.wait(30)
    # The first step is the prompts', and a process's first steps warm its caches.
    skipped = min(32, len(clock.wholes) // 4)
    phases = {name: statistics.median(times[skipped:]) for name, times in clock.phases.items()}
    wholes = clock.wholes[skipped:]
    return {
        "sequences": sequences,
        "groups": groups,
        "sampling": sampling,
        "step_us": statistics.median(wholes),
        "step_p99_us": statistics.quantiles(wholes, n=100)[98],
        "process_cpu_us_a_step": busy / max(len(clock.wholes), 1) * 1e6,
        "phases_us": phases,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    heads = [f"{r['sampling']} x {r['sequences']}, {r['groups']}" for r in results]
    lines = [f"{'microseconds a step':<24}" + "".join(f"{head:>16}" for head in heads)]
    for label in dict.fromkeys(label for label, _, _ in PHASES):
        values = "".join(f"{r['phases_us'][label]:>16.1f}" for r in results)
        lines.append(f"{label:<24}{values}")
    for name in ("step_us", "step_p99_us", "process_cpu_us_a_step"):
        lines.append(f"{name:<24}" + "".join(f"{r[name]:>16.1f}" for r in results))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[64])
    parser.add_argument("--sampling", nargs="+", choices=SAMPLING, default=["greedy", "drawn"])
    parser.add_argument("--groups", type=int, nargs="+", choices=range(1, 6), default=[1])
    parser.add_argument("--steps", type=int, default=512, help="tokens of each sequence")
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit-us", type=float, help="exit code 1 if a median step takes longer")
    parser.add_argument("--channel-fd", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.channel_fd is not None:
        args.sampling = args.sampling[0]
        front_end(args)
        return 0
    torch.set_num_threads(1)
    cases = itertools.product(args.sequences, args.groups, args.sampling)
    results = [measure(*case, args) for case in cases]
    print(table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(args.limit_us is not None and max(r["step_us"] for r in results) > args.limit_us)


if __name__ == "__main__":
    sys.exit(main())
