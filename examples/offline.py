"""Generate and chat without a server: prompts in, results out, in order."""

from vllm_lite import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]
MESSAGES = [{"role": "user", "content": "Name three primary colours."}]


def main() -> None:
    # A hub id, a model directory or a .gguf file works as well as "demo".
    with LLM("demo", max_model_len=1024) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=24)
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
        [reply] = llm.chat(MESSAGES, params)
        print(f"reply: {reply.outputs[0].text!r} ({reply.outputs[0].finish_reason})")


if __name__ == "__main__":
    main()
