"""Small engines for the engine's tests: a scripted model, a byte tokenizer, nothing to load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tests.builders import TINY_FACTS
from tests.fakes import ScriptedExecutor
from vllm_lite.config.cache import CacheConfig
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.observability import ObservabilityConfig
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import ModelRunnerOutput, SchedulerOutput
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.engine.front.sync_llm import LLMEngine
from vllm_lite.engine.link.inproc_client import CoreThread, InprocClient
from vllm_lite.outputs import RequestOutput
from vllm_lite.tokenizer.parts import TokenizerParts
from vllm_lite.tokenizer.tokenizer import Tokenizer

VOCAB_SIZE = 256
EOS = 0
NextToken = Callable[[str, list[int]], int]
# Called before a step runs, with the step.
StepHook = Callable[[SchedulerOutput], None]


def byte_tokenizer() -> Tokenizer:
    """The id of a byte is the byte, so `ord` and `encode` say what a test expects."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable}
    vocabulary |= {chr(0x100 + index): byte for index, byte in enumerate(rest)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerParts(backend))


def engine_config(
    *,
    max_model_len: int = 256,
    num_blocks: int = 200,
    log_stats: bool = True,
    generation_config: dict[str, Any] | None = None,
    max_logprobs: int = 20,
    pooling: PoolingFacts | None = None,
    **scheduler: Any,
) -> VllmConfig:
    """A config of a model of bytes; `scheduler` are SchedulerConfig's options."""
    facts = replace(
        TINY_FACTS,
        path="/nowhere",
        max_position=4096,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(EOS,),
        generation_config=generation_config or {},
        pooling=pooling,
    )
    return VllmConfig(
        facts=facts,
        model=ModelConfig(
            model="tiny",
            max_model_len=max_model_len,
            max_logprobs=max_logprobs,
            tokenizer="tiny",
            runner="generate" if pooling is None else "pooling",
        ),
        cache=CacheConfig(block_size=8, num_gpu_blocks_override=num_blocks),
        scheduler=SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **scheduler}),
        observability=ObservabilityConfig(disable_log_stats=not log_stats),
    )


def says(text: str) -> NextToken:
    """A model whose every answer is `text`, then the end."""

    def next_token(request_id: str, token_ids: list[int]) -> int:
        spoken = token_ids[token_ids.index(ord(">")) + 1 :]
        return text.encode()[len(spoken)] if len(spoken) < len(text.encode()) else EOS

    return next_token


class Scripted:
    """An executor class for a core that makes its own; `made` is what it made."""

    def __init__(self, next_token: NextToken | None = None, step: StepHook | None = None):
        self.next_token = next_token
        self.step = step
        self.made: ScriptedExecutor

    def __call__(self, config: VllmConfig) -> ScriptedExecutor:
        self.made = ScriptedExecutor(config, vocab_size=VOCAB_SIZE, next_token=self.next_token)
        if self.step is not None:
            run, hook = self.made.execute_model, self.step

            def execute_model(step: SchedulerOutput) -> ModelRunnerOutput:
                hook(step)
                return run(step)

            self.made.execute_model = execute_model  # type: ignore[method-assign]
        return self.made


def sync_engine(next_token: NextToken | None = None, **options: Any) -> LLMEngine:
    """An engine in this thread."""
    config = engine_config(**options)
    core = InprocClient(config, Scripted(next_token))
    return LLMEngine(config, core, byte_tokenizer())


def run_all(engine: LLMEngine) -> list[RequestOutput]:
    """Every output until nobody waits."""
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


@asynccontextmanager
async def async_engine(
    next_token: NextToken | None = None,
    *,
    step: StepHook | None = None,
    **options: Any,
) -> AsyncIterator[tuple[AsyncLLM, Scripted]]:
    """An engine whose core runs in a thread, over real sockets."""
    config = engine_config(**options)
    executor = Scripted(next_token, step)
    core = CoreThread(executor)
    core.start(config)
    engine = AsyncLLM(config, core, tokenizer=byte_tokenizer())
    try:
        yield engine, executor
    finally:
        await engine.shutdown()
