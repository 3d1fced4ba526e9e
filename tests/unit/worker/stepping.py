"""Drives a ModelRunner step by step, with the scheduler's part played by the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from tests.builders import core_config
from tests.stand_in_device import StandInDevice
from tests.unit.worker.tiny_model import TinyModel
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.step import (
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker.drafting.drafters import Models
from vllm_lite.worker.gpu_worker import device_runner
from vllm_lite.worker.graph_shapes import GraphShape
from vllm_lite.worker.kv_cache import allocate_kv_cache
from vllm_lite.worker.worker import host_runner

VOCAB = 101  # of the builders' facts


@dataclass
class Running:
    """A request as the scheduler sees it."""

    prompt: list[int]
    params: SamplingParams
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    is_known: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    def is_due(self, count: int) -> bool:
        """Whether it samples once so many more tokens are computed."""
        return self.num_computed + count == self.num_tokens


class Stepper:
    """A runner over a tiny model, and block ids to give out."""

    # Sizes of graphs for a runner as on a device; None: one as on a CPU.
    graph_sizes: ClassVar[tuple[int, ...] | None] = None
    longer: ClassVar[tuple[GraphShape, ...]] = ()

    def __init__(
        self,
        block_size: int = 8,
        num_blocks: int = 200,
        on_host: bool = False,
        **options: Any,
    ) -> None:
        self.model = TinyModel(VOCAB)
        config = core_config(block_size=block_size, **options)
        spec = self.model.kv_cache_spec()
        plan = KVCachePlan(spec, num_blocks, block_size, 0)
        self.model.bind_kv_cache(allocate_kv_cache(plan, torch.device("cpu")))
        device = torch.device("cpu")
        if on_host or self.graph_sizes is None:
            runner = host_runner(config, plan, Models(self.model), device)
        else:
            graphed = self.graph_sizes, self.longer
            runner, _ = device_runner(config, plan, Models(self.model), StandInDevice(), *graphed)
        self.runner = runner
        self.submit = runner.submit
        self.requests_of_runner = runner._requests
        self.block_size = block_size
        # Scattered, so that neighbours in a request are none in memory.
        self.free_blocks = [1 + (i * 37) % (num_blocks - 1) for i in range(num_blocks - 1)]
        self.requests: dict[str, Running] = {}
        self._gone: list[str] = []
        self._preempted: list[str] = []

    def add(self, request_id: str, prompt: list[int], **params: Any) -> Running:
        """Make a request waiting."""
        params = {"temperature": 0.0, "max_tokens": None, **params}
        self.requests[request_id] = Running(prompt, SamplingParams(**params))
        return self.requests[request_id]

    def preempt(self, request_id: str) -> None:
        """Take a request's blocks; the next step that names it starts it anew."""
        request = self.requests[request_id]
        self.free_blocks += request.blocks
        request.blocks, request.num_computed, request.is_known = [], 0, False
        self._preempted.append(request_id)

    def finish(self, request_id: str) -> None:
        """Let a request go."""
        self.free_blocks += self.requests.pop(request_id).blocks
        self._gone.append(request_id)

    def step(self, counts: dict[str, int]) -> ModelRunnerOutput:
        """Compute so many tokens of each request; what they sampled becomes known."""
        new: list[NewRequestData] = []
        new_blocks: dict[str, list[list[int]]] = {}
        for request_id, count in counts.items():
            request = self.requests[request_id]
            assert 0 < count <= request.num_tokens - request.num_computed
            needed = -(-(request.num_computed + count) // self.block_size)
            added = [self.free_blocks.pop() for _ in range(needed - len(request.blocks))]
            request.blocks += added
            if request.is_known:
                new_blocks |= {request_id: [added]} if added else {}
            else:
                new.append(
                    NewRequestData(
                        request_id,
                        request.prompt,
                        request.params,
                        [list(request.blocks)],
                        request.num_computed,
                        list(request.output),
                    )
                )
                request.is_known = True
        verified = {i: int(self.requests[i].is_due(count)) for i, count in counts.items()}
        step = SchedulerOutput(
            new, new_blocks, counts, verified, sum(counts.values()), self._gone, self._preempted
        )
        self._gone, self._preempted = [], []
        output = self.submit(step).get()
        self._learn(counts, output)
        return output

    def generate(self, num_tokens: int, chunk: int, limit: int = 10**9) -> None:
        """Step all requests, at most `chunk` tokens each, until each has `num_tokens` outputs."""
        for _ in range(limit):
            counts = {
                request_id: min(chunk, request.num_tokens - request.num_computed)
                for request_id, request in self.requests.items()
                if len(request.output) < num_tokens and request.error is None
            }
            if not counts:
                return
            self.step(counts)

    def _learn(self, counts: dict[str, int], output: ModelRunnerOutput) -> None:
        for request_id, count in counts.items():
            request = self.requests[request_id]
            due = request.is_due(count)
            request.num_computed += count
            request.prompt_logprobs += output.prompt_logprobs.get(request_id, [])
            request.error = output.errors.get(request_id)
            assert due == (request_id in output.sampled_token_ids or request.error is not None)
            request.output += output.sampled_token_ids.get(request_id, [])
            request.logprobs += output.logprobs.get(request_id, [])
