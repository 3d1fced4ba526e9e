"""Ask a running server with the OpenAI client (pip install openai): `vllm-lite serve demo` first.

python examples/chat_client.py [http://localhost:8000/v1]
"""

import sys

from openai import OpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"


def main() -> None:
    client = OpenAI(base_url=BASE_URL, api_key="EMPTY")
    model = client.models.list().data[0].id
    reply = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": "Answer in one short sentence."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        temperature=0.0,
        max_tokens=32,
        # Fields beyond OpenAI's own go here.
        extra_body={"repetition_penalty": 1.05},
    )
    print(f"{model}: {reply.choices[0].message.content!r}")
    print(f"finish_reason: {reply.choices[0].finish_reason}, usage: {reply.usage}")


if __name__ == "__main__":
    main()
