"""The front end's state of a pooling request."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.core.step import EngineCoreOutput
from vllm_lite.engine.front.request_state import ChoiceState, RequestState
from vllm_lite.metrics.request_stats import StepStats
from vllm_lite.outputs import PoolingOutput, PoolingRequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams

_NO_TEXT = SamplingParams(detokenize=False)


class PooledChoice(ChoiceState):
    """The one result of a request."""

    def __init__(self, request: RequestState, core_id: str) -> None:
        super().__init__(request, core_id, 0, None, _NO_TEXT)
        self.vector = b""

    def update(self, output: EngineCoreOutput) -> bool:
        """Take in a step's output; raises ValueError for an end without a vector."""
        if output.pooled is not None:
            self.vector = output.pooled
        elif output.finish_reason == "stop":
            raise ValueError("the engine core sent no vector")
        return super().update(output)

    def observe(self, output: EngineCoreOutput, now: float, stats: StepStats) -> None:
        """Count the prompt once it is computed."""
        super().observe(output, now, stats)
        if output.pooled is not None:
            self.count_prompt(now, stats)


@dataclass(slots=True, eq=False)
class PoolingState(RequestState):
    """A pooling request with its one choice."""

    def take_output(self) -> PoolingRequestOutput[PoolingOutput] | None:
        """The vector, once it is there; empty where there will be none."""
        if not self.is_finished:
            return None
        import torch  # here: a front end that generates text never loads it

        (choice,) = self.choices
        assert isinstance(choice, PooledChoice)
        vector = bytearray(choice.vector)
        data = torch.frombuffer(vector, dtype=torch.float32) if vector else torch.empty(0)
        params = self.input.params
        if vector and isinstance(params, PoolingParams) and params.is_per_token:
            data = data.view(len(self.input.prompt_token_ids), -1)
        return PoolingRequestOutput(
            request_id=self.request_id,
            outputs=PoolingOutput(data),
            prompt_token_ids=self.input.prompt_token_ids,
            num_cached_tokens=choice.num_cached_tokens,
            finished=True,
            error=None if choice.finish_reason == "stop" else str(choice.stop_reason),
        )
