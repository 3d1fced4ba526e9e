"""Print a reply while a running server writes it, then what it cost (pip install openai).

python examples/streaming_client.py [http://localhost:8000/v1]
"""

import sys

from openai import OpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"


def main() -> None:
    client = OpenAI(base_url=BASE_URL, api_key="EMPTY")
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Tell me a very short story about a fox."}],
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        # The last chunk has no choices: it carries the usage.
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            print(f"\n{chunk.usage.completion_tokens} tokens")


if __name__ == "__main__":
    main()
