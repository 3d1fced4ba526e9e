"""docs/server.md, made from the application: `python -m tests.server.make_docs > docs/server.md`.

Routes and fields come from the OpenAPI document, so that the page cannot say what is not so.
Knows no route; what stands around the tables is written here. Invariant: the same application
gives the same page.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from typing import Any

Properties = dict[str, dict[str, Any]]

INTRO = """\
# The server

Made by `python -m tests.server.make_docs > docs/server.md`; the tables are those of the running
application, whose OpenAPI document is at `/openapi.json`. Options are in [cli.md](cli.md), what
differs from vLLM in [differences.md](differences.md).

Any client of OpenAI's API works with `base_url` set to `http://HOST:PORT/v1`. Fields that OpenAI's
API does not have go into `extra_body` there. Unknown fields are ignored, and logged once. Numbers
and booleans are read leniently (`"5"` is 5); `null` means that the field is absent.

With `--api-key` (or `VLLM_API_KEY`) every route but `/health`, `/ping`, `/version`, `/metrics`
and the files of the page at `/` needs `Authorization: Bearer KEY` (or `x-api-key: KEY`).

## Errors

Every route reports errors as one object, in which `param` names the field at fault:

```json
{"error": {"message": "...", "type": "BadRequestError", "param": "temperature", "code": 400}}
```

`/v1/messages` adds `"type": "error"`. 400: the request is wrong; 401: the key; 404: no such model,
route or stored object; 413: the body is too large; 429: the queue is full, with `Retry-After`; 500:
the request failed, and the log has more under the id in the message; 503: the server is shutting
down. A streaming request that is refused gets a status too; only a failure in mid-stream is an
event, before `data: [DONE]`.

## Replies of chat and completions

| `finish_reason` | `stop_reason` | when |
| --- | --- | --- |
| `stop` | null | the model ended its text |
| `stop` | token id | one of `stop_token_ids` |
| `stop` | text | one of `stop`; the text is cut before it, its tokens are counted |
| `length` | null | `max_tokens`, or the end of the context |
| `tool_calls` | null | the model called tools (a tool that the request names finishes `stop`) |
| `repetition` | `repetition_detected` | `repetition_detection` |
| `abort` | null | the server ended it |

`usage` has `prompt_tokens`, `total_tokens`, `completion_tokens`; with
`--enable-prompt-tokens-details` also `prompt_tokens_details.cached_tokens`; with a reasoning parser
also `completion_tokens_details.reasoning_tokens`. With `--enable-per-request-metrics` a reply of
one choice has `metrics`: `time_to_first_token_ms`, `generation_time_ms`, `queue_time_ms`,
`mean_itl_ms`, `tokens_per_second`; in a stream they come with the usage.

Reasoning (`--reasoning-parser`) is in both `reasoning` and `reasoning_content`. Tool calls that the
model chooses (`auto`) need `--enable-auto-tool-choice --tool-call-parser NAME`; `required` and a
named function work with any model, and their arguments always follow the function's schema.

`/tokenize` takes a `prompt`, or `messages` with the other fields that shape a chat's prompt:
`tools`, `documents`, `chat_template`, `chat_template_kwargs`, `add_generation_prompt`,
`continue_final_message`.

A request with the header `endpoint-load-metrics-format: JSON` (or `TEXT`) to chat, completions or
`/invocations` gets `endpoint-load-metrics` in reply, an ORCA report of `kv_cache_usage_perc` and
`num_requests_waiting`, for load balancers.

A request's structured output is given by `response_format` or `structured_outputs`; a schema,
regular expression or grammar that cannot be used is a 400 that says why.

## Embeddings, classes and scores

A server answers the routes of its model's tasks, which `/v1/models` tells; the others refuse with
400 and the option that would help. A model that generates has `/v1/chat/completions` and its like,
one that embeds `/v1/embeddings` and `/v2/embed`, one with classes `/classify`; `/score` and
`/rerank` come with models that embed and with cross-encoders, `/pooling` with all of these:
[pooling.md](pooling.md).

## Responses, messages, batches

`/v1/responses` returns items: `reasoning`, `message` and `function_call`, in the order of the
text. An `item_reference` in the input stands for an item of a stored response. A stream numbers
its events and ends with `response.completed`, `response.incomplete` (the length was reached) or
`response.failed`; there is no `[DONE]`. Responses are stored in the server's memory, up to 1000 of
them, 256 MiB and one day, least recently used first out, each visible only to the API key that
made it. A background response outlives its client. GET returns it; if it was created with
`stream`, `?stream=true&starting_after=K` repeats the events after number K and continues. With
`VLLM_ENABLE_RESPONSES_API_STORE=0`, or `--api-server-count` above 1, nothing is stored, and
`background` and `previous_response_id` are refused.

`/v1/messages` returns blocks: `thinking`, `text` and `tool_use`. `stop_reason` is `end_turn`,
`max_tokens`, `stop_sequence` or `tool_use`. A failure in mid-stream is the event `error`.

`/v1/chat/completions/batch` takes a list of conversations as `messages` and returns a whole choice
for each. `/invocations` takes the body of chat or of completions; of a model that pools, that of
embeddings, classes, scores, reranking or pooling, which its fields tell.

With `--batch-storage-dir`, `/v1/files` and `/v1/batches` are OpenAI's: [batches.md](batches.md).

## Dev mode

`VLLM_SERVER_DEV_MODE=1` adds routes that pause and describe the engine. `/pause` holds new
requests; running ones end with `abort` under `mode=abort`, finish before the answer under `wait`,
and stop where they are under `keep`. `/resume` continues all. `clear_cache=false` keeps cached
prefixes. With `--enable-sleep-mode`, `/sleep` pauses the same way and returns the KV cache's
memory until `/wake_up`; `level=2` returns the weights' too, which are read again, and `level=0`
keeps both. `/abort_requests` ends the requests in `request_ids`,
or all that the answering process serves.
"""


def main() -> None:
    """Print the page."""
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    print(render(document()), end="")


def document() -> dict[str, Any]:
    """The OpenAPI document with every route there is."""
    from tests.server.fake_client import FakeEngineClient
    from tests.server.harness import app_of
    from vllm_lite.config.pooling import PoolingFacts

    with tempfile.TemporaryDirectory() as storage:
        options = {"enable_tokenizer_info_endpoint": True, "batch_storage_dir": storage}
        document: dict[str, Any] = app_of(**options).openapi()
    tasks = PoolingFacts(tasks=("embed", "classify"))
    pooling: dict[str, Any] = app_of(FakeEngineClient(pooling=tasks)).openapi()
    for found, known in (
        (pooling["paths"], document["paths"]),
        (pooling["components"]["schemas"], document["components"]["schemas"]),
    ):
        known |= {name: one for name, one in found.items() if name not in known}
    return document


def render(document: dict[str, Any]) -> str:
    """The page."""
    bodies: dict[str, Properties] = {}
    required: dict[str, set[str]] = {}
    lines = [INTRO, "## Routes\n", "| | | |", "| --- | --- | --- |"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            summary = operation.get("summary", "").splitlines()[0].rstrip(".")
            lines.append(f"| {method.upper()} | `{path}` | {summary} |")
            content = operation.get("requestBody", {}).get("content", {})
            schema = next(iter(content.values()), {}).get("schema")
            if schema is not None:
                model = resolved(schema, document)
                if model.get("properties") in bodies.values():
                    continue
                bodies[path] = model.get("properties", {})
                required[path] = set(model.get("required", ()))
    chat, completion = bodies["/v1/chat/completions"], bodies["/v1/completions"]
    shared = {name: value for name, value in chat.items() if completion.get(name) == value}
    known = {"of chat and completions": shared}
    lines += ["", *section("Fields of chat and completions", shared, document, set())]
    for path, properties in bodies.items():
        own, title = properties, f"Fields of `{path}`"
        for family, base in known.items():
            if base.keys() <= properties.keys():
                own = {n: v for n, v in properties.items() if base.get(n) != v}
                title = f"Fields of `{path}` beside those {family}"
        known[f"of `{path}`"] = properties
        # A field of chat's name means what it means there.
        told = {name: described(value, chat.get(name, {})) for name, value in own.items()}
        lines += section(title, told, document, required[path])
    return "\n".join(lines).rstrip() + "\n"


def described(field: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """A field, with the words of one like it where it has none."""
    return {"description": like.get("description", "")} | field


def section(
    title: str, properties: Properties, document: dict[str, Any], required: set[str]
) -> list[str]:
    """A heading and a table of fields."""
    lines = [f"## {title}\n", "| field | type | default | |", "| --- | --- | --- | --- |"]
    for name, value in properties.items():
        default = json.dumps(value["default"]) if value.get("default") is not None else ""
        shown = "required" if name in required else f"`{default}`" if default else ""
        text = " ".join(value.get("description", "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {kind(value, document)} | {shown} | {text} |")
    return [*lines, ""]


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The target of a reference."""
    if "anyOf" in schema:
        # Of several bodies the first is the plainest.
        return resolved(schema["anyOf"][0], document)
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].split("/")[-1]]
    return found


def kind(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """A field's type in a few words."""
    if "anyOf" in schema:
        kinds = [kind(one, document) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        names = resolved(schema, document).get("properties", {})
        return "object: " + ", ".join(f"`{name}`" for name in names)
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        inner = kind(schema.get("items", {}), document)
        return f"list of {re.sub('^any$', 'anything', inner)}"
    return str(schema.get("type", "any"))


if __name__ == "__main__":
    main()
