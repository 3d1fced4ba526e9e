"""Stream several prompts at once inside an asyncio program of your own."""

import asyncio

from vllm_lite import AsyncEngineArgs, AsyncLLM, SamplingParams
from vllm_lite.sampling_params import RequestOutputKind

PROMPTS = ["The sea is", "The sky is", "The forest is"]
# DELTA: each output carries only what is new.
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, output_kind=RequestOutputKind.DELTA)


async def tell(engine: AsyncLLM, number: int, prompt: str) -> str:
    text = prompt
    async for output in engine.generate(prompt, PARAMS, request_id=f"story-{number}"):
        text += output.outputs[0].text
    return text


async def main() -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="demo", max_model_len=1024))
    try:
        stories = (tell(engine, number, prompt) for number, prompt in enumerate(PROMPTS))
        for story in await asyncio.gather(*stories):
            print(repr(story))
    finally:
        await engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
